"""All ranks of a group get occl in the place of Gloo, or none."""

import os
import warnings
from datetime import timedelta

import pytest
import torch.distributed as dist

import torch_occl
from occl.distributed import gloo, place_agreement
from tests.distributed.in_place_of.running import ABSENT, assert_gloo, assert_occl
from tests.support import groups
from tests.support.groups import begin, run
from tests.support.thinning import first
from tests.support.worker import listen, tell


def some_ask(rank, n, device, *, store, asking, says):
    """The first rank that asks says why it was in vain."""
    if rank in asking:
        torch_occl.replace_gloo()
    said = f"group 0 uses Gloo, and not occl in its place: {says} (said once for each reason)"
    speaks = rank == min(asking)
    for _ in range(2):  # and in the groups that follow, which say nothing
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            group = dist.new_group() if dist.is_initialized() else begin(rank, n, store)
        found = [(it.filename, str(it.message)) for it in caught if "Gloo" in str(it.message)]
        assert found == ([(groups.__file__, said)] if speaks and group is None else []), found
        assert_gloo(group)
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("asking", "says"),
    first(
        [([1], f"each of ranks 0 and 2 {ABSENT}"), ([1, 2], f"rank 0 {ABSENT}"), ([0, 1], f"rank 2 {ABSENT}")]
    ),
)
def test_gloo_serves_all_ranks_if_some_did_not_ask(fresh, asking, says):
    run(fresh, some_ask, n=3, asking=asking, says=says)


def of_some(rank, n, device, *, store):
    """Ranks 0 and 1 ask, rank 2 does not: a group of the first two is occl's."""
    if rank < 2:
        torch_occl.replace_gloo()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin(rank, n, store)
    assert_gloo()
    both = dist.new_group([0, 1])
    if rank < 2:
        assert_occl(both)
    dist.barrier()


def test_the_ranks_of_a_group_decide_and_no_others(fresh):
    run(fresh, of_some, n=3)


ABLE, UNABLE = {"cannot": ""}, {"cannot": "no address"}


@pytest.mark.parametrize(
    ("votes", "why"),
    [
        ([ABLE, ABLE], ""),
        ([UNABLE, UNABLE], "each of ranks 0 and 1 cannot connect them: no address"),
        (
            [ABLE, UNABLE, ABLE, None, ABLE],
            "rank 1 cannot connect them: no address; rank 3 has made Gloo meanwhile",
        ),
    ],
)
def test_every_reason_between_nodes_is_said_once(votes, why):
    assert place_agreement.outcome_between(votes) == {
        "occl": not why,
        "why": why and f"the group spans several nodes, and {why}",
    }


def cannot_load(name):
    raise ImportError("no library")


def lacks(rank, n, device, *, store, what):
    """Rank 1 cannot, or nothing connects it to rank 0."""
    says = "rank 1 cannot use occl: "
    if what == "node":
        os.environ["OCCL_NODE"] = f"node {rank}"
        os.environ["OCCL_INTER_NODE"] = "gloo"
        says = (
            "the group spans several nodes, and each of ranks 0 and 1 cannot connect them: OCCL_INTER_NODE is"
        )
    elif what == "version":
        gloo.versions.VERSION = f"0.{rank}"
        says = "rank 1 has another version or build of torch_occl than rank 0"
    elif what == "size":
        place_agreement.MAX_RANKS = 1
        says = "rank 0 cannot use occl: a group of occl has at most 1 ranks, not 2"
    elif what == "extension":
        says += "no library"
        if rank == 1:
            place_agreement.importlib.import_module = cannot_load
    torch_occl.replace_gloo()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin(rank, n, store)
    assert [says in str(it.message) for it in caught if "Gloo" in str(it.message)] == [True] * (rank == 0)
    assert_gloo()


@pytest.mark.parametrize("what", ["node", "version", "extension", "size"])
def test_gloo_serves_all_ranks_if_one_cannot_use_occl(fresh, what):
    run(fresh, lacks, what=what)


def takes_the_place_without_its_first_name(rank, n, device, *, store):
    dist.Backend.register_backend("occl", cannot_load, devices=["cpu"])
    torch_occl.replace_gloo()
    begin(rank, n, store)
    assert_occl()


def test_another_package_that_has_the_name_does_not_matter(fresh):
    run(fresh, takes_the_place_without_its_first_name)


def stays_away(rank, n, device, *, store):
    if rank == 0:
        torch_occl.replace_gloo()
        with pytest.raises(
            dist.DistBackendError,
            match=r"Timed out after 200 ms on rank 0 of group 0 waiting for rank 1 of 2 to make the group",
        ):
            begin(rank, n, store, timeout=0.2)
        assert not dist.is_initialized()


def test_a_rank_that_stays_away_is_named_at_the_timeout(fresh):
    run(fresh, stays_away)


def late(rank, n, device, *, store):
    """Rank 1 makes Gloo and rank 2 comes last: it finds what rank 0 has chosen without it."""
    if rank == 2:
        listen()
    if rank != 1:
        torch_occl.replace_gloo()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin(rank, n, store)
    assert_gloo()


def test_ranks_wait_for_one_that_comes_late(fresh):
    with fresh(3) as team:
        team.start(late, store=team.source.new_file())
        team.say(2, "come")
        assert not any(outcome.failed for outcome in team.finish())


def leftover(rank, n, device, *, store):
    """A store that Gloo has used under the same name looks as if ranks had not asked: the choice is one."""
    store = dist.FileStore(store, n)
    begin(rank, n, store)
    dist.barrier()
    dist.destroy_process_group()
    store = dist.PrefixStore("0/", store)
    vote = {"cannot": "", "place": "here", "version": "1", "kept": []}
    if rank == 2:
        listen()
    choice = place_agreement.agree(
        store, dist.PrefixStore("cpu/", store), vote, rank, n, "0", timedelta(seconds=50)
    )
    if rank < 2:
        tell("has chosen")
    return choice


def test_what_an_earlier_group_left_in_the_store_does_not_split_the_ranks(fresh):
    with fresh(3) as team:
        team.start(leftover, store=team.source.new_file())
        team.hear(0)
        team.hear(1)
        team.say(2, "come")  # it sees all votes, and the choice that was made without its own
        choices = [outcome.result for outcome in team.finish()]
    assert choices[0] == choices[1] == choices[2] and not choices[0]["occl"], choices


def test_a_choice_that_was_made_without_this_rank_holds():
    """Rank 0 has seen that rank 1 makes Gloo, and gone on; rank 1's vote comes after all."""
    store = dist.HashStore()
    gloo = dist.PrefixStore("cpu/", store)
    vote = {"cannot": "", "place": "", "version": "", "kept": []}
    gloo.set("0/1", "an address")
    arguments = store, gloo, vote
    first = place_agreement.agree(*arguments, 0, 2, "g", timedelta(seconds=9))
    second = place_agreement.agree(*arguments, 1, 2, "g", timedelta(seconds=9))
    assert first == second
    assert (first["occl"], first["why"], first["first"]) == (False, f"rank 1 {ABSENT}", 0)


def votes_again(rank, n, device, *, store):
    """Each rank misses one attempt. Then all come, and one of them does not ask any more."""
    store = dist.FileStore(store, n)
    vote = {"cannot": "", "place": "here", "version": "1", "kept": []}

    def agree(seconds):
        gloo = dist.PrefixStore("cpu/", store)
        return place_agreement.agree(store, gloo, vote, rank, n, "0", timedelta(seconds=seconds))

    for missing in range(n):
        if rank != missing:
            with pytest.raises(dist.DistBackendError, match="waiting for rank"):
                agree(0.2)
        tell("has tried")
        listen()
    everyone = agree(50)
    tell("agreed")
    listen()
    if rank == 1:
        dist.PrefixStore("cpu/", store).set("0/1", "an address")
        return everyone, None
    return everyone, agree(50)


def test_ranks_agree_after_attempts_that_some_have_missed(fresh):
    with fresh(3) as team:
        team.start(votes_again, store=team.source.new_file())
        for _ in range(4):
            for rank in range(3):
                team.hear(rank)
            for rank in range(3):
                team.say(rank, "all have tried")
        results = [outcome.result for outcome in team.finish()]
    assert all(everyone["occl"] for everyone, _ in results), results
    assert all(last["why"] == f"rank 1 {ABSENT}" for _, last in (results[0], results[2])), results
