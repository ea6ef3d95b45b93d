"""A walk through what torch.distributed does when a script says "all_reduce", with everything printed.

    python examples/under_the_hood.py                     # all chapters, in a few minutes at most
    python examples/under_the_hood.py --chapters overlap
    python examples/under_the_hood.py --chapters nodes --epochs 20

Chapters: `stores`, how processes find each other; `groups`, which ranks take part and which backend moves
which tensors; `work`, what an operation is while it is in flight; `overlap`, computing and communicating
at the same time, as a picture; `nodes`, training on two hosts of two ranks each.

There is one machine to run this on, so four processes play two hosts: ranks 0 and 1 say that they are on node
"a", ranks 2 and 3 on node "b" (OCCL_NODE), and torch_occl treats them as if they shared no memory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ddp_digits import load, make_network, positive
from replicas_in_subprocesses import put_gradients_into
from torch import nn

RANKS, PER_NODE = 4, 2
WIDTH = 72
"""Columns of the picture."""


def title(text: str) -> None:
    """Prints a title, on rank 0 only."""
    say(f"\n---- {text} " + "-" * (WIDTH - len(text)))


def say(text: str, rank: int = 0) -> None:
    if dist.get_rank() == rank:
        print(text, flush=True)


def in_turn(text: str, ranks: range) -> None:
    """Prints a line from each rank, in rank order."""
    for rank in ranks:
        say(f"  rank {rank}: {text}", rank)
        dist.barrier()


# ---- stores ---------------------------------------------------------------------------------------------


def stores(options: argparse.Namespace) -> None:
    title("stores: a dictionary that all processes see")
    rank = dist.get_rank()
    say("FileStore: all that processes must have in common is the name of a file.")
    file_store = dist.FileStore(str(Path(options.folder, "chapter")), RANKS)
    arrived = file_store.add("arrived", 1)  # a counter: each process gets a different number
    in_turn(f"arrived as number {arrived}", range(RANKS))

    say("TCPStore: one process serves, the others must know its address. Here the FileStore tells them.")
    if rank == 0:
        tcp_store = dist.TCPStore("127.0.0.1", 0, RANKS, is_master=True, wait_for_workers=False)
        file_store.set("port", str(tcp_store.port))
    else:
        port = int(file_store.get("port"))  # get waits until the key is set
        tcp_store = dist.TCPStore("127.0.0.1", port, RANKS, is_master=False)
    tcp_store.set(f"greeting/{rank}", f"hello from pid {os.getpid()}")
    tcp_store.wait([f"greeting/{i}" for i in range(RANKS)])
    say(f"  rank 0 reads rank 3's value: {tcp_store.get('greeting/3').decode()!r}")
    with contextlib.suppress(dist.DistStoreError):
        if rank == 0:
            tcp_store.wait(["never set"], timedelta(milliseconds=50))
            raise AssertionError("waited for nothing")
    say("  waiting for a key that is never set ends with an error, after 50 ms here")

    say("A backend meets its peers in such a store. This is all that two ranks of occl tell each other:")
    if rank < PER_NODE:
        backend = make_backend(dist.PrefixStore("chapter", tcp_store), rank)
        if rank == 0:
            for key in sorted(key for key in tcp_store.list_keys() if "occl" in key):
                print(f"  {key!r}: {len(tcp_store.get(key.removeprefix('/')))} bytes")
        del backend
    say("(each rank's address and a secret; memory is then passed from process to process, not by the store)")
    dist.barrier()


def make_backend(store: dist.Store, rank: int) -> dist.Backend:
    """What init_process_group and new_group finally do for each backend."""
    import torch_occl

    return torch_occl.ProcessGroupOCCL(store, rank, PER_NODE, torch_occl.ProcessGroupOCCL.Options())


# ---- groups ---------------------------------------------------------------------------------------------


def groups(options: argparse.Namespace) -> None:
    title("groups: some ranks, and a backend for each kind of device")
    mine = node_group("cpu:gloo,dev:occl")
    for kind in ("cpu", "dev"):
        name = type(mine._get_backend(torch.device(kind))).__name__
        say(f"{kind} tensors of this group are moved by {name}")
    in_turn(
        f"is rank {dist.get_rank(mine)} of {dist.get_world_size(mine)} in the group of global ranks "
        f"{dist.get_process_group_ranks(mine)}, on node {os.environ['OCCL_NODE']!r}",
        range(RANKS),
    )
    t = torch.full((2,), float(dist.get_rank()), device=own_device())
    dist.all_reduce(t, group=mine)
    in_turn(f"the sum over its group is {t.tolist()}", range(RANKS))
    group, why = spanning_group()
    say("A group of occl over both nodes: " + ("there is one" if group else f"not offered yet:\n  {why}"))
    dist.barrier()


def own_device() -> torch.device:
    return torch.device("dev", dist.get_rank() % torch.dev.device_count())


def node_group(backend: str) -> dist.ProcessGroup:
    """The ranks of this rank's node. Every rank makes both groups, in the same order."""
    both = [dist.new_group(list(range(i, i + PER_NODE)), backend=backend) for i in range(0, RANKS, PER_NODE)]
    return both[dist.get_rank() // PER_NODE]


def spanning_group() -> tuple[dist.ProcessGroup | None, str]:
    """A group of occl over all ranks; None and the reason, if some ranks share no memory."""
    try:
        return dist.new_group(backend="dev:occl"), ""
    except NotImplementedError as error:
        return None, str(error)


# ---- work -----------------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    title("work: an operation on its way")
    group, other = node_group("occl"), node_group("gloo")
    if dist.get_rank() < PER_NODE:
        follow_one(group, other)
        lose_one(group, other)
    dist.barrier()


def follow_one(group: dist.ProcessGroup, other: dist.ProcessGroup) -> None:
    rank = dist.get_rank()
    t = torch.full((1 << 20,), 1.0 + rank, device=own_device())
    if rank == 1:
        dist.barrier(other)  # comes late, so that rank 0 sees an operation that cannot be complete
    handle = dist.all_reduce(t, group=group, async_op=True)
    say(f"all_reduce(async_op=True) returns a {type(handle).__name__}; completed: {handle.is_completed()}")
    if rank == 0:
        dist.barrier(other)
    callback = handle.get_future().then(lambda future: "its callback has run")
    handle.wait()
    say(f"after wait(): completed: {handle.is_completed()}, and the sum is {t[0].item()}")
    say(f"result() gives the tensors of the operation: shapes {[tuple(r.shape) for r in handle.result()]}")
    say(f"get_future() is a future to hang callbacks on: {callback.wait()}")


def lose_one(group: dist.ProcessGroup, other: dist.ProcessGroup) -> None:
    """Rank 1 does not make the call, and finally aborts the group."""
    rank, device = dist.get_rank(), own_device()
    if rank == 0:
        handle = dist.all_reduce(torch.ones(1 << 20, device=device), group=group, async_op=True)
        say("An operation that rank 1 does not call: wait with a timeout of 100 ms says")
        say(f"  {error_of(lambda: handle.wait(timedelta(milliseconds=100)))}")
    dist.barrier(other)
    if rank == 1:
        group._get_backend(device).abort()
    dist.barrier(other)
    if rank == 0:
        say("Rank 1 calls abort() on its end of the group, and a rank that waits on the other end gets")
        say(f"  {error_of(handle.wait)}")


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except dist.DistBackendError as error:
        return str(error).splitlines()[0]
    raise AssertionError("this was expected to fail")


# ---- overlap --------------------------------------------------------------------------------------------


class Recorder:
    """What happened on a stream from when to when, in milliseconds since the start."""

    def __init__(self) -> None:
        self.start = torch.dev.Event(enable_timing=True)
        self.start.record(torch.dev.default_stream())
        self.spans: dict[str, list[tuple[torch.Event, torch.Event]]] = {}

    @contextlib.contextmanager
    def span(self, name: str, stream: torch.dev.Stream):
        begin, end = torch.dev.Event(enable_timing=True), torch.dev.Event(enable_timing=True)
        begin.record(stream)
        yield
        end.record(stream)
        self.spans.setdefault(name, []).append((begin, end))

    def milliseconds(self) -> dict[str, list[tuple[float, float]]]:
        return {
            name: [(self.start.elapsed_time(a), self.start.elapsed_time(b)) for a, b in pairs]
            for name, pairs in self.spans.items()
        }


def picture(spans: dict[str, list[tuple[float, float]]], total: float) -> str:
    """A line for each name, whose width is ``total`` milliseconds."""
    lines = []
    for name, pairs in spans.items():
        row = [" "] * WIDTH
        for number, (begin, end) in enumerate(pairs):
            first = min(int(begin / total * WIDTH), WIDTH - 1)
            last = min(max(int(end / total * WIDTH), first + 1), WIDTH)
            row[first:last] = str(number) * (last - first)
        lines.append(f"  {name:<12}|{''.join(row)}|")
    return "\n".join(lines)


def overlap(options: argparse.Namespace) -> None:
    title("overlap: communicating while computing")
    group, other = node_group("occl"), node_group("gloo")
    if dist.get_rank() < PER_NODE:
        layers(group, other, True)  # a warm-up without measuring, so that memory and threads exist
        alone, together = layers(group, other, False), layers(group, other, True)
        total = max(end for spans in (alone, together) for pairs in spans.values() for _, end in pairs)
        say(f"Five layers; the gradients of each are added up over both ranks. A row is {total:.0f} ms.")
        say("Waiting for each before the next layer is computed:")
        say(picture(alone, total))
        say("Queued on a side stream, and waited for at the end:")
        say(picture(together, total))
        say("(Where there is not a core for each thread, communicating takes longer and less is won.)")
    dist.barrier()


def layers(group: dist.ProcessGroup, other: dist.ProcessGroup, overlapped: bool) -> dict:
    """Computes and communicates; returns what happened when."""
    device = own_device()
    a = torch.randn(700, 700, device=device)
    gradients = [torch.ones(2 << 20, device=device) for _ in range(5)]
    host, side = torch.dev.default_stream(device), torch.dev.Stream(device)
    dist.barrier(other)
    recorder = Recorder()
    for gradient in gradients:
        with recorder.span("computing", host):
            a @ a
        with torch.dev.stream(side), recorder.span("on its way", side):
            # The wait is the stream's: it goes on when the operation is complete, and the host does not wait.
            dist.all_reduce(gradient, group=group, async_op=True).wait()
        if not overlapped:
            side.synchronize()
    side.synchronize()
    return recorder.milliseconds()


# ---- nodes ----------------------------------------------------------------------------------------------


def nodes(options: argparse.Namespace) -> None:
    title("nodes: two hosts of two ranks train together")
    say("Within a node occl moves the gradients. Between the nodes Gloo does, and each rank sends only half:")
    say("reduce-scatter within the node, all-reduce of the halves between nodes, all-gather within.")
    node, spanning = node_group("occl"), spanning_group()[0]
    peers = [dist.new_group(list(range(i, RANKS, PER_NODE)), backend="gloo") for i in range(PER_NODE)]
    between = peers[dist.get_rank() % PER_NODE]

    def mean_in_node(flat: torch.Tensor) -> None:
        dist.all_reduce(flat, dist.ReduceOp.AVG, group=node)

    def mean_between_nodes(flat: torch.Tensor) -> None:
        half = flat.new_empty(len(flat) // PER_NODE)
        halves = list(flat.chunk(PER_NODE))
        dist.reduce_scatter(half, halves, dist.ReduceOp.AVG, group=node)
        on_host = torch.dev.as_cpu(half)  # the same memory
        dist.all_reduce(on_host, group=between)
        on_host.div_(RANKS // PER_NODE)
        dist.all_gather(halves, half, group=node)

    def mean_over_all(flat: torch.Tensor) -> None:
        dist.all_reduce(flat, dist.ReduceOp.AVG, group=spanning)

    means = {1: lambda flat: None, 2: mean_in_node, 4: mean_over_all if spanning else mean_between_nodes}
    say(f"\n  {'ranks':<6}{'s/epoch':>9}{'samples/s':>11}{'test accuracy':>15}")
    for ranks, mean in means.items():
        if dist.get_rank() < ranks:
            seconds, samples, network = train(ranks, mean, options)
            epoch = statistics.median(seconds)
            images, labels = (tensor.to(own_device()) for tensor in load()[1].tensors)
            with torch.no_grad():
                accuracy = (network(images).argmax(dim=1) == labels).float().mean().item()
            say(f"  {ranks:<6}{epoch:9.3f}{samples / epoch:11.0f}{accuracy:15.2%}")
        dist.barrier()


def train(
    ranks: int, mean: Callable[[torch.Tensor], None], options: argparse.Namespace
) -> tuple[list[float], int, nn.Module]:
    """Seconds of each epoch, samples of an epoch, and the network."""
    rank, device = dist.get_rank(), own_device()
    torch.manual_seed(0)
    network = make_network().to(device)
    count = sum(p.numel() for p in network.parameters())
    flat = torch.zeros(-(-count // PER_NODE) * PER_NODE, device=device)  # divides into equal parts
    put_gradients_into(flat[:count], network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.07, momentum=0.9)
    images, labels = (tensor.to(device) for tensor in load()[0].tensors)
    share, seconds = options.batch_size // ranks, []
    for epoch in range(options.epochs):
        started = time.perf_counter()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        batches = [b for b in order[rank::ranks].to(device).split(share) if len(b) == share]
        for batch in batches:
            flat.zero_()
            loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
            loss.backward()
            mean(flat)
            optimizer.step()
        seconds.append(time.perf_counter() - started)
    return seconds, len(batches) * options.batch_size, network


# ---- all of it ------------------------------------------------------------------------------------------

CHAPTERS = {"stores": stores, "groups": groups, "work": work, "overlap": overlap, "nodes": nodes}


def run(rank: int, options: argparse.Namespace) -> None:
    """The life of one process."""
    os.environ["OCCL_NODE"] = "ab"[rank // PER_NODE]  # read when the first group of occl is made
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{options.folder}/default", rank=rank, world_size=RANKS
    )
    for name in options.chapters:
        CHAPTERS[name](options)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chapters", nargs="+", choices=CHAPTERS, default=list(CHAPTERS))
    parser.add_argument("--epochs", type=positive, default=5, help="of each training in the chapter 'nodes'")
    parser.add_argument("--batch-size", type=positive, default=64, help="samples a step, over all ranks")
    options = parser.parse_args()
    if options.batch_size > (samples := len(load()[0])):
        parser.error(f"--batch-size {options.batch_size}: there are {samples} samples")
    if options.batch_size % RANKS:
        parser.error(f"--batch-size {options.batch_size} does not divide into {RANKS} equal shares")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # errors that this script provokes need no warnings
    with tempfile.TemporaryDirectory() as options.folder:
        mp.spawn(run, args=(options,), nprocs=RANKS)


if __name__ == "__main__":
    main()
