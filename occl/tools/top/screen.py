"""The picture in a terminal, with rich: colours where the terminal has them, and 80 columns are enough."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from occl.tools.top.groups import Row
from occl.tools.top.keys import Keys
from occl.tools.top.stuck import distinct
from occl.tools.top.view import GroupView, View, columns, headline, title

STYLES = {
    "waiting": "yellow",
    "stopped": "bold red",
    "exited": "bold red",
    "held": "magenta",
    "moving": "green",
}
KEYS = "arrows, PgUp, PgDn, Home and End scroll, q ends"
LEAST_WIDTH = 40
"""Columns. In fewer no row of a table can be understood."""
FAR = 1 << 30
"""More lines than there are."""
NOTHING = "No process of this user has a group of torch_occl."


def console() -> Console:
    """As large as the terminal, whatever COLUMNS says. Without one as wide as COLUMNS says, or 80 if it says
    nothing or less than `LEAST_WIDTH`."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    made = Console(highlight=False, markup=False, emoji=False, _environ=environment)
    if not sys.stdout.isatty():
        columns = os.environ.get("COLUMNS", "")
        made.width = int(columns) if columns.isdecimal() and int(columns) >= LEAST_WIDTH else 80
    return made


def table(view: GroupView, rows: list[Row], width: int) -> Table:
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=False)
    shown = columns(width)
    for column in shown:
        made.add_column(
            column.title,
            justify="left" if column.left else "right",
            width=column.width,
            no_wrap=True,
            overflow="crop",
            header_style="dim",
        )
    for row in rows:
        made.add_row(*(Text(column.text(row)) for column in shown), style=STYLES.get(row.stage, ""))
    return made


def wrapped(view: GroupView) -> list[Text]:
    lines = []
    waits = distinct(view.waits)
    for wait in waits[:4]:
        lines.append(Text(f"{wait.text} {wait.advice}".rstrip(), style="bold yellow"))
        lines += [Text(f"    {frame}", no_wrap=True, overflow="ellipsis") for frame in wait.stack]
    if len(waits) > 4:
        lines.append(Text(f"and {len(waits) - 4} more are waited for.", style="yellow"))
    return lines


def picture(view: View, width: int) -> RenderableType:
    parts: list[RenderableType] = [Text(headline(view), style="bold", no_wrap=True, overflow="ellipsis")]
    parts += [Text(problem, style="red") for problem in view.problems[:3]]
    if not view.groups:
        parts.append(Text(NOTHING))
    for group in view.groups:
        parts += ["", Text(title(group), style="bold"), *wrapped(group), table(group, group.rows, width)]
    return Group(*parts)


def show(view: View) -> None:
    on = console()
    on.print(picture(view, on.width))


class Part:
    """As many lines of a picture as a terminal has, with a line that says which, if they are not all."""

    def __init__(self, whole: RenderableType, first: int) -> None:
        self.whole = whole
        self.first = first
        """The first line that is shown: as was asked for, and once it is rendered one that can be."""
        self.height = 0
        """Lines of the picture that fit, once it is rendered."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        lines = console.render_lines(self.whole, options.update(height=None), pad=False)
        self.height = height if len(lines) <= height else height - 1
        self.first = max(0, min(self.first, len(lines) - self.height))
        for line in lines[self.first : self.first + self.height]:
            yield from line
            yield Segment.line()
        if self.height < len(lines):
            last = self.first + self.height
            yield Text(
                f"lines {self.first + 1}-{last} of {len(lines)}: {KEYS}",
                style="reverse",
                no_wrap=True,
                overflow="ellipsis",
                end="",
            )


class Screen:
    """Shows one picture in the place of the last one. Where there is no terminal, one after the other."""

    def __init__(self) -> None:
        self.console = console()
        self.whole = self.console.is_terminal and not self.console.is_dumb_terminal
        self.live = Live(
            console=self.console, screen=self.whole, auto_refresh=False, vertical_overflow="crop"
        )
        self.keys = Keys()
        self.view: View | None = None
        self.part = Part("", 0)

    def __enter__(self) -> Screen:
        if self.whole:
            self.live.start()
            self.keys.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.whole:
            self.keys.close()
            self.live.stop()

    def update(self, view: View) -> None:
        self.view = view
        if self.whole:
            self._draw(self.part.first)
        else:
            self.console.print(time.strftime("%H:%M:%S"), picture(view, self.console.width))

    def _draw(self, first: int) -> None:
        assert self.view
        self.part = Part(picture(self.view, self.console.width), first)
        self.live.update(self.part, refresh=True)

    def wait(self, seconds: float) -> bool:
        """Scrolls as the user's keys say, for so long. False if the user has ended the program."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            key = self.keys.read(left)
            if key == "q":
                return False
            page = max(1, self.part.height - 1)
            step = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -FAR, "end": FAR}.get(
                key
            )
            if step:
                self._draw(max(0, self.part.first + step))
        return True
