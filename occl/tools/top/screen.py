"""The picture in a terminal, with rich: colours where the terminal has them, and 80 columns are enough."""

from __future__ import annotations

import os
import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from occl.tools.top.groups import Row
from occl.tools.top.view import GroupView, View, columns, headline, title

STYLES = {
    "waiting": "yellow",
    "stopped": "bold red",
    "exited": "bold red",
    "held": "magenta",
    "moving": "green",
}
NOTHING = "No process of this user has a group of torch_occl."


def console() -> Console:
    """Without a terminal as wide as COLUMNS says, or 80."""
    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal and not os.environ.get("COLUMNS"):
        made.width = 80
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
    for wait in view.waits[:4]:
        lines.append(Text(wait.text, style="bold yellow"))
        lines += [Text(f"    {frame}", no_wrap=True, overflow="ellipsis") for frame in wait.stack]
    if len(view.waits) > 4:
        lines.append(Text(f"and {len(view.waits) - 4} more are waited for.", style="yellow"))
    return lines


def picture(view: View, width: int, height: int | None) -> RenderableType:
    """``height``: lines of the terminal, or None if there is no end to them."""
    parts: list[RenderableType] = [Text(headline(view), style="bold", no_wrap=True, overflow="ellipsis")]
    parts += [Text(problem, style="red") for problem in view.problems[:3]]
    if not view.groups:
        parts.append(Text(NOTHING))
    left = None if height is None else height - len(parts)
    for number, group in enumerate(view.groups):
        sentences = wrapped(group)
        rows = group.rows
        if left is not None:
            used = 3 + sum(-(-text.cell_len // width) for text in sentences)
            fair = max(3, (left // (len(view.groups) - number)) - used)
            if len(rows) > fair:
                rows = rows[: max(1, fair - 1)]
            left -= used + len(rows) + (len(rows) < len(group.rows))
        parts += ["", Text(title(group), style="bold"), *sentences, table(group, rows, width)]
        if len(rows) < len(group.rows):
            more = len(group.rows) - len(rows)
            parts.append(Text(f"  {more} more: a higher window or --sort shows others", style="dim"))
    return Group(*parts)


def show(view: View) -> None:
    on = console()
    on.print(picture(view, on.width, None))


class Screen:
    """Shows one picture in the place of the last one. Where there is no terminal, one after the other."""

    def __init__(self) -> None:
        self.console = console()
        self.whole = self.console.is_terminal and not self.console.is_dumb_terminal
        self.live = Live(
            console=self.console, screen=self.whole, auto_refresh=False, vertical_overflow="crop"
        )

    def __enter__(self) -> Screen:
        if self.whole:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.whole:
            self.live.stop()

    def update(self, view: View) -> None:
        if self.whole:
            self.live.update(picture(view, self.console.width, self.console.height), refresh=True)
        else:
            self.console.print(time.strftime("%H:%M:%S"), picture(view, self.console.width, None))
