"""Draws the picture of the README from results of the benchmark: docs/img/speed.png. Needs matplotlib.

python -m benchmarks.picture
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from occl.bench.plot import STYLES
from occl.tools import text

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
SIZES = RESULTS / "2026-11-26-peers-xeon.json"
TRAINING = RESULTS / "2026-11-26-training.json"
PICTURE = ROOT / "docs/img/speed.png"
NAMES = {"gloo": "Gloo", "occl-cpu": "occl, CPU tensors", "occl-dev": "occl, dev"}
MODELS = {
    "digits_ddp": "small CNN\nDDP",
    "mlp_ddp": "MLP, 30 M\nDDP",
    "gpt_ddp": "GPT\nDDP",
    "gpt_fsdp": "GPT\nFSDP2",
}


def read(path: Path) -> Any:
    return json.loads(path.read_text())["results"]


def draw_times(axes: Any) -> None:
    rows = [row for row in read(SIZES) if row["operation"] == "all_reduce"]
    for contender, name in NAMES.items():
        own = [row for row in rows if row["contender"] == contender]
        axes.plot(
            [r["bytes"] for r in own], [r["median_us"] for r in own], label=name, ms=4, **STYLES[contender]
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([4, 2**10, 2**16, 2**20, 2**26])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: text.size(size)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: text.duration(1e3 * us)))
    axes.set_title("all_reduce of 2 ranks: time, lower is better", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)


def draw_training(axes: Any) -> None:
    results = read(TRAINING)
    width = 0.27
    for place, (contender, name) in enumerate(NAMES.items()):
        rates = [
            results[model][contender]["samples_per_second"] / results[model]["gloo"]["samples_per_second"]
            for model in MODELS
        ]
        positions = [i + (place - 1) * width for i in range(len(MODELS))]
        axes.bar(positions, rates, width, label=name, color=STYLES[contender]["color"])
    axes.set_xticks(range(len(MODELS)), MODELS.values(), fontsize=8)
    axes.set_title("training with 2 ranks: samples/s, Gloo = 1", fontsize=9)
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)


def main() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.0), layout="constrained")
    draw_times(left)
    draw_training(right)
    for axes in (left, right):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
