"""Replicas in subprocesses that exchange gradients through shared memory, without any process group.

    python examples/replicas_in_subprocesses.py
    python examples/replicas_in_subprocesses.py --replicas 4 --epochs 5

The parent makes one flat tensor of gradients on `dev` for each child, and torch.multiprocessing passes all of
them to all children. Nothing is copied: all processes map the same memory. The gradients of a child's
parameters are views of its own tensor, so the other children can read what its backward pass writes. A step:

    child 0    [ backward ]  meet  [ mean of the first half of all tensors, into all ]  meet  [ optimizer ]
    child 1    [ backward ]  meet  [ mean of the second half                         ]  meet  [ optimizer ]

A shared-memory all_reduce works the same way inside.

To meet, a child tells the parent that it has arrived, and goes on when the parent says so. Each child has its
own pipe for that and for its reports. A shared queue or barrier would have a lock, and a child that is killed
while it holds the lock stops all others forever. A pipe, in contrast, ends when the child at its other end is
gone, and the parent then stops the others at their next meeting.

Only the parent handles Ctrl-C. It lets all children finish their current step, so that the replicas stay
equal, reads their reports, and waits until they have ended. A second Ctrl-C kills them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.multiprocessing as mp
from ddp_digits import load, make_network, positive
from torch import nn

from torch_occl import replicas

PATIENCE = 120.0
"""After this many seconds without a message from any child, the parent assumes a hang."""


# ---- a child --------------------------------------------------------------------------------------------


class Stopped(Exception):
    """The parent wants this child to end."""


def meet(pipe: Connection) -> None:
    """Returns when all children have called this. Raises Stopped if the parent says so, or is gone."""
    try:
        pipe.send(("arrived",))
        answer = pipe.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit("the parent is gone")
    if answer == "stop":
        raise Stopped


def put_gradients_into(flat: torch.Tensor, network: nn.Module) -> None:
    """From now on the gradients of the network are views of a flat tensor."""
    parameters = list(network.parameters())
    parts = flat.split([p.numel() for p in parameters])
    for p, part in zip(parameters, parts, strict=True):
        p.grad = part.view(p.shape)


def train(rank: int, flats: list[torch.Tensor], pipe: Connection, options: argparse.Namespace) -> nn.Module:
    """Trains one replica, and returns it. After a stop it is trained only in part."""
    device, own, n = flats[rank].device, flats[rank], len(flats)
    torch.manual_seed(options.seed)  # so all replicas begin alike
    network = make_network().to(device)
    put_gradients_into(own, network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.07, momentum=0.9)
    images, labels = (tensor.to(device) for tensor in load()[0].tensors)
    cuts = [len(own) * i // n for i in range(n + 1)]
    mine = [flat[cuts[rank] : cuts[rank + 1]] for flat in flats]
    share = options.batch_size // n
    try:
        for epoch in range(options.epochs):
            generator = torch.Generator().manual_seed(options.seed + epoch)
            order = torch.randperm(len(labels), generator=generator)[rank::n].to(device)
            total = 0.0
            batches = [batch for batch in order.split(share) if len(batch) == share]
            for batch in batches:
                own.zero_()
                loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
                loss.backward()
                meet(pipe)  # all gradients are there
                replicas.all_reduce_p2p(mine, "mean")
                meet(pipe)  # no child writes any more
                optimizer.step()
                total += loss.item()
            pipe.send(("epoch", epoch, total / len(batches)))
    except Stopped:
        pass
    return network


def child(rank: int, flats: list[torch.Tensor], pipe: Connection, options: argparse.Namespace) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the parent before the start
    torch.set_num_threads(1)
    try:
        network = train(rank, flats, pipe, options)
        digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in network.parameters()))
        images, labels = (tensor.to(flats[rank].device) for tensor in load()[1].tensors)
        with torch.no_grad():
            accuracy = (network(images).argmax(dim=1) == labels).float().mean().item()
        pipe.send(("ended", digest.hexdigest(), accuracy))
    except Exception:
        pipe.send(("failed", traceback.format_exc()))
        raise


# ---- the parent -----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Child:
    """What the parent knows about one child."""

    rank: int
    process: Any
    pipe: Connection
    meetings: int = 0
    losses: list[float] = field(default_factory=list)
    result: tuple[str, float] | None = None
    """The hash of its parameters, and its accuracy."""
    failure: str = ""

    def fate(self) -> str:
        """How it ended, for people."""
        name = f"replica {self.rank} (pid {self.process.pid})"
        code = self.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        return f"{name} {how} in step {self.meetings // 2}" + (f":\n{self.failure}" if self.failure else "")


class Interrupt:
    """Notes the first SIGINT; a second one is a KeyboardInterrupt, as usual."""

    def __init__(self) -> None:
        self.seen = threading.Event()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.write(2, b"\nstopping before the next step\n")  # print may be what the signal has interrupted
        self.seen.set()


def start(children: list[Child], options: argparse.Namespace) -> None:
    context = mp.get_context("spawn")
    count = sum(p.numel() for p in make_network().parameters())
    flats = [torch.zeros(count, device=f"dev:{i}") for i in range(options.replicas)]
    # Children inherit the blocked SIGINT, until they can ignore it. The parent gets it afterwards.
    # (Starting Python's resource tracker unblocks it, so that comes first.)
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for rank in range(options.replicas):
            ours, theirs = context.Pipe()
            process = context.Process(target=child, args=(rank, flats, theirs, options))
            process.start()
            theirs.close()  # so that the pipe ends when the child does
            children.append(Child(rank, process, ours))
            print(f"replica {rank}: pid {process.pid} on {flats[rank].device}", flush=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(children: list[Child], interrupt: Interrupt) -> None:
    """Answers the children until all have ended and all their messages have been read."""
    talking = {c.pipe: c for c in children}
    arrived: set[Child] = set()
    died = False
    while talking:
        ready = wait(list(talking), timeout=PATIENCE)
        if not ready:
            late = [c.rank for c in talking.values() if c not in arrived]
            raise TimeoutError(f"nothing was heard of replicas {late} for {PATIENCE:.0f} seconds")
        for pipe in ready:
            c = talking[pipe]
            try:
                kind, *content = pipe.recv()
            except (EOFError, ConnectionResetError):
                c.process.join()
                del talking[pipe]
                arrived.discard(c)
                died |= c.result is None
                continue
            if kind == "arrived":
                arrived.add(c)
                c.meetings += 1
            elif kind == "epoch":
                c.losses.append(content[1])
                report(children)
            elif kind == "ended":
                c.result = content[0], content[1]
            else:
                c.failure = content[0]
        # All children get the same answer at the same meeting. After Ctrl-C they stop at the first meeting of
        # a step, so all have made the same number of steps.
        if arrived and (died or all(c in arrived for c in talking.values())):
            between_steps = all(c.meetings % 2 == 1 for c in arrived)
            answer = "stop" if died or (interrupt.seen.is_set() and between_steps) else "go"
            for c in arrived:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end will be read
                    c.pipe.send(answer)
            arrived.clear()


def report(children: list[Child]) -> None:
    """Prints one line for each epoch that all children have ended."""
    epochs = {len(c.losses) for c in children}
    if len(epochs) == 1:
        mean = sum(c.losses[-1] for c in children) / len(children)
        print(f"epoch {epochs.pop()}: loss {mean:.4f}", flush=True)


def run(options: argparse.Namespace) -> int:
    """Runs parent and children; returns the exit status."""
    interrupt = Interrupt()
    children: list[Child] = []
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        start(children, options)
        serve(children, interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
        for c in children:
            if c.process.is_alive():  # after an error here, or a second Ctrl-C
                c.process.kill()
            c.process.join()
            c.pipe.close()
    if lost := [c for c in children if c.result is None]:
        rest = [c.rank for c in children if c.result is not None]
        ended = f"\nreplicas {rest} have stopped in good order" if rest else ""
        print("\n".join(c.fate() for c in lost) + ended, file=sys.stderr)
        return 1
    hashes = {c.result[0] for c in children if c.result}
    if len(hashes) != 1:
        raise RuntimeError(f"the replicas differ: SHA-256 {sorted(hashes)}")
    accuracy = children[0].result[1] if children[0].result else 0.0
    steps = children[0].meetings // 2
    print(f"{len(children)} replicas are the same after {steps} steps: test accuracy {accuracy:.2%}")
    if options.json:
        losses = [sum(part) / len(part) for part in zip(*(c.losses for c in children), strict=True)]
        results = {"accuracy": accuracy, "steps": steps, "losses": losses, "parameter_hash": hashes.pop()}
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 128 + signal.SIGINT if interrupt.seen.is_set() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=positive, default=2)
    parser.add_argument("--epochs", type=positive, default=20)
    parser.add_argument("--batch-size", type=positive, default=64, help="samples a step, over all replicas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    options = parser.parse_args()
    if options.replicas > torch.dev.device_count():
        parser.error(f"there are {torch.dev.device_count()} devices; OCCL_DEVICE_COUNT sets how many")
    if options.batch_size > (samples := len(load()[0])):
        parser.error(f"--batch-size {options.batch_size}: there are {samples} samples")
    if options.batch_size % options.replicas:
        parser.error(
            f"--batch-size {options.batch_size} does not divide into {options.replicas} equal shares"
        )
    sys.exit(run(options))


if __name__ == "__main__":
    main()
