"""Streams and events of ``dev``; part of `torch.dev`."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch

from torch_occl.dev._index import Device, current_index, device_index, unused_index

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    "synchronize",
]


class Stream(torch.Stream):
    """A queue of collectives, non-blocking copies, event records and waits.

    Computation runs on the calling thread, whatever the current stream; on a side stream it first waits for
    the work that is queued there. The default stream has no queue: its work runs immediately.

    Args:
        device: the device (default: the current one).
        priority: negative is high. Accepted for compatibility, without effect on ``dev``.
    """

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, device=torch.device("dev", device_index(device)), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """(lowest, highest), as in ``torch.cuda``. Priorities have no effect."""
        return (0, -1)

    @classmethod
    def _of(cls, stream: torch.Stream) -> Stream:
        return cls(
            stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        )

    def wait_stream(self, stream: torch.Stream) -> None:
        """Makes this stream wait for all work that is in ``stream`` now."""
        self.wait_event(stream.record_event())

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records ``event`` (a new one by default) at the end of this stream and returns it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch.dev.Stream device=dev:{self.device_index} id={self.stream_id}>"


class _EventType(type(torch.Event)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "dev"


class Event(torch.Event, metaclass=_EventType):
    """A point in a stream. A program can wait for it, or measure the time between two of them.

    The constructor returns a plain `torch.Event`, because PyTorch measures no time between objects of
    subclasses.

    Args:
        enable_timing: whether ``elapsed_time`` will be asked for.
        blocking: accepted for compatibility; waiting never spins.
        interprocess: not supported.
    """

    def __new__(  # type: ignore[misc]
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        device: Device = None,
    ) -> torch.Event:
        if interprocess:
            raise NotImplementedError("dev has no events shared between processes")
        return torch.Event(
            device=torch.device("dev", unused_index(device)), enable_timing=enable_timing, blocking=blocking
        )


class StreamContext:
    """Makes a stream, and its device, current. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._before: list[list[torch.Stream]] = []  # one entry for each time it was entered

    def __enter__(self) -> None:
        before: list[torch.Stream] = []
        if self.stream is not None:
            before.append(_current_stream(current_index()))
            if self.stream.device_index != before[0].device_index:
                before.append(_current_stream(self.stream.device_index))
            torch.accelerator.set_stream(self.stream)
        self._before.append(before)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in reversed(self._before.pop()):
            torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """``with torch.dev.stream(s):`` makes ``s`` the current stream of its device, and that device current."""
    if torch.compiler.is_dynamo_compiling():
        if stream is None:
            return contextlib.nullcontext()
        with stream:
            current_index()  # breaks the graph if the stream is of another device
        return stream
    return StreamContext(stream)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` the current stream of its device, and that device current. None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    set_stream(Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


def _current_stream(index: int) -> Stream:
    """Never compiled: dynamo would return the current device's stream for every device."""
    return Stream._of(torch.accelerator.current_stream(torch.device("dev", index)))


def current_stream(device: Device = None) -> Stream:
    """The stream that is current in this thread on ``device``."""
    if device is None and torch.compiler.is_dynamo_compiling():
        return torch.accelerator.current_stream()  # type: ignore[return-value]
    return _current_stream(device_index(device))


def default_stream(device: Device = None) -> Stream:
    """The default stream of ``device``."""
    index = device_index(device)
    return Stream(stream_id=0, device_index=index, device_type=current_stream(index).device_type)


def synchronize(device: Device = None) -> None:
    """Waits for all streams of ``device``. Raises the exception of a task that failed."""
    torch.accelerator.synchronize(device_index(device))
