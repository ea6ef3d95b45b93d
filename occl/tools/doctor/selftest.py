"""Two ranks in new processes: right results, times, and a rank that is killed."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from typing import Any

from occl.tools.doctor import subprocesses
from occl.tools.doctor.report import FINE, HINT, PROBLEM, Line, Section
from occl.tools.doctor.software import not_started, wrong_variable
from occl.tools.doctor.subprocesses import Ended

SECONDS = 180.0
"""After this the ranks are killed, and the test has failed."""
TIMEOUT = 60.0
"""Of the group: how long a rank waits for the other one."""

USUAL_US = {True: {"4 B": 60.0, "1 MiB": 1500.0}, False: {"4 B": 1000.0, "1 MiB": 10_000.0}}
"""Generous times of an all_reduce of two ranks: with a core for each, and without. A quiet machine takes a
tenth of them, so something is worth a look where they are exceeded."""


def run(seconds: float = SECONDS) -> list[Ended]:
    """Both ranks, in order. Raises OSError if there are no processes or no temporary files to be had."""
    with tempfile.TemporaryDirectory(prefix="occl-doctor-") as folder:
        program = ["-m", f"{__package__}.rank"]
        jobs = [[*program, str(rank), folder, str(min(TIMEOUT, seconds))] for rank in range(2)]
        return subprocesses.run(jobs, seconds)


def result_line(device: str, wrong: list[int]) -> Line:
    name = f"result on {device}"
    if not wrong:
        return Line(name, "right", True)
    text = f"wrong for {', '.join(map(str, wrong))} elements of float32"
    remedy = "Do not use this build: try OCCL_ISA=baseline, and report it with the output of --json."
    return Line(name, text, False, PROBLEM, remedy)


def time_lines(device: str, medians: dict[str, float], cores: int) -> list[Line]:
    """Slow is a hint and never a problem: other programs may be running."""
    lines = []
    for size, median in medians.items():
        usual = USUAL_US[cores >= 2][size]
        text = f"{median:.1f} us (median of all_reduce; usual: up to {usual:.0f} us)"
        level, remedy = FINE, ""
        if median > usual:
            level = HINT
            remedy = "See whether other programs use the cores: a quiet machine is faster."
        lines.append(Line(f"{size} on {device}", text, round(median, 2), level, remedy))
    return lines


def death_line(error: str, victim: Ended) -> Line:
    """
    Args:
        error: what rank 0 got; "" for nothing.
        victim: rank 1, which killed itself.
    """
    name = "death of a rank"
    text = "the error does not name it" if error else "not noticed"
    if victim.status != -signal.SIGKILL:
        text = f"rank 1 was to be killed, but {victim.reason()}"
    elif re.search(r"\brank 1\b.*\bexited\b", error):
        return Line(name, "noticed, and the error names it", error)
    remedy = "Report this with the output of --json: ranks would wait for a dead one until their timeout."
    return Line(name, text, error, PROBLEM, remedy)


def advice(reason: str) -> str:
    """What to do about a rank that failed for this reason."""
    if remedy := wrong_variable(reason):
        return remedy
    if limit := re.search(r"\bulimit -\w\b", reason):
        return f"Raise this limit ({limit[0]}), in the shell or for the container."
    return (
        "Look above for what this system refuses; if there is nothing, report this with the output of --json."
    )


def lines(ranks: list[Ended], cores: int) -> list[Line]:
    """Of what both ranks said."""
    said: dict[str, Any] = ranks[0].said
    found = [result_line(device, wrong) for device, wrong in said.get("wrong", {}).items()]
    if found and "dev" not in said["wrong"]:
        found.append(Line("result on dev", "not tried: there is no dev here", "not tried"))
    for device in ("cpu", "dev"):
        found += time_lines(device, said.get(device, {}), cores)
    if "death" in said:
        found.append(death_line(said["death"], ranks[1]))
    for rank, (ended, expected) in enumerate(zip(ranks, (0, -signal.SIGKILL), strict=True)):
        if ended.status != expected and not ("death" in said and rank == 1):
            reason = ended.reason()
            found.append(Line(f"rank {rank}", f"failed: {reason}", False, PROBLEM, advice(reason)))
    return found


def section(seconds: float = SECONDS) -> Section:
    try:
        return Section("self-test", lines(run(seconds), len(os.sched_getaffinity(0))))
    except OSError as error:
        return Section("self-test", [not_started("ranks", error)])
