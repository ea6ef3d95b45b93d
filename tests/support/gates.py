"""Streams of ``dev`` that stand still until a test lets them go on, so that nothing need be slow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from torch_occl import _C


@contextlib.contextmanager
def gate(*streams: torch.Stream) -> Iterator[threading.Event]:
    """What is put on these streams from now on waits until the event is set: at the end of the block."""
    event = threading.Event()
    for stream in streams:
        _C._device_enqueue(stream, event.wait)
    try:
        yield event
    finally:
        event.set()


def open_when_the_caller_sleeps(event: threading.Event) -> None:
    """Sets the event once the calling thread waits for what is behind the gate, in whatever it does next.

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
