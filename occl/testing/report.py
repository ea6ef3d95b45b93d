"""What a user reads when ranks have failed: each thing once, with the ranks that it happened to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from occl.testing.outcomes import Outcome
from occl.tools.text import ranks

LONGEST = 160
"""Letters of an exception in the first line, which names every rank that has failed."""

HERE = Path(__file__).parent
OURS = "|".join(re.escape(path) for path in (f"{HERE}/", f'{HERE.with_name("notebook.py")}"', '<string>"'))
"""How the places of our own frames begin."""


def without_harness(stacks: str) -> str:
    """What faulthandler has written, without our own frames and without the addresses of threads."""
    lines = []
    for line in stacks.splitlines():
        if not re.match(rf'  File "({OURS})', line):
            lines.append(re.sub(r"^(Current thread|Thread) 0x[0-9a-f]+", r"\1", line))
    return "\n".join(lines).strip()


def failures(
    size: int,
    outcomes: Mapping[int, Outcome | None],
    stacks: Mapping[int, str],
    pids: Mapping[int, int],
    late: str = "",
) -> str:
    """The report, in the order in which the ranks have failed.

    Deaths come first, because they are the likely cause of the rest, and ranks that have not ended come last.

    Args:
        outcomes: by rank, in the order in which they came; None for a rank that has not ended.
        stacks: what the threads of those ranks are doing.
        late: how long they have had.
    """
    parts: dict[tuple[str, str], list[int]] = {}
    for rank, outcome in sorted(outcomes.items(), key=lambda item: _order(item[1])):
        if outcome is None:
            seen = without_harness(stacks[rank])
            text = (
                f"Its threads are in:\n{seen}"
                if seen
                else "It does not answer: it may have been stopped by a signal."
            )
            parts.setdefault((f"did not finish {late}".strip(), text), []).append(rank)
        elif outcome.died:
            why = f", as {outcome.intended} wants" if outcome.intended else ""
            parts.setdefault((f"(pid {pids[rank]}) was {outcome.died}{why}", ""), []).append(rank)
        elif outcome.raised:
            parts.setdefault((f"raised {outcome.raised}", outcome.traceback), []).append(rank)
    titles: dict[str, list[int]] = {}
    for (what, _), who in parts.items():
        titles.setdefault(_short(what), []).extend(who)
    first = "; ".join(f"{ranks(who)} {what}" for what, who in titles.items())
    lines = [f"{first} (of {size} rank{'s' * (size > 1)})"]
    for (what, text), who in parts.items():
        title = (
            what.partition(":")[0] if what.startswith("raised") and text else what
        )  # the text has the rest
        lines.append(f"---- {ranks(who)} {title}")
        lines += [text.rstrip()] * bool(text)
    return "\n".join(lines)


def _order(outcome: Outcome | None) -> int:
    if outcome is None:
        return 3
    if outcome.intended:
        return 2
    return 0 if outcome.died else 1


def _short(text: str) -> str:
    """The first line, or as much of it as fits into a summary."""
    line = text.partition("\n")[0]
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
