"""Runs programs in new interpreters, until a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import occl

PATIENCE = 5.0
"""Seconds after which a process that was killed is left to the system."""
LONGEST = 500
"""Characters of an error that are shown."""

RANK = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)
"""PyTorch puts it before every line of a traceback once there is a group."""
ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """A process that has ended, or was ended."""

    status: int | None
    """As `subprocess` has it: negative for a signal. None if the deadline passed."""
    said: dict[str, Any]
    """The objects that it wrote, one JSON object on each line, in one."""
    errors: str
    """What it wrote to stderr."""

    def reason(self) -> str:
        """Why it failed, in one line."""
        if self.status is None:
            return "it did not end in time, and was killed"
        if self.status < 0:
            return f"it was ended by {signal_name(-self.status)}"
        return exception_in(self.errors) or f"it ended with status {self.status}"


def signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def exception_in(text: str) -> str:
    """The last exception of a traceback, in one line; or the last line; "" of nothing."""
    text = RANK.sub("", text)
    starts = [match.start() for match in ERROR.finditer(text)]
    last = text[starts[-1] :] if starts else (text.strip().splitlines() or [""])[-1]
    line = " ".join(last.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."


def objects_in(text: str) -> dict[str, Any]:
    """All JSON objects among the lines of a text, in one. Other lines are passed over."""
    merged: dict[str, Any] = {}
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            if isinstance(value := json.loads(line), dict):
                merged |= value
    return merged


def run(jobs: Sequence[Sequence[str]], seconds: float) -> list[Ended]:
    """Runs interpreters at the same time. A job is the arguments of one: ``["-m", module, ...]``.

    They import the package that this process has, whatever lies in the current folder.

    Raises:
        OSError: there is no folder for temporary files, or no process can be started.
    """
    end = time.monotonic() + seconds
    path = [
        str(Path(occl.__file__).parents[1]),
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, path))}
    with tempfile.TemporaryDirectory(prefix="occl-doctor-") as temporary, contextlib.ExitStack() as running:
        # Output goes to files: whatever inherits a pipe could keep it open, and its reader waiting.
        outputs = [(Path(temporary, f"{i}.out"), Path(temporary, f"{i}.err")) for i in range(len(jobs))]
        processes = []
        for arguments, (out, err) in zip(jobs, outputs, strict=True):
            command = [sys.executable, *arguments]
            with out.open("wb") as stdout, err.open("wb") as stderr:
                process = subprocess.Popen(
                    command,
                    cwd=temporary,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                )
            running.callback(kill, process)
            processes.append(process)
        statuses = [wait(process, end) for process in processes]
        return [
            Ended(status, objects_in(out.read_text(errors="replace")), err.read_text(errors="replace"))
            for status, (out, err) in zip(statuses, outputs, strict=True)
        ]


def wait(process: subprocess.Popen[bytes], end: float) -> int | None:
    """The exit status; None if the process has not ended at this time."""
    try:
        return process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the kernel
            process.wait(PATIENCE)
