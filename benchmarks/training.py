"""Times whole training steps with occl, with Gloo, and without communication, in turns.

    python benchmarks/training.py                              # every model, about five minutes
    python benchmarks/training.py --quick --json training.json
    python benchmarks/training.py --models mlp_ddp --contenders occl-dev none-dev

    digits_ddp    the network of examples/ddp_digits.py, 150 000 parameters, batches of 32 a rank
    mlp_ddp       30 million parameters, batches of 64 a rank
    gpt_ddp       a small GPT, 3.3 million parameters, 8 sequences of 64 bytes a rank
    gpt_fsdp      the same under FSDP2: each block's parameters are gathered and its gradients scattered

All contenders live in the same processes, each with a model and a group of its own, and take turns in
rotating order. `none-dev`, `none-cpu-shared` and `none-cpu` are the same steps of ranks that do not know of
each other. A timed section is some steps; its time is that of the slowest rank. The data are random: a step
costs the same.
"""

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from occl.bench import contenders
from occl.bench.contenders import Contender, make_groups
from occl.bench.gate import Gate
from occl.bench.launch import run_ranks
from occl.bench.noise import judge, verdict
from occl.memory import MIN_BYTES

sys.path.append(str(Path(__file__).parents[1] / "examples"))

CONTENDERS = {
    name: contenders.CONTENDERS[name] for name in ("occl-dev", "occl-cpu-shared", "occl-cpu", "gloo")
}
ALONE = {
    contender.name: contender
    for contender in [
        Contender("none-dev", "", "dev", moves_data=False),
        Contender("none-cpu-shared", "", "cpu", moves_data=False, shared=True),
        Contender("none-cpu", "", "cpu", moves_data=False),
    ]
}
"""Those without a backend."""
SECTION = 0.25
"""Seconds that the steps of one timed section take, about; one step at least."""
WARM_STEPS = 3
LEAST_ROUNDS = 3
SEQUENCE, VOCABULARY = 64, 256


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a norm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """Logits of the next byte: int64[batch, length] to float32[batch * length, vocabulary]."""

    def __init__(self, width: int = 256, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(SEQUENCE, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", torch.full((SEQUENCE, SEQUENCE), -math.inf).triu(1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x).flatten(0, 1))


def make_digits() -> nn.Module:
    from ddp_digits import make_network  # of the examples; needs the extra ``demo``

    return make_network()


def make_mlp() -> nn.Module:
    """30 million parameters."""
    return nn.Sequential(
        nn.Linear(1024, 3072), nn.GELU(), nn.Linear(3072, 5632), nn.GELU(), nn.Linear(5632, 1664),
        nn.GELU(), nn.Linear(1664, 10),
    )  # fmt: skip


def images(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 1, 8, 8), torch.randint(10, (batch,))


def vectors(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 1024), torch.randint(10, (batch,))


def text(batch: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCABULARY, (batch, SEQUENCE + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


@dataclass(frozen=True)
class Model:
    """What is trained, on what, and how it is spread over the ranks."""

    make: Callable[[], nn.Module]
    data: Callable[[int], tuple[Tensor, Tensor]]
    batch: int
    """Samples of each rank in a step."""
    sharded: bool = False


MODELS = {
    "digits_ddp": Model(make_digits, images, 32),
    "mlp_ddp": Model(make_mlp, vectors, 64),
    "gpt_ddp": Model(GPT, text, 8),
    "gpt_fsdp": Model(GPT, text, 8, sharded=True),
}


def spread(model: Model, network: nn.Module, group: dist.ProcessGroup, device: torch.device) -> nn.Module:
    """DDP or FSDP2 over the group's ranks."""
    if not model.sharded:
        return DistributedDataParallel(network, process_group=group)
    mesh = DeviceMesh.from_group(group, device.type)
    for block in network.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(network, mesh=mesh)


class Trainer:
    """One model of one contender: a call is a step."""

    def __init__(self, model: Model, contender: str, group: dist.ProcessGroup | None, rank: int) -> None:
        self._contender = (CONTENDERS | ALONE)[contender]
        device = self._contender.device(rank)
        if device.type == "dev":
            torch.dev.set_device(device)  # where FSDP2 puts what it makes
        with self._contender.memory(MIN_BYTES):
            torch.manual_seed(0)
            network = model.make().to(device)
            self.parameters = sum(p.numel() for p in network.parameters())
            self._network = spread(model, network, group, device) if group else network
            self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.01)
            torch.manual_seed(rank + 1)
            self._inputs, self._targets = (tensor.to(device) for tensor in model.data(model.batch))
        self.loss = math.nan

    def __call__(self, steps: int) -> None:
        with self._contender.memory(MIN_BYTES):
            for _ in range(steps):
                self._optimizer.zero_grad()
                loss = functional.cross_entropy(self._network(self._inputs), self._targets)
                loss.backward()
                self._optimizer.step()
        self.loss = loss.item()


def over_ranks(values: list[float], op: dist.ReduceOp) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op)
    return tensor.tolist()


def measure(
    model: Model, groups: dict[str, dist.ProcessGroup | None], gate: Gate, budget: float
) -> dict[str, dict]:
    """For each contender samples/s, with quartiles over rounds. The same on every rank.

    Raises RuntimeError if contenders that communicate do not train the same.
    """
    ranks = dist.get_world_size()
    trainers = {name: Trainer(model, name, group, dist.get_rank()) for name, group in groups.items()}
    names = list(trainers)
    steps: dict[str, int] = {}
    for name, trainer in trainers.items():
        trainer(WARM_STEPS - 1)
        gate.wait()
        started = time.perf_counter()
        trainer(1)
        (seconds,) = over_ranks([time.perf_counter() - started], dist.ReduceOp.MAX)
        steps[name] = max(1, round(SECTION / seconds))
    losses = over_ranks([trainer.loss for trainer in trainers.values()], dist.ReduceOp.SUM)
    together = [loss for name, loss in zip(names, losses, strict=True) if groups[name]]
    if together and max(together) - min(together) > 0.01 * abs(max(together)):
        raise RuntimeError(
            f"contenders do not train the same: losses {dict(zip(names, losses, strict=True))}"
        )

    seconds_of: dict[str, list[float]] = {name: [] for name in names}
    began = time.perf_counter()
    for round_ in range(1000):
        took = dict.fromkeys(names, 0.0)
        for turn in range(len(names)):
            name = names[(turn + round_) % len(names)]
            gate.wait()
            started = time.perf_counter()
            trainers[name](steps[name])
            took[name] = (time.perf_counter() - started) / steps[name]
        *slowest, elapsed = over_ranks([*took.values(), time.perf_counter() - began], dist.ReduceOp.MAX)
        for name, seconds in zip(names, slowest, strict=True):
            seconds_of[name].append(seconds)
        if round_ + 1 >= LEAST_ROUNDS and elapsed > budget:
            break
    results = {}
    for name, values in seconds_of.items():
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        results[name] = {
            "parameters": trainers[name].parameters,
            "steps": steps[name],
            "rounds": len(values),
            "step_ms": median * 1e3,
            "step_ms_lower": lower * 1e3,
            "step_ms_upper": upper * 1e3,
            "samples_per_second": ranks * model.batch / median,
        }
    return results


def add_shares(results: dict[str, dict]) -> None:
    """The share of a step that communication costs, by the same step without it."""
    for name in results.keys() & CONTENDERS.keys():
        with_it = CONTENDERS[name]
        for alone in ALONE.values():
            if (alone.device_type, alone.shared) == (
                with_it.device_type,
                with_it.shared,
            ) and alone.name in results:
                share = 1 - results[alone.name]["step_ms"] / results[name]["step_ms"]
                results[name]["communication_share"] = share


def work(rank: int, options: argparse.Namespace, folder: str, counters) -> None:
    """What each rank does."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "store")), options.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    made = make_groups(name for name in options.contenders if name in CONTENDERS)
    groups = {name: made.get(name) for name in options.contenders}
    gate = Gate(counters, rank)
    everything = {}
    if rank == 0:
        print(
            f"{'':<12}{'':<16}{'samples/s':>12}{'step ms':>11}{'spread':>9}{'communication':>15}", flush=True
        )
    for name in options.models:
        results = measure(MODELS[name], groups, gate, options.seconds / len(options.models))
        add_shares(results)
        everything[name] = results
        gc.collect()  # models go before the next are made
        for contender, row in results.items() if rank == 0 else ():
            spread_ = (row["step_ms_upper"] - row["step_ms_lower"]) / row["step_ms"] / 2
            share = f"{row['communication_share']:.1%}" if "communication_share" in row else "-"
            shown = name if contender == options.contenders[0] else ""
            print(
                f"{shown:<12}{contender:<16}{row['samples_per_second']:>12.0f}{row['step_ms']:>11.2f}"
                f"{f'±{spread_:.0%}':>9}{share:>15}",
                flush=True,
            )
    if rank == 0:
        Path(folder, "results").write_text(json.dumps(everything))
    gc.collect()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=CONTENDERS | ALONE,
        default=list(CONTENDERS | ALONE),
        metavar="NAME",
    )
    parser.add_argument("--seconds", type=float, help="time to spend measuring (default: 240)")
    parser.add_argument("--quick", action="store_true", help="a few steps of each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine and results to FILE")
    options = parser.parse_args()
    options.seconds = options.seconds or (20.0 if options.quick else 240.0)
    about, written, shares = run_ranks(work, options, "float32, one thread each")
    results = json.loads(written)
    noise = judge([], *shares)
    print(
        "\nstep: median until the slowest rank is done. communication: the share of it that the same step\n"
        "without communication leaves over; negative where that is within the noise.\n" + verdict(noise)
    )
    if options.json:
        content = {"machine": about, "ranks": options.ranks, "noise": noise, "results": results}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
