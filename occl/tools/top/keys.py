"""Keys of the terminal, without waiting for the end of a line."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from typing import Any

NAMES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"k": "up",
    b"j": "down",
    b" ": "page down",
    b"q": "q",
}
"""What terminals send for them; and those of `less`."""


class Keys:
    """Nothing is read unless standard input is a terminal, and this process is in its foreground."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._before: list[Any] = []

    def open(self) -> None:
        """From now on keys arrive as they are pressed, and are not shown; Ctrl-C and Ctrl-Z do as before."""
        if not sys.stdin or not sys.stdin.isatty():
            return
        file = sys.stdin.fileno()
        if os.tcgetpgrp(file) != os.getpgrp():
            return
        self._before = termios.tcgetattr(file)
        tty.setcbreak(file)
        self._file = file

    def close(self) -> None:
        """The terminal is as it was."""
        if self._file is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)
            self._file = None

    def read(self, seconds: float) -> str:
        """The name of the next key, or an empty text if none that has a name comes in time."""
        if self._file is None:
            time.sleep(seconds)
            return ""
        if not select.select([self._file], [], [], seconds)[0]:
            return ""
        pressed = os.read(self._file, 16)
        if not pressed:  # the terminal has gone
            self.close()
        return NAMES.get(pressed, "")
