"""The device itself, tested before the first case: what the suite needs of it, one thing after the other.

Its defects are listed apart, because most cases fail with them, whatever the backend does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from occl.conformance import rank_api
from occl.testing.child import tell
from occl.testing.outcomes import RanksFailed
from occl.testing.report import without_harness
from occl.testing.team import Team
from occl.testing.worker import device_of


def _set_device(device: torch.device) -> None:
    current = torch.accelerator.current_device_index()
    assert current == device.index, f"the current device is number {current}, and not {device.index}"


def _copy(device: torch.device) -> None:
    for dtype in (torch.uint8, torch.float32, torch.complex64):
        here = torch.arange(12).to(dtype).view(3, 4)
        there = here.to(device)
        assert there.device == device, f"a tensor that was made for {device} is on {there.device}"
        assert torch.equal(there.cpu(), here), f"elements of {dtype} come back changed"
        assert torch.equal(there.t().cpu(), here.t()), f"elements of {dtype} with strides come back changed"
        there.copy_(here + 1)
        assert torch.equal(there.clone().cpu(), here + 1), f"copy_ of {dtype} gives other elements"


def _view(device: torch.device) -> None:
    here = torch.arange(8, dtype=torch.float32)
    there = here.to(device)
    assert torch.equal(there.view(torch.uint8)[4:8].cpu(), here.view(torch.uint8)[4:8]), "other bytes"


def _view_as_real(device: torch.device) -> None:
    here = torch.complex(torch.arange(3.0), torch.ones(3))
    assert torch.equal(torch.view_as_real(here.to(device)).cpu(), torch.view_as_real(here)), "other numbers"


def _resize(device: torch.device) -> None:
    there = torch.ones(3, device=device).resize_(100)
    assert there.shape == (100,) and there[:3].tolist() == [1.0] * 3, "its elements are lost"


def _synchronize(device: torch.device) -> None:
    torch.accelerator.synchronize(device)


def _stream(device: torch.device) -> None:
    there = torch.zeros(3, device=device)
    torch.accelerator.synchronize(device)
    stream = torch.Stream(device)
    with stream:
        there.fill_(1.0)
    stream.synchronize()
    assert there.cpu().tolist() == [1.0] * 3, "after Stream.synchronize() the stream has not written"


PROBES: dict[str, Callable[[torch.device], None]] = {
    "set_device": _set_device,
    "copy": _copy,
    "view": _view,
    "view_as_real": _view_as_real,
    "resize_": _resize,
    "synchronize": _synchronize,
    "stream": _stream,
}
"""What is tested, in this order."""


def probe(
    rank: int, size: int, device: str, *, backend: str, imports: Sequence[str], names: Sequence[str]
) -> None:
    """In a rank: tells each name as its probe begins, with "", and again with what is wrong, if it is."""
    rank_api.prepare(backend, device, list(imports))
    place = device_of(device, rank)
    for name in names:
        tell((name, ""))
        try:
            PROBES[name](place)
        except Exception as error:  # noqa: BLE001 any, of the vendor's own code
            tell((name, rank_api.short(error)))


def defects(make: Callable[[], Team], device: str, limit: float, **asked: Any) -> list[str]:
    """What is wrong with a device, by the names of probes. A probe that crashes or hangs is a defect too.

    Args:
        device: its type. pytest's own process need not have it.
        make: makes a process to probe in.
        asked: for `rank_api.prepare`.

    Raises:
        RanksFailed: the device cannot be made.
    """
    found: list[str] = []
    left = [] if device.partition(":")[0] == "cpu" else list(PROBES)
    while left:
        with make() as team:
            team.start(probe, device, limit=limit, names=left, **asked)
            try:
                (outcome,) = team.finish()
                ended = outcome.raised or outcome.died
                printed = team.printed()
            except RanksFailed as error:
                ended, printed = error.report, error.outputs
            heard = team.heard[0]
        found += [f"{name}: {text}" for name, text in heard if text]
        if not ended:
            break
        if not heard:
            raise RanksFailed(ended, printed)
        last = heard[-1][0]
        found.append("\n".join(filter(None, [f"{last}: {ended}", crash(printed.get(0, ""))])))
        left = left[left.index(last) + 1 :]
    return found


def crash(printed: str) -> str:
    """The stack that faulthandler has printed as a rank crashed; "" if it has not."""
    _, begins, stack = printed.rpartition("Fatal Python error: ")
    return without_harness(stack.partition("\nExtension modules:")[0]) if begins else ""
