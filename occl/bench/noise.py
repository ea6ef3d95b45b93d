"""Judges whether the machine was quiet enough for the results to mean something."""

import os
from pathlib import Path
from typing import Any

from occl.bench.report import ROOFLINES, Result

FOREIGN_SHARE = 0.05
"""Share of all cores' time that other programs may take during a run; above it, the results mean nothing."""
STEADY = 1.25
"""Upper quartile over lower quartile up to which a contender without communication counts as steady."""
UNSTEADY_SHARE = 0.25
"""Share of values of such contenders that may be unsteady."""
ALONE = {"floor", "roofline", *ROOFLINES}
"""Contenders without communication: only the machine makes their times vary."""

TICKS = os.sysconf("SC_CLK_TCK")


def machine_seconds() -> tuple[float, float, float]:
    """Seconds of all cores since the machine started: all, busy with anything, stolen by its host."""
    fields = [int(n) / TICKS for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return sum(fields), user + nice + system + irq + softirq, steal


class Watch:
    """Measures how much of the cores other programs and the machine's host take, from its construction on."""

    def __init__(self) -> None:
        self._machine = machine_seconds()
        self._own = sum(os.times()[:4])

    def shares(self) -> tuple[float, float]:
        """(other programs, stolen), each of all cores' time. Children that still run count as others."""
        total, busy, stolen = (now - then for now, then in zip(machine_seconds(), self._machine, strict=True))
        own = sum(os.times()[:4]) - self._own
        return max(busy - own, 0.0) / max(total, 1e-9), stolen / max(total, 1e-9)


def judge(results: list[Result], foreign: float, stolen: float) -> dict[str, Any]:
    """The numbers and the verdict, for the results' file. ``reasons`` is empty if the machine was quiet."""
    alone = [result for result in results if result.contender in ALONE]
    unsteady = sum(result.upper_us > STEADY * result.lower_us for result in alone)
    reasons = []
    if foreign > FOREIGN_SHARE:
        reasons.append(f"other programs took {foreign:.0%} of the cores")
    if stolen > FOREIGN_SHARE:
        reasons.append(f"the machine's host took {stolen:.0%} of the cores")
    if unsteady > UNSTEADY_SHARE * len(alone):
        reasons.append(
            f"{unsteady} of {len(alone)} values of contenders without communication have quartiles more "
            f"than {STEADY} times apart"
        )
    return {
        "foreign_share": round(foreign, 4),
        "stolen_share": round(stolen, 4),
        "unsteady_values": unsteady,
        "values_of_contenders_alone": len(alone),
        "quiet": not reasons,
        "reasons": reasons,
    }


def verdict(judged: dict[str, Any]) -> str:
    """One line for the end of the table."""
    if judged["quiet"]:
        return (
            f"The machine was quiet: other programs took {judged['foreign_share']:.1%} of the cores, "
            f"its host {judged['stolen_share']:.1%}."
        )
    return f"TOO NOISY TO TELL: {'; '.join(judged['reasons'])}. Use another moment."
