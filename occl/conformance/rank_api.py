"""A case in one rank: what its body uses to compare, to expect refusals, and to make groups."""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from occl.conformance.operations import BY_NAME, Call, Setting
from occl.conformance.tensors import difference, guards_broken
from occl.registration import autoload
from occl.testing.child import Described
from occl.testing.options import Options
from occl.testing.outcomes import WrongUse
from occl.testing.rank import make_group, set_variables
from occl.testing.worker import device_of

UNCLEAR = ("INTERNAL ASSERT FAILED", "please report a bug", "Unable to cast", "object has no attribute")
"""What the text of an error contains that was not written for the user."""


def why_unclear(error: BaseException) -> str:
    """What keeps an exception from being a clear refusal; "" if it is one."""
    if not isinstance(error, RuntimeError | ValueError | TypeError):
        return f"{type(error).__name__} is not a RuntimeError, ValueError, TypeError or NotImplementedError"
    text = str(error).strip()
    if len(text) < 10:
        return "it has no text"
    return next((f"its text contains {words!r}" for words in UNCLEAR if words in text), "")


def short(error: BaseException) -> str:
    """The type and the first lines of an exception."""
    return f"{type(error).__name__}: {str(error).strip()[:400]}"


BLOCKS_FOR = 2.0
"""Seconds after which a call that has not returned waits for the last rank."""

OWN_FILES = ("tensors.py", "inputs.py")
OWN_FUNCTIONS = {
    "operations.py": ("value", "total", "lay", "read", "write", "change", "blocks"),
    "rank_api.py": ("tensor", "same", "equal", "of_all", "setting", "verify"),
}
"""Files and functions of the suite that call nothing of the backend."""

OWN = "the suite or the device has failed, and not the backend"


def is_own(error: BaseException) -> bool:
    """Whether an exception comes from the suite's own work: making tensors and comparing them."""
    here = str(Path(__file__).parent)
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    for code in reversed(frames):
        if "torch/distributed/" in code.co_filename:
            return False
        if code.co_filename.startswith(here):
            file = Path(code.co_filename).name
            return file in OWN_FILES or code.co_name in OWN_FUNCTIONS.get(file, ())
    return False


class Rank:
    """What the body of a rule gets.

    A body goes on after a difference, so that the ranks stay in step: `same` and `check` take it down.
    """

    def __init__(self, rank: int, size: int, device: torch.device, backend: str, timeout: float) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.backend_name = backend
        self.timeout = timeout
        self.problems: list[str] = []
        self.refusals: list[str] = []
        self.idle = ""
        """What kept this rank from testing the rule: nothing was pending."""
        self._exchanged = 0
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    @property
    def group(self) -> Any:
        """The default group, a ``ProcessGroup``. PyTorch's stubs lack some of its methods."""
        world = dist.group.WORLD
        assert world is not None
        return world

    @property
    def backend(self) -> Any:
        """The backend of the default group for the device; one written in Python is the group itself."""
        group = self.group
        return group._get_backend(self.device) if type(group) is dist.ProcessGroup else group

    def tensor(self, *content: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """These numbers, on the device."""
        return torch.tensor(content, dtype=dtype, device=self.device)

    def check(self, holds: object, otherwise: str) -> None:
        """Takes down a problem unless the condition holds."""
        if not holds:
            self.problems.append(otherwise)

    def same(self, actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        """Takes down a problem unless the elements have the same bits, in order."""
        if actual.dtype != expected.dtype or actual.numel() != expected.numel():
            self.problems.append(f"{what} is {_kind(actual)} where {_kind(expected)} is expected")
        elif found := difference(actual, expected):
            self.problems.append(f"{what} is wrong: {found}")

    def equal(self, actual: object, expected: object, what: str) -> None:
        """Takes down a problem unless the two are equal plain values."""
        self.check(actual == expected, f"{what} is {actual!r} where {expected!r} is expected")

    def refuses(self, call: Callable[[], object], what: str) -> None:
        """Calls, and waits for what comes back; takes down a problem unless that raises, and clearly."""
        try:
            finish(call())
        except Exception as error:  # noqa: BLE001 which one it is, is what is judged
            if reason := why_unclear(error):
                self.problems.append(f"{what} is refused unclearly, because {reason}: {short(error)}")
            else:
                self.refusals.append(f"{what}: {short(error)}")
        else:
            self.problems.append(f"{what} is accepted silently")

    def still_works(self) -> None:
        """Takes down a problem unless the group does an all_reduce."""
        t = self.tensor(1.0, self.rank)
        dist.all_reduce(t)
        self.same(t, torch.tensor([self.size, sum(range(self.size))], dtype=torch.float32), "afterwards")

    def expect_pending(self, works: object, what: str) -> None:
        """Takes down that the rule is not tested here unless one of these works is pending."""
        if not any(map(_pending, works if isinstance(works, list) else [works])):
            self.idle = f"nothing was pending: {what}"

    def launched(self, last: int, launch: Callable[[], list[Any]]) -> list[Any]:
        """Works that all ranks launch. Rank ``last`` does when the others have, so that theirs are pending.

        Where calls block, the others return from theirs only when rank ``last`` has called.
        """
        store = dist.distributed_c10d._get_default_store()
        self._exchanged += 1
        key = f"conformance/launched/{self._exchanged}"
        if self.rank == last:
            self.idle = "this rank was the last to call"
            with contextlib.suppress(RuntimeError):  # its timeout
                others = [f"{key}/{rank}" for rank in range(self.size) if rank != last]
                store.wait(others, timedelta(seconds=BLOCKS_FOR))
            return launch()
        works = launch()
        flat = [each for work in works for each in (work if isinstance(work, list) else [work])]
        self.expect_pending(flat, "every call returned when it had ended")
        store.set(f"{key}/{self.rank}", "1")
        return works

    def subgroup(self, ranks: Iterable[int]) -> dist.ProcessGroup:
        """A group of these ranks; all ranks must ask for it. It is kept."""
        key = tuple(ranks)
        if key not in self._groups:
            self._groups[key] = dist.new_group(list(key), timeout=timedelta(seconds=self.timeout))
        return self._groups[key]

    def make_again(self, prefix: str, **options: Any) -> None:
        """Ends the default group, and makes it again over the same store, under this prefix."""
        store = dist.distributed_c10d._get_default_store()
        dist.destroy_process_group()
        dist.init_process_group(
            self.backend_name,
            store=dist.PrefixStore(prefix, store),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=self.timeout),
            **options,
        )

    def setting(self, operation: str, group: dist.ProcessGroup | None = None, **values: Any) -> Setting:
        """For an operation in a group, by default with the sum as its reduction."""
        group = self.group if group is None else group
        if BY_NAME[operation].reduces:
            values.setdefault("reduction", "SUM")
        return Setting(dist.get_rank(group), dist.get_world_size(group), self.device, group, **values)

    def prepared(self, operation: str, setting: Setting) -> Call:
        """The call, with its tensors made."""
        return BY_NAME[operation].make(setting)

    def verify(self, setting: Setting, what: str = "") -> None:
        """Compares everything that the call of a setting must have left behind."""
        named = f" {what}" if what else ""
        for i, (tensor, content) in enumerate(setting.expected):
            self.same(tensor, content, f"output {i}{named}")
        for i, (tensor, content) in enumerate(setting.unchanged):
            self.same(tensor, content, f"after the call input {i}{named}")
        if setting.layout in ("plain", "strided"):
            for tensor, _ in setting.expected:
                broken = guards_broken(tensor)
                self.check(not broken, f"outside of an output{named} {broken}")

    def run(self, operation: str, **values: Any) -> None:
        """Makes the tensors, calls the operation synchronously, and compares."""
        setting = self.setting(operation, **values)
        finish(self.prepared(operation, setting)(False))
        self.verify(setting)

    def of_all(self, value: object) -> list[str]:
        """What the value is on each rank, as a text, exchanged through the store and not by the backend."""
        store = dist.distributed_c10d._get_default_store()
        self._exchanged += 1
        key = f"conformance/of_all/{self._exchanged}"
        store.set(f"{key}/{self.rank}", str(value))
        return [store.get(f"{key}/{rank}").decode() for rank in range(self.size)]


def _pending(work: Any) -> bool:
    done: bool = work.done() if isinstance(work, torch._C.Future) else work.is_completed()
    return not done


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def finish(work: object) -> None:
    """Waits for what a call has returned: nothing, a work, or a list of works."""
    for each in work if isinstance(work, list) else [work]:
        if each is not None and hasattr(each, "wait"):
            each.wait()


def exception_is_bound() -> bool:
    """Whether Python can have what ``Work.exception`` returns, as from PyTorch 2.13 on."""
    return "exception_ptr" not in (dist.Work.exception.__doc__ or "")


# ---- the functions that processes run --------------------------------------------------------------------

_here: Rank | None = None


def prepare(backend: str, device: str, imports: list[str]) -> None:
    """Once in the warm process, and in each spawned rank: imports what registers the backend.

    Raises:
        WrongUse: there is no such backend or device, or a module cannot be imported.
    """
    importlib.import_module("occl.conformance.rules")
    if "occl" in backend:
        importlib.import_module("torch_occl") if device.startswith("dev") else autoload()
    for name in imports:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 any, of the vendor's own code
            raise WrongUse(
                f"The capabilities say import = {imports!r}, and {name} cannot be imported: {short(error)}. "
                "Install it, or add its folder to PYTHONPATH."
            ) from None
    if backend.lower() not in dist.Backend.backend_list:
        known = ", ".join(name for name in dist.Backend.backend_list if name != "undefined")
        raise WrongUse(
            f"There is no backend {backend!r}; there are {known}. If a package registers it when it is "
            'imported, name the package in the capabilities file: import = ["package"].'
        )
    try:
        torch.device(device)
    except RuntimeError as error:
        raise WrongUse(
            f"There is no device {device!r} ({str(error).splitlines()[0][:200]}). If a package makes it when "
            'it is imported, name the package in the capabilities file: import = ["package"].'
        ) from None


def enter(
    rank: int,
    size: int,
    device: str,
    *,
    backend: str,
    imports: list[str],
    store: str,
    timeout: float,
) -> str:
    """The first function of each rank: makes the default group. Returns the class of its backend.

    Raises:
        WrongUse: there is no such device, or the group cannot be made.
    """
    global _here
    prepare(backend, device, imports)
    options = Options(size, device, backend, timeout=timeout)
    set_variables(rank, size)
    place = device_of(device, rank)
    make_group(rank, options, place, store)
    _here = Rank(rank, size, place, backend, timeout)
    made = type(_here.backend)
    return f"{made.__module__}.{made.__qualname__}"


def run_case(
    rank: int, size: int, device: str, *, operation: str, name: str, values: dict[str, str]
) -> tuple[str, str]:
    """Runs a case; returns its verdict on this rank, and a text.

    Raises:
        Described: the call has raised. It is said this way so that the other ranks are not waited for long.
    """
    from occl.conformance.catalog import RULES

    assert _here is not None
    here = _here
    here.problems, here.refusals, here.idle = [], [], ""
    try:
        RULES[operation, name].body(here, **values)
    except Exception as error:  # noqa: BLE001 the verdict says which
        if is_own(error):
            raise Described(raised=f"{OWN}: {short(error)}", traceback="") from None
        if here.problems:
            here.problems.append(short(error))
        elif reason := why_unclear(error):
            here.problems.append(f"refused unclearly, because {reason}: {short(error)}")
        else:
            raise Described(raised=short(error), traceback="") from None
    if here.problems:
        return "wrong", "; ".join(here.problems[:3])
    if here.idle:
        return "untested", here.idle
    if here.refusals:
        return "refuses", here.refusals[0]
    return "works", ""
