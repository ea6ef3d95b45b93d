"""Streams of ``dev`` that a test holds and releases, so that no test needs slow work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from occl import _C


@contextlib.contextmanager
def gate(*streams: torch.Stream) -> Iterator[threading.Event]:
    """Work put on these streams in the block waits until the event is set, at the latest at its end."""
    event = threading.Event()
    for stream in streams:
        _C._device_enqueue(stream, event.wait)
    try:
        yield event
    finally:
        event.set()


def open_when_the_caller_sleeps(event: threading.Event) -> None:
    """Sets the event once the calling thread sleeps in its next calls, which wait for work behind the gate.

    Threads that wait for Python's lock sleep, too, but wake up every 5 ms: it must sleep longer at a stretch.
    """
    status = Path(f"/proc/self/task/{threading.get_native_id()}/status")

    def watch() -> None:
        seen, since = "", time.monotonic()
        while not event.is_set():
            text = status.read_text()
            now, look = time.monotonic(), text[text.index("voluntary_ctxt_switches") :]
            if "State:\tS" not in text or look != seen:
                seen, since = look, now
            elif now - since > 0.015:
                event.set()
            time.sleep(0.001)

    threading.Thread(target=watch, daemon=True).start()
