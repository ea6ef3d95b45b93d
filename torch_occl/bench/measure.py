"""Times one operation of one size with all contenders in turn, checking every result.

Every timed call works on data of its own, written before: a timed section is one call for each of several
buffers, and afterwards all results are compared with the right ones. Small calls get many buffers, so that
the clock and the start weigh little; large calls get one. Writing and checking much data drives the code out
of the caches: an untimed call of one element brings it back before each timed section. The contenders take
turns, in rotating order, so that a slow moment of the machine hits all alike.
"""

import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from torch_occl.bench.contenders import CONTENDERS
from torch_occl.bench.gate import Gate
from torch_occl.bench.operations import STALE, Call, Operation

ITEM = 4
"""Bytes of a float32."""
MOST_CALLS = 64
"""Buffers, and so calls in one timed section, at the most."""
BUFFERS_BYTES = 4 << 20
"""Bytes of all buffers of small calls together: they stay in the caches, where fresh gradients are too."""
LONG_ENOUGH = 1e-3
"""Seconds of a timed section beyond which more calls make it no more exact."""
FEWEST_ROUNDS, MOST_ROUNDS = 3, 300


class WrongResult(Exception):
    """A backend gave something else than the right result."""


@dataclass
class Samples:
    """What one contender took for one operation of one size."""

    operation: str
    bytes: int
    contender: str
    calls: int = 0
    """Calls in each timed section."""
    seconds: list[float] = field(default_factory=list)
    """Per call, for the slowest rank; one value for each timed section."""


class Arena:
    """The tensors of one contender and the calls on them."""

    def __init__(
        self, operation: Operation, contender: str, group: dist.ProcessGroup, whole: int, calls: int
    ):
        self.name = contender
        self.checked = CONTENDERS[contender].moves_data
        self._operation = operation
        device = CONTENDERS[contender].device(group.rank())
        split = whole // group.size()
        self._input = torch.empty(calls, split if operation.input_is_part else whole, device=device)
        self._output = self._input
        if not operation.in_place:
            self._output = torch.empty(calls, split if operation.output_is_part else whole, device=device)
        self.calls: list[Call] = [
            operation.bind(x, y, group) for x, y in zip(self._input, self._output, strict=True)
        ]
        least = [
            torch.zeros(1 if is_part else group.size(), device=device)
            for is_part in (operation.input_is_part, operation.output_is_part)
        ]
        self.warm = operation.bind(*least, group)

    def refill(self, fresh: Tensor) -> None:
        """Writes the inputs, and over the outputs of the last time."""
        self._output.fill_(STALE)
        self._input.copy_(fresh)

    def check(self, expected: Tensor, calls: int) -> None:
        """Raises WrongResult unless the first ``calls`` results are what they must be."""
        found, expected = self._output[:calls].cpu(), expected[:calls]
        if not torch.equal(found, expected):
            call, element = (found != expected).nonzero()[0].tolist()
            raise WrongResult(
                f"{self.name} gave a wrong result on rank {dist.get_rank()}: element {element} of "
                f"{found.shape[1]} after {self._operation.name} is {found[call, element]}, "
                f"and should be {expected[call, element]}"
            )


class Data:
    """The inputs of every rank in every round: small integers, whose sums are exact in any order."""

    def __init__(self, elements: int, calls: int) -> None:
        self._pattern = torch.arange(elements, dtype=torch.float32) % 1021
        self._calls = torch.arange(calls, dtype=torch.float32).unsqueeze(1)

    def __call__(self, rank: int, round_: int) -> Tensor:
        """float32[calls, elements]: different for each rank, round, call and (nearly) each element."""
        return self._pattern + (self._calls * 61 + round_ * 3967 + rank * 7) % 8191


def time_calls(gate: Gate, warm: Call, calls: list[Call]) -> float:
    """Seconds from the common start until this rank has made all the calls."""
    gate.wait()  # the wait for the others may be long: warm up after it
    warm()
    gate.wait()
    started = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - started


def slowest(values: list[float]) -> list[float]:
    """The greatest of all ranks, for each value."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def measure(
    operation: Operation, size: int, groups: dict[str, dist.ProcessGroup], gate: Gate, budget: float
) -> list[Samples]:
    """Times calls of ``size`` bytes with all contenders for about ``budget`` seconds; the same on every rank.

    Raises WrongResult as soon as a result is wrong.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = -(-max(size // ITEM, 1) // ranks) * ranks
    most = min(max(BUFFERS_BYTES // (whole * ITEM), 1), MOST_CALLS)
    data = Data(whole // ranks if operation.input_is_part else whole, most)
    arenas = [Arena(operation, name, group, whole, most) for name, group in groups.items()]
    samples = {
        name: Samples(operation.name, size if operation.has_data else 0, name, most) for name in groups
    }

    started = time.perf_counter()
    for round_ in range(MOST_ROUNDS + 1):
        fresh = data(rank, round_)
        expected = operation.expected(lambda of, round_=round_: data(of, round_), rank, ranks)
        took = {}
        for turn in range(len(arenas)):
            arena = arenas[(turn + round_) % len(arenas)]
            calls = samples[arena.name].calls
            arena.refill(fresh)
            took[arena.name] = time_calls(gate, arena.warm, arena.calls[:calls]) / calls / operation.steps
            if arena.checked:
                arena.check(expected, calls)
        *times, elapsed = slowest([*(took[name] for name in groups), time.perf_counter() - started])
        for sample, seconds in zip(samples.values(), times, strict=True):
            if round_ == 0:  # only warms up, and tells how many calls are enough
                sample.calls = min(max(int(LONG_ENOUGH / operation.steps / seconds), 1), most)
            else:
                sample.seconds.append(seconds)
        if round_ >= FEWEST_ROUNDS and elapsed > budget:
            break
    return list(samples.values())
