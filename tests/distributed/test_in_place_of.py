"""Programs that ask for Gloo get groups of occl: all ranks of a group, or none."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import torch_occl
from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.interpreter import install, run_python
from tests.support.worker import listen, tell
from torch_occl import ProcessGroupOCCL, _in_place_of

GLOO, CUSTOM = dist.ProcessGroup.BackendType.GLOO, dist.ProcessGroup.BackendType.CUSTOM


def begin(rank, n, store, name="gloo", timeout=50.0, **options):
    """``options``: what else ``init_process_group`` takes."""
    dist.init_process_group(
        name,
        store=store if isinstance(store, dist.Store) else dist.FileStore(store, n),
        rank=rank,
        world_size=n,
        timeout=timedelta(seconds=timeout),
        **options,
    )


def run(fresh, body, n=2, device="cpu", **params):
    with fresh(n) as team:
        return team.run(body, device, store=team.zygote.new_file(), **params)


def assert_occl(group=None, name="gloo"):
    """The group is one of occl that the program knows under this name."""
    assert type(backend("cpu", group)) is ProcessGroupOCCL and torch_occl.serves(group)
    assert dist.get_backend(group) == name
    assert_works("cpu", group)


def assert_gloo(group=None):
    assert type(backend("cpu", group)) is dist.ProcessGroupGloo and not torch_occl.serves(group)
    assert dist.get_backend(group) == "gloo"
    t = torch.ones(1000)
    dist.all_reduce(t, group=group)
    assert (t == dist.get_world_size(group)).all()


# ---- What a group is, and what it says ---------------------------------------------------------------------


def says_what_was_asked_for(rank, n, device, *, store):
    begin(rank, n, f"{store}-gloo")
    config, devices = dist.get_backend_config(), {d.type for d in dist.group.WORLD._device_types}
    dist.barrier()  # no rank leaves while Gloo still connects another one
    dist.destroy_process_group()
    with torch_occl.replace("gloo"):
        begin(rank, n, store)
    assert_occl()
    world = dist.group.WORLD
    assert world.name() == "gloo" and world._get_backend_name() == "gloo"
    assert dist.get_backend_config() == config and {d.type for d in world._device_types} == devices
    before = world._get_sequence_number_for_group()
    dist.barrier()
    assert world._get_sequence_number_for_group() == before + 1
    assert dist.is_gloo_available() and dist.Backend("gloo") == "gloo"
    everybody = [None] * n
    dist.all_gather_object(everybody, {"rank": rank})
    assert everybody == [{"rank": r} for r in range(n)]
    x = _functional_collectives.all_reduce(torch.ones(3), "sum", world)
    assert x.tolist() == [n] * 3
    t = torch.full((3,), float(rank))
    got = torch.empty(3)
    peer = n - 1 - rank
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, t, peer), dist.P2POp(dist.irecv, got, peer)]):
        work.wait()
    assert (got == peer).all()
    dist.destroy_process_group()
    assert not dist.is_initialized()


def test_a_group_of_occl_says_what_the_program_asked_for(fresh):
    run(fresh, says_what_was_asked_for)


def names(rank, n, device, *, store, name, says, default):
    torch_occl.replace("gloo")
    begin(rank, n, store, name)
    assert_occl(name=says)
    assert dist.get_backend_config() == (name or "cpu:gloo")
    world = dist.group.WORLD
    assert world._get_backend_name() == default
    if "dev" in name:
        assert_works("dev")
        assert backend("dev") is backend("cpu")
    dist.destroy_process_group()


MIXED = [("cpu:gloo,dev:occl", "custom"), ("dev:occl,cpu:gloo", "custom"), ("dev:gloo,cpu:gloo", "gloo")]


@pytest.mark.parametrize(("name", "default"), [("cpu:gloo", "gloo"), *(MIXED if "dev" in DEVICES else [])])
def test_gloo_for_one_device_type_is_replaced_too(fresh, name, default):
    run(fresh, names, name=name, says=name, default=default)


def barrier_is_monitored(rank, n, device, *, store):
    torch_occl.replace("gloo")
    begin(rank, n, store)
    dist.monitored_barrier()
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="Rank 1 failed to pass monitoredBarrier in 100 ms"):
            dist.monitored_barrier(timeout=timedelta(seconds=0.1))
        tell("timed out")
    else:
        assert listen() == "go on"
        dist.monitored_barrier(timeout=timedelta(seconds=50))


def test_a_monitored_barrier_needs_no_other_call(fresh):
    with fresh(2) as team:
        team.start(barrier_is_monitored, store=team.zygote.new_file())
        team.hear(0)
        team.kill(1)
        team.wait_for(0)
        assert not team.running[0].failed, team.running[0].traceback


def timeout_is_changed(rank, n, device, *, store):
    torch_occl.replace("gloo")
    begin(rank, n, store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        distributed_c10d._set_pg_timeout(timedelta(seconds=0.3))
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="Timed out waiting 300ms"):
            dist.all_reduce(torch.ones(3))
        tell("done")
    else:
        listen()


def test_the_timeout_of_a_group_can_be_set(fresh):
    with fresh(2) as team:
        team.start(timeout_is_changed, store=team.zygote.new_file())
        team.hear(0)
        team.say(1, "rank 0 is done")
        assert not any(outcome.failed for outcome in team.finish())


def other_timeouts_stay(rank, n, device, *, store):
    torch_occl.replace("gloo")
    begin(rank, n, store, "occl")
    with pytest.warns(UserWarning, match="only supported for either nccl or gloo"):
        distributed_c10d._set_pg_timeout(timedelta(seconds=0.3))


def test_a_group_that_asked_for_occl_is_as_before(fresh):
    run(fresh, other_timeouts_stay, n=1)


# ---- Ways to make groups -----------------------------------------------------------------------------------


def groups(rank, n, device, *, store):
    torch_occl.replace("gloo")
    begin(rank, n, store)
    assert_occl()
    for ranks in ([0, 1], [1, 2], [0, 1, 2]):
        group = dist.new_group(ranks)  # the default group's backend
        named = dist.new_group(ranks, backend="GLOO", group_desc="named")
        for it in (group, named):
            if rank in ranks:
                assert_occl(it)
            else:
                assert it is dist.GroupMember.NON_GROUP_MEMBER
    local = dist.new_group([rank], use_local_synchronization=True)
    assert_occl(local)
    mine, _ = dist.new_subgroups_by_enumeration([[0, 2], [1]])
    assert_occl(mine)
    for mesh in (init_device_mesh("cpu", (n,)), init_device_mesh("cpu", (1, n))):
        for it in mesh.get_all_groups():
            assert_occl(it)
    tagged = [distributed_c10d._new_group_with_tag([0, 1, 2], backend="gloo", pg_tag="t") for _ in range(2)]
    assert_occl(tagged[0])
    assert tagged[0] is tagged[1]
    if rank == 0:  # it exists, so no other rank is needed
        assert distributed_c10d._new_group_with_tag([0, 1, 2], backend="gloo", pg_tag="t") is tagged[0]
    dist.destroy_process_group(tagged[0])
    dist.destroy_process_group()


def test_every_way_makes_groups_of_occl(fresh):
    run(fresh, groups, n=3)


def beside_another_default(rank, n, device, *, store):
    begin(rank, n, store, "occl")
    torch_occl.replace("gloo")
    assert_occl(dist.new_group(backend="gloo"))
    assert dist.get_backend() == "occl"


def test_a_gloo_group_beside_a_default_group_of_occl(fresh):
    run(fresh, beside_another_default)


def bound_and_split(rank, n, device, *, store):
    torch_occl.replace("gloo")
    begin(rank, n, store, device_id=torch.device("dev", rank))
    assert_occl()
    half = dist.split_group(split_ranks=[[0, 1], [2]])
    assert_occl(half)
    assert_works("dev", half)


@pytest.mark.skipif("dev" not in DEVICES, reason="split_group needs an accelerator")
def test_a_group_of_gloo_by_name_is_split(fresh):
    run(fresh, bound_and_split, n=3)


def shrinks(rank, n, device, *, store):
    torch_occl.replace("gloo")
    begin(rank, n, store)
    if rank < 2:
        smaller = dist.shrink_group([2])
        assert_occl(smaller)
        assert smaller.size() == 2


def test_a_group_shrinks(fresh):
    run(fresh, shrinks, n=3)


def init_again(rank, n, device, *, store):
    torch_occl.replace("gloo")
    store = dist.FileStore(store, n)
    for _ in range(3):
        begin(rank, n, store)
        assert_occl()
        dist.destroy_process_group()


def test_init_and_destroy_follow_each_other_over_one_store(fresh):
    run(fresh, init_again, n=3)


def chooses_twice(rank, n, device, *, store):
    store = dist.FileStore(store, n)
    choices = []
    for place in (f"place {rank}", "one place"):
        vote = {"cannot": "", "place": place, "version": "1", "kept": []}
        limit = timedelta(seconds=50)
        choices.append(_in_place_of._agree(store, dist.PrefixStore("cpu/", store), vote, rank, n, "0", limit))
        if len(choices) == 1:  # as the group itself would
            store.set(f"met/{rank}", "")
            store.wait([f"met/{other}" for other in range(n)])
    return [choice["occl"] for choice in choices]


def test_each_group_over_one_store_has_a_choice_of_its_own(fresh):
    assert run(fresh, chooses_twice, n=3) == [[False, True]] * 3


def foreign_options(rank, n, device, *, store):
    """Gloo takes any options, and ignores them."""
    torch_occl.replace("gloo")
    begin(rank, n, store, pg_options=dist.ProcessGroupGloo._Options())
    assert_occl()
    options = ProcessGroupOCCL.Options()
    options.staging_bytes = 1 << 21
    assert_occl(group := dist.new_group(backend="gloo", pg_options=options))
    assert backend("cpu", group).options.staging_bytes == 1 << 21
    with pytest.raises(TypeError, match=r"pg_options must be torch_occl.ProcessGroupOCCL.Options"):
        dist.new_group(backend="occl", pg_options=dist.ProcessGroupGloo._Options())


def test_options_of_another_backend_are_ignored_as_gloo_ignores_them(fresh):
    run(fresh, foreign_options)


def keeps_cuda(rank, n, device, *, store):
    """Stands for a process with CUDA: Gloo, which moves CUDA tensors too, keeps that device on all ranks."""
    if rank == 0:
        torch.cuda.is_available = lambda: True
    torch_occl.replace("gloo")
    begin(rank, n, store)
    assert type(backend("cuda")) is dist.ProcessGroupGloo and not torch_occl.serves(device="cuda")
    assert_occl()
    torch.cuda.is_available = lambda: False
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.is_available(), reason="stands for a process with CUDA")
def test_tensors_on_cuda_stay_gloos_if_one_rank_can_have_some(fresh):
    run(fresh, keeps_cuda)


def alone(rank, n, device, *, store):
    torch_occl.replace("gloo")
    begin(0, 1, dist.HashStore())
    assert_occl()


def test_a_group_of_one(fresh):
    run(fresh, alone, n=1)


# ---- All ranks or none -------------------------------------------------------------------------------------


def some_ask(rank, n, device, *, store, asking, says):
    if rank in asking:
        torch_occl.replace("gloo")
    said = f"group 0 uses Gloo, and not occl in its place: {says}"
    for _ in range(2):  # and in the groups that follow
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            group = dist.new_group() if dist.is_initialized() else begin(rank, n, store)
        texts = [str(it.message) for it in caught if "Gloo" in str(it.message)]
        assert texts == ([said] if rank in asking else []), texts
        assert_gloo(group)
        said = said.replace("group 0", "group 1")
    dist.destroy_process_group()


ABSENT = 'did not ask for it, by OCCL_IN_PLACE_OF=gloo or torch_occl.replace("gloo")'


@pytest.mark.parametrize(
    ("asking", "says"),
    [([1, 2], f"rank 0 {ABSENT}"), ([0, 1], f"rank 2 {ABSENT}"), ([1], f"each of ranks 0, 2 {ABSENT}")],
)
def test_gloo_serves_all_ranks_if_some_did_not_ask(fresh, asking, says):
    run(fresh, some_ask, n=3, asking=asking, says=says)


def of_some(rank, n, device, *, store):
    """Ranks 0 and 1 ask, rank 2 does not: a group of the first two is occl's."""
    if rank < 2:
        torch_occl.replace("gloo")
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


def cannot_load(name):
    raise ImportError("no library")


def lacks(rank, n, device, *, store, what):
    """Rank 1 cannot, or cannot reach rank 0."""
    says = "rank 1 cannot use occl: "
    if what == "node":
        os.environ["OCCL_NODE"] = f"node {rank}"
        says = "rank 1 shares no memory with rank 0, because the host,"
    elif what == "version":
        _in_place_of._versions.VERSION = f"0.{rank}"
        says = "rank 1 has another version of torch_occl than rank 0"
    elif what == "size":
        _in_place_of.MAX_RANKS = 1
        says = "rank 0 cannot use occl: a group of occl has at most 1 ranks, not 2"
    elif what == "extension":
        says += "no library"
        if rank == 1:
            _in_place_of._torch_occl_autoload._without_device = cannot_load
    elif what == "name":
        says += "another package has registered a backend named 'occl'"
        if rank == 1:
            dist.Backend.register_backend("occl", cannot_load, devices=["cpu"])
    torch_occl.replace("gloo")
    with pytest.warns(UserWarning, match=re.escape(says)):
        begin(rank, n, store)
    assert_gloo()


@pytest.mark.parametrize("what", ["node", "version", "extension", "name", "size"])
def test_gloo_serves_all_ranks_if_one_cannot_use_occl(fresh, what):
    run(fresh, lacks, what=what)


def stays_away(rank, n, device, *, store):
    if rank == 0:
        torch_occl.replace("gloo")
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
        torch_occl.replace("gloo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin(rank, n, store)
    assert_gloo()


def test_ranks_wait_for_one_that_comes_late(fresh):
    with fresh(3) as team:
        team.start(late, store=team.zygote.new_file())
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
    choice = _in_place_of._agree(
        store, dist.PrefixStore("cpu/", store), vote, rank, n, "0", timedelta(seconds=50)
    )
    if rank < 2:
        tell("has chosen")
    return choice


def test_what_an_earlier_group_left_in_the_store_does_not_split_the_ranks(fresh):
    with fresh(3) as team:
        team.start(leftover, store=team.zygote.new_file())
        team.hear(0)
        team.hear(1)
        team.say(2, "come")  # it sees all votes, and the choice that was made without its own
        choices = [outcome.result for outcome in team.finish()]
    assert choices[0] == choices[1] == choices[2] and not choices[0]["occl"], choices


def test_the_first_choice_in_the_store_holds():
    """Rank 0 has seen that rank 1 makes Gloo and stored that; rank 1's vote came after all."""
    store = dist.HashStore()
    store.set(f"{_in_place_of.KEYS}/2/0/chosen", '{"occl": false, "why": "first", "kept": []}')
    store.set(f"{_in_place_of.KEYS}/2/0/0", '{"cannot": "", "place": "", "version": "", "kept": []}')
    vote = {"cannot": "", "place": "", "version": "", "kept": []}
    choice = _in_place_of._agree(
        store, dist.PrefixStore("cpu/", store), vote, 1, 2, "g", timedelta(seconds=9)
    )
    assert choice == {"occl": False, "why": "first", "kept": []}


# ---- What needs Gloo itself --------------------------------------------------------------------------------


def calls_are_checked(rank, n, device, *, store):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    torch_occl.replace("gloo")
    begin(rank, n, store)
    wrapper = backend()
    assert type(wrapper.wrapped_pg) is ProcessGroupOCCL
    assert torch_occl.serves() and dist.get_backend() == "gloo"
    assert_works()
    with pytest.raises(RuntimeError, match="Detected mismatch between collectives on ranks"):
        dist.all_reduce(torch.ones(rank + 1))
    pair = dist.new_group([0, 1])
    assert torch_occl.serves(pair)
    assert_works("cpu", pair)
    dist.barrier()  # no rank leaves while Gloo still connects another one
    dist.destroy_process_group()


def test_the_debug_level_detail_wraps_it_with_gloo_beside(fresh):
    run(fresh, calls_are_checked)


def made_by_class(rank, n, device, *, store):
    torch_occl.replace("gloo")
    direct = dist.ProcessGroupGloo(dist.FileStore(store, n), rank, n, timeout=timedelta(seconds=50))
    assert isinstance(direct, distributed_c10d.ProcessGroupGloo)
    t = torch.ones(3)
    direct.allreduce([t]).wait()
    assert (t == n).all()
    begin(rank, n, f"{store}-group")
    dist.barrier()  # no rank ends its connections while another one still reads


def test_what_makes_gloo_by_its_class_gets_gloo(fresh):
    run(fresh, made_by_class)


def add(a, b):
    return a + b


def calls_remotely(rank, n, device, *, store):
    from torch.distributed import rpc

    torch_occl.replace("gloo")
    begin(rank, n, store)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}-rpc", rpc_timeout=50)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=n, rpc_backend_options=options)
    assert rpc.rpc_sync(f"worker{1 - rank}", add, (torch.ones(2), 2)).tolist() == [3, 3]
    assert_occl()
    rpc.shutdown()
    dist.destroy_process_group()


def test_rpc_works_beside(fresh):
    run(fresh, calls_remotely)


# ---- Switching it on and off -------------------------------------------------------------------------------


def on_and_off(rank, n, device, *, store):
    begin(rank, n, store, "occl")

    def occl() -> bool:
        return torch_occl.serves(dist.new_group(backend="gloo"))

    assert not occl()
    with torch_occl.replace("gloo"):
        assert occl()
        with torch_occl.replace("gloo"):
            assert occl()
        assert occl()
        with torch_occl.replace(None):
            assert not occl()
        stays = dist.new_group(backend="gloo")
        assert occl()
    assert not occl()
    assert_occl(stays)
    with pytest.raises(KeyError), torch_occl.replace("Gloo"):
        raise KeyError
    assert not occl()
    torch_occl.replace("gloo")
    assert occl()
    torch_occl.replace(None)
    assert not occl()


def test_it_is_switched_on_and_off_and_nests(fresh):
    run(fresh, on_and_off)


@pytest.mark.parametrize(("name", "error"), [("nccl", ValueError), ("", ValueError), (1, TypeError)])
def test_a_name_that_cannot_be_replaced_is_refused(name, error):
    before = distributed_c10d._new_process_group_helper
    with pytest.raises(
        error, match=re.escape("'gloo' only, not of 'nccl'") if name == "nccl" else "replace: "
    ):
        torch_occl.replace(name)
    assert distributed_c10d._new_process_group_helper is before and not _in_place_of._on


def test_without_a_group_there_is_nothing_to_say_about():
    with pytest.raises(ValueError, match="there is no default group"):
        torch_occl.serves()


ASK = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_backend(), type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__)
print(torch._C._get_privateuse1_backend_name(), "torch_occl" in sys.modules)
"""
OCCL, REAL = "gloo ProcessGroupOCCL", "gloo ProcessGroupGloo"


@pytest.fixture
def installed(tmp_path) -> Path:
    return install(tmp_path)


def python(code: str, path: Path, **env: str) -> list[str]:
    environment = {"OCCL_DEVICE": "", "OCCL_IN_PLACE_OF": "", "OMP_NUM_THREADS": "1"} | env
    return run_python("-W", "always", "-c", code, path=path, **environment).splitlines()


def test_the_environment_switches_it_on_for_a_program_that_imports_torch_only(installed):
    assert python(ASK, installed, OCCL_IN_PLACE_OF="gloo") == [OCCL, "privateuseone False"]
    assert python(ASK, installed) == [REAL, "privateuseone False"]


@pytest.mark.full
def test_the_environment_holds_for_the_package_too(installed):
    """With the device, by whichever way it is made, and after the package has been imported."""
    with_it = {"OCCL_IN_PLACE_OF": "gloo"}
    name = "dev" if "dev" in DEVICES else "privateuseone"
    assert python(ASK, installed, OCCL_DEVICE="1", **with_it) == [OCCL, f"{name} True"]
    code = "import torch_occl\n" + ASK
    assert python(code, installed, TORCH_DEVICE_BACKEND_AUTOLOAD="0", **with_it) == [OCCL, f"{name} True"]
    then = ASK.replace("dist.init", "import torch_occl\ntorch_occl.replace(None)\ndist.init")
    assert python(then, installed, **with_it) == [REAL, f"{name} True"]


def test_importing_torch_patches_nothing_and_loads_nothing_unasked(installed):
    code = """
import sys, torch
from torch.distributed import distributed_c10d
print(distributed_c10d._new_process_group_helper.__code__.co_filename == distributed_c10d.__file__)
print([name for name in sys.modules if name.startswith("torch_occl")])
"""
    assert python(code, installed) == ["True", "[]"]
    assert python(code, installed, OCCL_IN_PLACE_OF="gloo")[0] == "False"


@pytest.mark.full
def test_a_value_that_is_none_is_an_error_that_names_the_variable(installed):
    says = "OCCL_IN_PLACE_OF='nccl': it must be gloo, the only backend that occl replaces, or empty"
    said = python(ASK, installed, OCCL_IN_PLACE_OF="nccl")
    assert any(says in line for line in said) and said[-2] == REAL
    error = run_python(
        "-c", "import torch_occl", path=installed, status=1, OCCL_IN_PLACE_OF="nccl", OCCL_DEVICE=""
    )
    assert error.splitlines()[-1] == f"ValueError: {says}" or says in error.splitlines()[-1]


PROGRAM = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(3)
dist.all_reduce(x)
kind = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__
with open(f"{os.environ['SAID']}/{dist.get_rank()}", "w") as file:
    file.write(f"{dist.get_backend()} {kind} {x.tolist()}")
dist.destroy_process_group()
"""


@pytest.mark.full
def test_torchrun_starts_a_program_that_knows_nothing_of_it(installed, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    python_arguments = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run_python(
        *python_arguments,
        tmp_path / "program.py",
        path=installed,
        OCCL_IN_PLACE_OF="gloo",
        OCCL_DEVICE="",
        OMP_NUM_THREADS="1",
        SAID=str(tmp_path),
    )
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == [f"{OCCL} [2.0, 2.0, 2.0]"] * 2


def test_one_process_of_two_has_the_variable(installed):
    """By autoload, over a TCPStore, with a rank that has no torch_occl at all."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    code = """
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(3)
dist.all_reduce(x)
print(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__, x.tolist())
"""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    settings = [{"OCCL_IN_PLACE_OF": "gloo"}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ
            | common
            | {"PYTHONPATH": str(installed), "RANK": str(rank), "OCCL_DEVICE": ""}
            | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        for rank, own in enumerate(settings)
    ]
    said = [process.communicate(timeout=180) for process in processes]
    assert [out for out, _ in said] == ["ProcessGroupGloo [2.0, 2.0, 2.0]\n"] * 2, said
    assert f"rank 1 {ABSENT}" in said[0][1] and "occl" not in said[1][1]


# ---- Training ----------------------------------------------------------------------------------------------


def trained(rank):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4))
    ddp = DistributedDataParallel(model)
    assert ddp._get_ddp_logging_data()["backend_name"] == "gloo"
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(5):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        ddp(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def trains(rank, n, device, *, store):
    begin(rank, n, f"{store}-gloo")
    assert_gloo()
    expected = trained(rank)
    dist.destroy_process_group()
    torch_occl.replace("gloo")
    begin(rank, n, store)
    assert_occl()
    for mine, theirs in zip(trained(rank), expected, strict=True):
        assert torch.equal(mine, theirs)  # two addends: every order of addition gives the same bits
    dist.destroy_process_group()


def test_training_gives_what_it_gives_with_gloo(fresh):
    run(fresh, trains)
