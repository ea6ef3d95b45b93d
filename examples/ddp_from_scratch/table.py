"""How fast each step of this lesson trains, compared with PyTorch's own DistributedDataParallel.

    python examples/ddp_from_scratch/table.py
    python examples/ddp_from_scratch/table.py --ranks 4 --rounds 30 --bucket-cap-mb 0.05

Starts the ranks and trains the network of examples/ddp_digits.py on handwritten digits, in samples/s, with
occl on the device `dev` and on CPU tensors, and with Gloo on CPU tensors. PyTorch's DDP gets buckets of the
same size. In each round every contender trains for a few steps, one after the other in an order that changes;
the table shows the median round. The last column compares each round with PyTorch's in the same round, so
that other load on the machine matters little.

All contenders must train the same: if the final parameters differ between the contenders of one backend, or
between ranks, the run ends with an error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_occl  # noqa: F401  (makes the device)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bucketed import BucketedDDP
from ddp_digits import load, make_network, positive
from naive import NaiveDDP
from overlapped import OverlappedDDP
from sampler import ShardedSampler

VERSIONS: dict[str, Callable[[nn.Module, dist.ProcessGroup, float], nn.Module]] = {
    "naive": lambda module, group, cap: NaiveDDP(module, group),
    "bucketed": BucketedDDP,
    "overlapped": OverlappedDDP,
    "PyTorch's DDP": lambda module, group, cap: DistributedDataParallel(
        module, process_group=group, bucket_cap_mb=cap, gradient_as_bucket_view=True
    ),
}
BACKENDS = {"occl, dev": ("occl", "dev"), "occl, CPU": ("occl", "cpu"), "Gloo, CPU": ("gloo", "cpu")}


class Contender:
    """One version with one backend: a replica, its optimizer and its share of the data."""

    def __init__(self, version: str, backend: str, group: dist.ProcessGroup, options: argparse.Namespace):
        self.version, self.backend, self.group = version, backend, group
        kind = BACKENDS[backend][1]
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.device = (
            torch.device(kind, rank % torch.dev.device_count()) if kind == "dev" else torch.device(kind)
        )
        torch.manual_seed(0)
        self.model = VERSIONS[version](make_network().to(self.device), group, options.bucket_cap_mb)
        self.after_backward = getattr(self.model, "average_gradients", lambda: None)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.07, momentum=0.9)
        data = load()[0]
        self.samplers = ShardedSampler(data, ranks, rank, drop_last=True)
        self.images, self.labels = (tensor.to(self.device) for tensor in data.tensors)
        self.share = options.batch_size // ranks
        self.batches: list[torch.Tensor] = []
        self.epoch = 0

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.batches:
            self.samplers.set_epoch(self.epoch)
            self.epoch += 1
            indices = torch.tensor(list(self.samplers)).to(self.device)
            self.batches = [part for part in indices.split(self.share) if len(part) == self.share][::-1]
        indices = self.batches.pop()
        return self.images[indices], self.labels[indices]

    def train(self, steps: int) -> float:
        """Seconds for ``steps`` steps, on the slowest rank."""
        batches = [self.next_batch() for _ in range(steps)]
        dist.barrier(self.group)
        started = time.perf_counter()
        for images, labels in batches:
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.after_backward()
            self.optimizer.step()
        seconds = torch.tensor(time.perf_counter() - started)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()

    def parameters(self) -> torch.Tensor:
        """All parameters as one flat tensor."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().cpu()


def check(contenders: list[Contender]) -> None:
    """All versions of a backend have trained the same, to the bit, on every rank.

    (Gloo adds up in an order that depends on the size of the message. With three ranks or more each version
    therefore rounds differently.)
    """
    for contender in contenders:
        same_backend = [c for c in contenders if c.backend == contender.backend]
        exact = BACKENDS[contender.backend][0] == "occl" or dist.get_world_size() <= 2
        mine, reference = contender.parameters(), same_backend[-1].parameters()
        everywhere = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, mine)
        name = f"{contender.version} with {contender.backend}"
        if not all(torch.equal(theirs, mine) for theirs in everywhere):
            raise RuntimeError(f"{name}: the parameters differ between ranks")
        if not (torch.equal if exact else torch.allclose)(mine, reference):
            raise RuntimeError(f"{name}: the parameters differ from those of {same_backend[-1].version}")


class Row(NamedTuple):
    backend: str
    version: str
    rates: list[float]
    """Samples a second, of each round."""


def measure(options: argparse.Namespace) -> list[Row]:
    groups = {backend: dist.new_group(backend=BACKENDS[backend][0]) for backend in options.backends}
    contenders = [Contender(v, b, groups[b], options) for b in options.backends for v in VERSIONS]
    times: dict[Contender, list[float]] = {contender: [] for contender in contenders}
    for contender in contenders:
        contender.train(options.steps)  # DDP rebuilds its buckets after the first step
    for turn in range(options.rounds):
        start = turn % len(contenders)
        for contender in contenders[start:] + contenders[:start]:
            times[contender].append(contender.train(options.steps))
    check(contenders)
    samples = options.steps * options.batch_size
    return [Row(c.backend, c.version, [samples / seconds for seconds in times[c]]) for c in contenders]


def table(rows: list[Row]) -> str:
    lines = [f"{'backend':<11}{'version':<15}{'samples/s':>10}{'of PyTorch DDP':>16}"]
    for row in rows:
        (reference,) = [r.rates for r in rows if r.backend == row.backend and r.version == "PyTorch's DDP"]
        ratio = statistics.median(a / b for a, b in zip(row.rates, reference, strict=True))
        lines.append(f"{row.backend:<11}{row.version:<15}{statistics.median(row.rates):10.0f}{ratio:16.1%}")
    return "\n".join(lines)


def run(rank: int, options: argparse.Namespace, store: str) -> None:
    """The life of one rank."""
    torch.set_num_threads(1)  # there may be no more cores than ranks
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    rows = measure(options)
    if rank == 0:
        print(table(rows))
        if options.json:
            settings = {"ranks": options.ranks, "batch_size": options.batch_size, "steps": options.steps}
            content = settings | {"bucket_cap_mb": options.bucket_cap_mb, "rows": [r._asdict() for r in rows]}
            options.json.write_text(json.dumps(content, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--rounds", type=positive, default=20)
    parser.add_argument(
        "--steps", type=positive, default=22, help="of each contender in a round; 22 are an epoch"
    )
    parser.add_argument("--batch-size", type=positive, default=64, help="samples a step, over all ranks")
    parser.add_argument("--bucket-cap-mb", type=float, default=0.25, help="the gradients are 0.6 MB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds to FILE")
    options = parser.parse_args()
    samples = len(load()[0]) // options.ranks * options.ranks
    if options.batch_size > samples:
        parser.error(f"--batch-size {options.batch_size}: there are {samples} samples")
    if options.batch_size % options.ranks:
        parser.error(f"--batch-size {options.batch_size} does not divide into {options.ranks} equal shares")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(options, str(Path(folder, "store"))), nprocs=options.ranks)


if __name__ == "__main__":
    main()
