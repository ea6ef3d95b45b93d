"""What occl asks of the engine that carries its messages between nodes. The engine of these tests
(``recorder.cpp``) passes messages on to Gloo and remembers them; any other call to it is an error.

The ranks say which node they are on (OCCL_NODE), so these tests need no network.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shlex
import struct
import subprocess
import sysconfig
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.cpp_extension import include_paths

from occl._C import _set_prepare_inter_node
from occl.distributed import inter_node
from tests.faults import limits
from tests.hosts.launch import counts, placement
from tests.support import cpp_build
from tests.support.checks import assert_works
from tests.support.devices import DEVICES
from tests.support.ranks import Ranks, Team
from tests.support.thinning import first
from tests.support.worker import listen, tell
from torch_occl import ProcessGroupOCCL

BLOCK = 1 << 20
"""Bytes of each rank's block."""
LONG = 8
"""Blocks of a broadcast that nodes pass on. The root sends a shorter one to each node itself."""
CONTROL = 64 << 10
"""Bytes that suffice for all messages of an operation that carry none of its data."""
TIMEOUT = timedelta(seconds=60)

ENVELOPES, PAYLOADS, CHANNELS = 3, 5, 16
"""Channels of the default group, which are the tags of its long messages, and how many each group has."""
FRAMES = 7
"""The tag of the frames in which the short messages of all groups travel."""

Entry = tuple[str, int, int, int]
"""``"send"`` or ``"receive"``, the other rank, the tag, and the number of bytes."""


@pytest.fixture(scope="module")
def library() -> Path:
    """The compiled engine."""
    source = Path(__file__).with_name("recorder.cpp")
    out = cpp_build.ROOT / "build" / "recorder"
    out.mkdir(parents=True, exist_ok=True)
    includes = [f"-isystem{path}" for path in [*include_paths(), sysconfig.get_path("include")]]
    flags = ["-O1", "-fPIC", "-std=c++20", "-DTORCH_EXTENSION_NAME=recorder", *includes]
    compiler = shlex.split(cpp_build.compiler())
    subprocess.run([*compiler, *flags, "-c", source, "-o", out / "recorder.o"], check=True)
    link = [*compiler, "-shared", out / "recorder.o", *cpp_build.torch_libraries(), "-o", out / "recorder.so"]
    subprocess.run(link, check=True)
    return out / "recorder.so"


def meet(rank: int, n: int, device: str, *, places: list[int], library: Path, store: str):
    """Makes the default group over a recording engine, which it returns. occl may make no engine itself."""
    spec = importlib.util.spec_from_file_location("recorder", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    os.environ["OCCL_NODE"] = f"node {places[rank]}"
    everyone = dist.FileStore(store, n)
    connect = inter_node.prepare(one_network=True)[1]
    gloo = connect(dist.PrefixStore("gloo", everyone), rank, n, TIMEOUT)
    recorder = module.Recorder(gloo)

    def make_none(*_: object) -> None:
        raise AssertionError("occl makes an engine although it has one")

    _set_prepare_inter_node(make_none)
    options = ProcessGroupOCCL.Options(inter_node=recorder)
    dist.init_process_group(
        "occl", store=everyone, rank=rank, world_size=n, timeout=TIMEOUT, pg_options=options
    )
    return recorder


def block(device: str, blocks: int = 1) -> torch.Tensor:
    return torch.ones(blocks * BLOCK // 4, device=device)


def all_to_all(n: int, device: str) -> None:
    dist.all_to_all_single(block(device, n), block(device, n))


def all_to_all_uneven(n: int, device: str) -> None:
    """Rank a sends a + b blocks to rank b."""
    rank = dist.get_rank()
    splits = [(rank + other) * BLOCK // 4 for other in range(n)]
    tensor = torch.ones(sum(splits), device=device)
    dist.all_to_all_single(torch.empty_like(tensor), tensor, splits, splits)


def gather(n: int, device: str) -> None:
    out = list(block(device, n).chunk(n)) if dist.get_rank() == 0 else None
    dist.gather(block(device), out, 0)


def scatter(n: int, device: str) -> None:
    given = list(block(device, n).chunk(n)) if dist.get_rank() == 0 else None
    dist.scatter(block(device), given, 0)


def message(n: int, device: str) -> None:
    """From the first rank to the last."""
    if dist.get_rank() == 0:
        dist.send(block(device), n - 1)
    if dist.get_rank() == n - 1:
        dist.recv(block(device), 0)


OPERATIONS: dict[str, Callable[[int, str], object]] = {
    "all_reduce": lambda n, device: dist.all_reduce(block(device)),
    "reduce": lambda n, device: dist.reduce(block(device), 0),
    "broadcast": lambda n, device: dist.broadcast(block(device, LONG), 0),
    "all_gather": lambda n, device: dist.all_gather_into_tensor(block(device, n), block(device)),
    "reduce_scatter": lambda n, device: dist.reduce_scatter_tensor(block(device), block(device, n)),
    "all_to_all": all_to_all,
    "all_to_all_uneven": all_to_all_uneven,
    "gather": gather,
    "scatter": scatter,
    "message": message,
}


def least(operation: str, places: list[int]) -> list[float]:
    """Blocks that must leave each node. In a broadcast each node but the last passes the data on."""
    n, nodes = len(places), len(set(places))
    size = Counter(places)
    pairs = [(a, b) for a in range(n) for b in range(n) if places[a] != places[b]]
    of = {
        "all_reduce": lambda m: 2 * (nodes - 1) / nodes,
        "reduce": lambda m: float(m != 0),
        "broadcast": lambda m: LONG * (m != nodes - 1),
        "all_gather": lambda m: size[m] * (nodes - 1),
        "reduce_scatter": lambda m: n - size[m],
        "all_to_all": lambda m: size[m] * (n - size[m]),
        "all_to_all_uneven": lambda m: sum(a + b for a, b in pairs if places[a] == m),
        "gather": lambda m: size[m] if m else 0,
        "scatter": lambda m: 0 if m else n - size[0],
        "message": lambda m: float(m == 0),
    }
    return [of[operation](m) for m in range(nodes)]


def recorded(rank: int, n: int, device: str, *, operations: list[str], **how) -> dict[str, list[Entry]]:
    """The messages of each operation, and of all that this rank has ever begun."""
    recorder = meet(rank, n, device, **how)
    found = {}
    for name in operations:
        dist.barrier()
        before = len(recorder.entries())
        OPERATIONS[name](n, device)
        found[name] = recorder.entries()[before:]
    dist.barrier()
    return found | {"all": recorder.entries()}


def messages_of_all_operations(ranks: Ranks, library: Path, places: list[int], *device: str) -> list:
    """By rank: what `recorded` returns, on these nodes."""
    with ranks.fresh(len(places)) as team:
        how = {"places": places, "library": library, "store": ranks.source.new_file()}
        return team.run(recorded, *device, operations=list(OPERATIONS), **how)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", ["2+2", "1+2+1"])
def test_no_byte_leaves_a_node_that_need_not(ranks, library, shape, device):
    places = placement(shape)
    found = messages_of_all_operations(ranks, library, places, device)
    for name in OPERATIONS:
        sent = [0] * len(counts(shape))
        for rank, entries in enumerate(found):
            sent[places[rank]] += sum(size for kind, _, _, size in entries[name] if kind == "send")
        for node, blocks in enumerate(least(name, places)):
            assert -1 < sent[node] - blocks * BLOCK <= CONTROL, (name, node, sent, blocks)


@pytest.mark.parametrize("shape", ["2+2", "1+2+1"])
def test_messages_go_between_nodes_only_and_meet_receives_of_their_length(ranks, library, shape):
    places = placement(shape)
    found = messages_of_all_operations(ranks, library, places)
    streams: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    for rank, entries in enumerate(found):
        for kind, peer, tag, size in entries["all"]:
            assert places[rank] != places[peer], (rank, peer)
            assert 0 <= tag <= 32767, "the least tag that every MPI must offer"
            assert size > 0
            streams[kind, rank, peer, tag].append(size)
    assert streams
    for (kind, rank, peer, tag), sizes in streams.items():
        if kind == "send":
            taken = streams["receive", peer, rank, tag]
            assert taken[: len(sizes)] == sizes, (rank, peer, tag)


def messages(recorder) -> list[Entry]:
    """Without the receives of frames, which are posted once frames have arrived."""
    return [entry for entry in recorder.entries() if entry[0] == "send" or entry[2] != FRAMES]


def groups(rank: int, n: int, device: str, **how) -> None:
    """Of two nodes with ranks 0, 1 and 2, 3: groups inside each, and across."""
    recorder = meet(rank, n, device, **how)
    inside = [dist.new_group(members) for members in ([0, 1], [2, 3])]
    dist.barrier()
    before = messages(recorder)
    assert_works(device, inside[rank // 2])
    assert messages(recorder) == before, "a group inside a node uses the engine"
    for members in ([0, 3], [3, 1, 0], [0, 1, 2, 3]):
        group = dist.new_group(members)
        if rank in members:
            before = messages(recorder)
            assert_works(device, group)
            after = messages(recorder)[len(before) :]
            peers = {peer for _, peer, _, _ in after}
            assert peers <= {other for other in members if other // 2 != rank // 2}, peers
            sent, earlier = (
                {tag for kind, _, tag, _ in entries if kind == "send" and tag != FRAMES}
                for entries in (after, before)
            )
            assert sent and not sent & earlier, "another group has sent with the tags of this one"
            dist.destroy_process_group(group)


def frame(channel: int, length: int, *, answer: int = 0, content: torch.Tensor | None = None) -> torch.Tensor:
    """As csrc/pg/transport/control_channel.h has it."""
    head = struct.pack("<IIII", channel, length, answer, 0)
    made = torch.zeros(len(head) + 1024, dtype=torch.uint8)
    made[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    if content is not None:
        made[len(head) :] = content
    return made


def forged(rank: int, n: int, device: str, **how) -> None:
    """Rank 1 announces a long message as if it lay in the envelope, and sends it."""
    engine = meet(rank, n, device, **how)
    received = torch.zeros(1 << 22, dtype=torch.uint8)
    if rank == 0:
        dist.recv(received, 1)
        assert (received == 1).all()
        return
    head = struct.pack("<QQIIII", 1, received.numel(), 0, 0, 0, 1)  # the first message, of uint8, tag 0
    envelope = torch.zeros(1024, dtype=torch.uint8)
    envelope[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    engine.send([frame(ENVELOPES, envelope.numel(), content=envelope)], 0, FRAMES).wait()
    engine.send([torch.ones_like(received)], 0, PAYLOADS).wait()


def test_a_rank_of_another_node_does_not_say_where_a_message_lies(ranks, library):
    with ranks.fresh(2) as team:
        how = {"places": placement("1+1"), "library": library, "store": ranks.source.new_file()}
        team.run(forged, **how)


MALFORMED = {
    "not as long as it must be": frame(ENVELOPES, 1023),
    "too long": frame(ENVELOPES, 1025),
    "an answer of another kind": frame(ENVELOPES, 0, answer=2),
    "of no group": frame((1 << 31) + ENVELOPES, 0),
}


def malformed(rank: int, n: int, device: str, *, what: str, **how) -> None:
    engine = meet(rank, n, device, **how)
    if rank == 1:
        engine.send([MALFORMED[what]], 0, FRAMES).wait()
        listen()
        return
    with pytest.raises(dist.DistBackendError, match=r"rank 1 .* sent a malformed frame: another library"):
        dist.recv(torch.zeros(8), 1)
    tell("failed")


@pytest.mark.parametrize("what", first(list(MALFORMED)))
def test_a_frame_that_no_rank_sends_is_an_error(ranks, library, what):
    with ranks.fresh(2) as team:
        how = {"places": placement("1+1"), "library": library, "store": ranks.source.new_file()}
        team.start(malformed, what=what, **how)
        assert team.hear(0) == "failed"
        end_well(team, "end")


LARGE = 1 << 20
"""Elements of a message that does not fit into its envelope."""


def until_received(engine, tag: int) -> None:
    """Until a receive with this tag has begun."""
    while not any(entry[0] == "receive" and entry[2] == tag for entry in engine.entries()):
        pass


def end_well(team: Team, word: str) -> None:
    """Lets rank 1 go on to its end, and sees all ranks end without an error."""
    team.say(1, word)
    for outcome in team.finish():
        assert not outcome.failed, outcome.traceback or outcome.died


def one_connection(rank: int, n: int, device: str, **how) -> None:
    """Rank 0 ends a group in which it receives from rank 1, while the message is under way."""
    engine = meet(rank, n, device, **how)
    slow, again, other = (dist.new_group(members) for members in ([0, 1], [0, 1], [0, 2]))
    payloads = CHANNELS * n + PAYLOADS  # of the first group that rank 0 has made
    if rank == 1:
        dist.isend(torch.ones(LARGE), 0, group=slow)
        listen()
    elif rank == 2:
        for _ in range(2):
            assert_works(device, other)
    else:
        engine.hold(payloads)
        work = dist.irecv(torch.ones(LARGE), 1, group=slow)
        until_received(engine, payloads)
        slow._get_backend(torch.device(device)).abort()
        with pytest.raises(dist.DistBackendError, match="abort"):
            work.wait()
        assert_works(device, other)
        words = (
            rf"group {again.group_name} has no connection to rank 1 \(pid \d+, host .*\) through "
            rf"recorder any more: group {slow.group_name} ended with a message under way "
            "there, and so broke the connection: destroy all groups and create them again"
        )
        with pytest.raises(dist.DistBackendError, match=words):
            dist.all_reduce(torch.ones(LARGE), group=again)
        assert_works(device, other)
        tell("done")


def test_a_group_that_gives_up_a_message_breaks_only_the_connection_to_that_rank(ranks, library):
    with ranks.fresh(3) as team:
        how = {"places": placement("1+1+1"), "library": library, "store": ranks.source.new_file()}
        team.start(one_connection, **how)
        assert team.hear(0) == "done"
        end_well(team, "done")


def no_thread_for_the_payload(rank: int, n: int, device: str, **how) -> None:
    engine = meet(rank, n, device, **how)
    if rank == 1:
        listen()
        dist.isend(torch.ones(LARGE), 0)  # which may end well: the engine has received it all
        listen()
        return
    # The thread that has received an envelope is free for a moment: for the payload, or the next envelope.
    works = [dist.irecv(torch.zeros(LARGE), 1) for _ in range(2)]
    limits.without_threads()
    tell("receives")
    with pytest.raises(dist.DistBackendError, match="cannot start the thread that waits for messages"):
        for work in works:
            work.wait()
    assert engine.open(PAYLOADS) == 0, "the engine still has the memory of an operation that has ended"
    tell("failed")


def test_a_message_that_no_thread_can_wait_for_is_given_up(ranks, library):
    with ranks.fresh(2) as team:
        how = {"places": placement("1+1"), "library": library, "store": ranks.source.new_file()}
        team.start(no_thread_for_the_payload, **how)
        assert team.hear(0) == "receives"
        team.say(1, "send")
        assert team.hear(0) == "failed"
        end_well(team, "end")


class Memory(bytearray):
    """Memory that says how long it lives."""


def stubborn(rank: int, n: int, device: str, **how) -> None:
    """Rank 0 gives up a receive, but the engine does not end it."""
    engine = meet(rank, n, device, **how)
    if rank == 1:
        dist.isend(torch.ones(LARGE // 4), 0)
        listen()
        return
    engine.hold(PAYLOADS)
    memory = Memory(LARGE)
    lives = weakref.ref(memory)
    work = dist.irecv(torch.frombuffer(memory, dtype=torch.uint8).view(torch.float32), 1)
    del memory
    until_received(engine, PAYLOADS)
    engine.be_stubborn()
    dist.group.WORLD._get_backend(torch.device(device)).abort()
    with pytest.raises(dist.DistBackendError, match="abort"):
        work.wait()
    del work
    dist.destroy_process_group()
    gc.collect()
    assert lives() is not None
    tell("done")


@pytest.mark.full  # it waits for the engine for 20 seconds
def test_memory_stays_if_an_engine_does_not_end_a_message_at_its_abort(ranks, library):
    with ranks.fresh(2) as team:
        how = {"places": placement("1+1"), "library": library, "store": ranks.source.new_file()}
        team.start(stubborn, **how)
        assert team.hear(0) == "done"
        end_well(team, "done")
        said = team.members[0].output()
    assert "recorder has not ended a message with rank 1 for 10000 ms after its abort" in said
    assert "stays allocated until process" in said


@pytest.mark.parametrize("device", DEVICES)
def test_groups_share_the_engine_and_those_inside_a_node_do_not_use_it(ranks, library, device):
    with ranks.fresh(4) as team:
        how = {"places": placement("2+2"), "library": library, "store": ranks.source.new_file()}
        team.run(groups, device, **how)
