"""Times one operation of one size with all contenders in turn, checking every result.

Every timed call works on data of its own, written before the section: a timed section is one call for each of
several buffers, and after it all results are compared with the right ones. Small calls get many buffers, so
that the clock and the start weigh little; large calls get one. Writing and checking much data drives the code
out of the caches, so an untimed call of one element precedes each timed section. The contenders take turns,
in rotating order, so that a slow moment of the machine affects all alike. The fastest of some rounds that
only warm up says how many calls a section has: a slow one would give its contender fewer calls than others.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from occl.bench.contenders import EVERY
from occl.bench.gate import Gate
from occl.bench.operations import STALE, Call, Operation

MOST_CALLS = 64
"""The most buffers, and so calls, of one timed section."""
BUFFERS_BYTES = 4 << 20
"""Bytes of all buffers of small calls together: they stay in the caches, where fresh gradients are too."""
LONG_ENOUGH = 1e-3
"""Seconds of a timed section beyond which more calls make it no more exact."""
CROWDED_BUFFERS, CROWDED_SECONDS = 8, 50
"""Factors for the two numbers above if there are more ranks than cores: ranks then leave the gate some time
slices of the scheduler apart, which must be little beside the section."""
WARM_UPS = 3
"""Rounds before those that count."""
FEWEST_ROUNDS, MOST_ROUNDS = 3, 300
MOST_ROUNDS_WITH_PEERS = 100
"""With many contenders, to leave time for the large sizes."""


class WrongResult(Exception):
    """A backend gave a wrong result."""


@dataclass
class Samples:
    """The times of one contender for one operation of one size."""

    operation: str
    bytes: int
    contender: str
    calls: int = 0
    """Calls in each timed section."""
    seconds: list[float] = field(default_factory=list)
    """Per call, for the slowest rank; one value for each timed section."""
    dtype: str = "float32"


class Data:
    """The inputs of every rank in every round: small integers, whose sums are exact in any order.

    Bfloat16 counts exactly to 256 only, so 16-bit types get integers below 256 / ranks.
    """

    def __init__(self, elements: int, calls: int, dtype: torch.dtype = torch.float32, ranks: int = 1) -> None:
        limit = max(128 // ranks, 1)
        period, self._offsets = (1021, 8191) if dtype == torch.float32 else (limit, limit)
        self._dtype = dtype
        self._pattern = torch.arange(elements, dtype=torch.float32) % period
        self._calls = torch.arange(calls, dtype=torch.float32).unsqueeze(1)

    @classmethod
    def of(cls, operation: Operation, whole: int, calls: int) -> "Data":
        """For the ranks of the default group. ``whole``: the elements of the larger of input and output."""
        ranks = dist.get_world_size()
        return cls(whole // ranks if operation.input_is_part else whole, calls, operation.dtype, ranks)

    def __call__(self, rank: int, round_: int) -> Tensor:
        """dtype[calls, elements]: different for each rank, round, call and (nearly) each element."""
        offsets = (self._calls * 61 + round_ * 3967 + rank * 7) % self._offsets
        return (self._pattern + offsets).to(self._dtype)


class Round:
    """What the tensors of this rank hold before and after the calls of one round, made when it is needed."""

    def __init__(self, operation: Operation, data: Data, number: int) -> None:
        self.number = number
        self._operation = operation
        self._data = data

    @cached_property
    def fresh(self) -> Tensor:
        return self._data(dist.get_rank(), self.number)

    @cached_property
    def expected(self) -> Tensor | None:
        inputs = lambda rank: self._data(rank, self.number)  # noqa: E731
        return self._operation.expected(inputs, dist.get_rank(), dist.get_world_size())


class Arena:
    """The tensors of one contender and the calls on them."""

    def __init__(
        self, operation: Operation, contender: str, group: dist.ProcessGroup, whole: int, calls: int
    ):
        self.name = contender
        self.checked = EVERY[contender].moves_data
        self._operation = operation
        like: dict[str, Any] = {
            "device": EVERY[contender].device(group.rank()),
            "dtype": operation.dtype,
        }
        split = whole // group.size()
        with EVERY[contender].memory():
            self._input = empty(operation, calls, split if operation.input_is_part else whole, **like)
            self._output = self._input
            if not operation.in_place:
                self._output = torch.empty(calls, split if operation.output_is_part else whole, **like)
            least_input, least_output = (
                empty(operation, 1, 1 if is_part else group.size(), **like)[0].zero_()
                for is_part in (operation.input_is_part, operation.output_is_part)
            )
        self.calls: list[Call] = [
            operation.bind(x, y, group) for x, y in zip(self._input, self._output, strict=True)
        ]
        self.warm = operation.bind(least_input, least_output, group)

    def run(self, gate: Gate, round_: Round, calls: int) -> float:
        """Seconds that this rank took for ``calls`` calls on fresh data. Raises WrongResult."""
        self.refill(round_.fresh)
        seconds = time_calls(gate, self.warm, self.calls[:calls])
        if self.checked and round_.expected is not None:
            self.check(round_.expected, calls)
        return seconds

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


def empty(operation: Operation, *sizes: int, **like: Any) -> Tensor:
    if not operation.symmetric:
        return torch.empty(*sizes, **like)
    import torch.distributed._symmetric_memory as symm_mem

    return symm_mem.empty(*sizes, **like)


class External(Protocol):
    """This rank's end of a contender that is a program of its own."""

    name: str
    version: str

    def prepare(self, operation: str, dtype: str, whole: int, calls: int) -> bool:
        """Makes the buffers and calls of a task. Returns whether the program has such an operation."""

    def run(self, round_: int, calls: int) -> float:
        """Seconds that this rank took for ``calls`` calls. Raises if a result is wrong."""


class RemoteArena:
    """The same in a process of its own, which fills, times and checks by the same rules."""

    def __init__(self, connection: External) -> None:
        self.name = connection.name
        self._connection = connection

    def run(self, gate: Gate, round_: Round, calls: int) -> float:
        """Seconds that the process of this rank took. Raises for a wrong result, too."""
        return self._connection.run(round_.number, calls)


Contestant = dist.ProcessGroup | External


def make_arena(
    operation: Operation, name: str, contestant: Contestant, whole: int, calls: int
) -> Arena | RemoteArena | None:
    """None if the contender has no such operation."""
    if isinstance(contestant, dist.ProcessGroup):
        if operation.mapped and not EVERY[name].mapped:
            return None
        return Arena(operation, name, contestant, whole, calls)
    dtype = str(operation.dtype).removeprefix("torch.")
    return RemoteArena(contestant) if contestant.prepare(operation.kind, dtype, whole, calls) else None


def time_calls(gate: Gate, warm: Call, calls: list[Call]) -> float:
    """Seconds from the common start until this rank has made all the calls."""
    gate.wait()  # the wait for the others may be long: warm up after it
    warm()
    gate.wait()
    started = time.perf_counter()
    for call in calls:
        call()
    took = time.perf_counter() - started
    gate.wait(asleep=True)  # checking the results would take cores from ranks that are still timed
    return took


def slowest(values: list[float]) -> list[float]:
    """The greatest of all ranks, for each value."""
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def timed(gate: Gate, action: Callable[[], object]) -> float:
    """Seconds until the slowest rank has done it; all begin together."""
    gate.wait()
    started = time.perf_counter()
    action()
    return slowest([time.perf_counter() - started])[0]


def measure(
    operation: Operation, size: int, contestants: Mapping[str, Contestant], gate: Gate, budget: float
) -> list[Samples]:
    """Times calls of ``size`` bytes with all contenders for about ``budget`` seconds; the same on every rank.

    A contender that has no such operation is left out. Raises WrongResult, or what an
    external contender raises, as soon as a result is wrong.
    """
    ranks, item = dist.get_world_size(), operation.dtype.itemsize
    whole = -(-max(size // item, 1) // ranks) * ranks
    buffers, long_enough = BUFFERS_BYTES, LONG_ENOUGH
    if ranks > len(os.sched_getaffinity(0)):
        buffers, long_enough = buffers * CROWDED_BUFFERS, long_enough * CROWDED_SECONDS
    most = min(max(buffers // (whole * item), 1), MOST_CALLS)
    data = Data.of(operation, whole, most)
    made = [make_arena(operation, name, contestant, whole, most) for name, contestant in contestants.items()]
    arenas = [arena for arena in made if arena]
    dtype = str(operation.dtype).removeprefix("torch.")
    samples = {
        arena.name: Samples(operation.name, size if operation.has_data else 0, arena.name, most, dtype=dtype)
        for arena in arenas
    }
    most_rounds = MOST_ROUNDS if len(arenas) < 6 else MOST_ROUNDS_WITH_PEERS

    started = time.perf_counter()
    for number in range(WARM_UPS + most_rounds):
        round_ = Round(operation, data, number)
        took = {}
        for turn in range(len(arenas)):
            arena = arenas[(turn + number) % len(arenas)]
            calls = samples[arena.name].calls
            took[arena.name] = arena.run(gate, round_, calls) / calls / operation.steps
        *times, elapsed = slowest([*(took[name] for name in samples), time.perf_counter() - started])
        for sample, seconds in zip(samples.values(), times, strict=True):
            sample.seconds.append(seconds)
            if number < WARM_UPS:
                enough = int(long_enough / operation.steps / min(sample.seconds))
                sample.calls = min(max(enough, 1), most)
        if number >= WARM_UPS + FEWEST_ROUNDS - 1 and elapsed > budget:
            break
    for sample in samples.values():
        del sample.seconds[:WARM_UPS]
    return list(samples.values())
