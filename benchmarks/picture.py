"""Draws the picture of the README, docs/img/speed.png, from the newest results of benchmarks/sweep.py. Needs
matplotlib.

python -m benchmarks.picture
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from benchmarks.sweep import STEP, Cells, newest, speeds, speeds_of_operations, summarize
from occl.bench.plot import STYLES

PICTURE = Path(__file__).parents[1] / "docs/img/speed.png"
ROWS = {
    "2 ranks": ("2", "occl-cpu", "occl-cpu"),
    "2 ranks, dev": ("2", "occl-dev", "occl-dev"),
    "4 ranks": ("4", "occl-cpu", "occl-cpu"),
    "4 ranks, dev": ("4", "occl-dev", "occl-dev"),
    "8 ranks": ("8", "occl-cpu", "occl-cpu"),
    "8 ranks, dev": ("8", "occl-dev", "occl-dev"),
    "hosts 1+1": ("1+1", "occl-tcp", "gloo"),
    "hosts 2+2": ("2+2", "occl-tcp", "gloo"),
    "hosts 4+4": ("4+4", "occl-tcp", "gloo"),
}
"""The shape and the contender of the results, and whose color they have."""
BARS = ["2 ranks", "4 ranks", "8 ranks", "hosts 1+1", "hosts 2+2"]


def times(value: float, _: object) -> str:
    return f"{value:g} x"


def draw_operations(axes: Any, measured: dict[str, dict[str, Cells]]) -> None:
    names = list(ROWS)
    for place, (shape, contender, color) in enumerate(ROWS.values()):
        found = list(speeds_of_operations(measured[shape], contender).values())
        # Dots of one row are not all at one height, where they would hide each other.
        shifts = [place + 0.5 * ((7 * i) % 11 / 10 - 0.5) for i in range(len(found))]
        axes.plot(found, shifts, ".", ms=4, alpha=0.55, color=STYLES[color]["color"])
        mean = summarize(measured[shape], contender).mean
        axes.plot([mean, mean], [place - 0.35, place + 0.35], color="black", lw=2)
        axes.text(650, place, f"{mean:.0f} x", va="center", ha="right", fontsize=8)
    axes.axvline(1, color="gray", lw=1)
    axes.set_xscale("log")
    axes.set_xlim(0.7, 700)
    axes.set_xticks([1, 2, 5, 10, 30, 100])
    axes.xaxis.set_major_formatter(FuncFormatter(times))
    axes.minorticks_off()
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_title(
        "49 operations and sizes: times as fast as Gloo\n(line, number: geometric mean)", fontsize=9
    )
    axes.grid(alpha=0.3, axis="x")


def draw_training(axes: Any, measured: dict[str, dict[str, Cells]]) -> None:
    steps = [cell for cell in measured["2"]["gloo"] if cell.startswith(STEP)]
    width = 0.8 / len(steps)
    for at, cell in enumerate(steps):
        rates = [speeds(measured[ROWS[bar][0]], ROWS[bar][1])[cell] for bar in BARS]
        places = [i + (at - 1) * width for i in range(len(BARS))]
        axes.bar(
            places, rates, width, label=cell.partition(", ")[2], color=["#9ecae1", "#4292c6", "#084594"][at]
        )
    axes.axhline(1, color="gray", lw=1)
    axes.set_xticks(range(len(BARS)), [bar.replace(" ", "\n") for bar in BARS], fontsize=8)
    axes.yaxis.set_major_formatter(FuncFormatter(times))
    axes.set_title("steps of DistributedDataParallel on CPU\ntensors, by the size of the model", fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)


def main() -> None:
    measured = newest("sweep")["results"]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.0, 3.6), layout="constrained", width_ratios=[1.25, 1]
    )
    draw_operations(left, measured)
    draw_training(right, measured)
    for axes in (left, right):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
