"""Fits a cost model to the benchmark's results, and says what it predicts for 64 ranks on 2 sockets.

    python -m benchmarks.model RESULTS.json                       # of occl bench --json
    python -m benchmarks.model RESULTS.json --update docs/performance.md

With ``--update`` it writes its tables between the marks in that file, and its two pictures beside it. The
model and its assumptions are explained there. The bytes are counted in the plans themselves, by a program
(``benchmarks/peers/plan_bytes.cpp``) that is built here from the same objects as the extension.
"""

import argparse
import json
import math
import re
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.pages import replaced_between
from benchmarks.peers import programs as peers
from occl.tools import text

KINDS = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "all_gather_single": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
"""The benchmark's operations and the plans' kinds."""
MEMORIES = {"core-dev": "dev", "core-cpu": "cpu", "occl-dev": "dev", "occl-cpu": "cpu"}
"""Contenders that are fitted: the core's if they were measured, else those called from Python."""
SHOWN_SIZES = [1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
MARK = "<!-- {}: written by benchmarks/model.py -->"


@dataclass(frozen=True)
class Machine:
    """What the prediction assumes about the larger machine: none of it was measured."""

    ranks: int = 64
    sockets: int = 2
    cache_bytes: float = 256 * 2**20
    """Last-level cache of each socket."""
    memory_gbs: float = 250
    """GB/s that a socket's memory sustains, reads and writes together."""
    link_gbs: float = 80
    """GB/s between the sockets, each way."""
    far: float = 3
    """Latency of a cache line from the other socket, in those of the measured machine."""
    overlap: float = 8
    """Cache lines that a core fetches at once."""


@dataclass(frozen=True)
class Moved:
    """What a plan moves: bytes of the rank that moves most, and of all ranks together."""

    path: str
    levels: int
    steps: int
    read_near: int
    read_far: int
    write_near: int
    write_far: int
    total_near: int
    total_far: int
    in_turn: int
    """What the busiest rank of each step moves, added up: in two levels sockets work one after the other."""
    link: int
    """What crosses between the sockets in each step, in the direction with more, added up."""

    @property
    def busiest(self) -> int:
        return self.read_near + self.read_far + self.write_near + self.write_far

    @property
    def synchronisations(self) -> int:
        """Times that ranks wait for each other: when they meet, between steps, before buffers are left."""
        return {"one_shot": 1, "direct": self.steps + 1}.get(self.path, self.steps)


def plans(ranks: int, sockets: int, sizes: list[int], levels: int = 2) -> dict[tuple[str, str, int], Moved]:
    """By kind, memory and bytes of the largest tensor. With one level, ranks do not know of sockets."""
    if failure := peers.build("plan_bytes"):
        raise RuntimeError(f"plan_bytes does not build: {failure}")
    command = [str(peers.BUILD / "plan_bytes"), str(ranks), str(sockets), str(levels), *map(str, sizes)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    moved = {}
    for kind, memory, size, _, path, *counts in map(str.split, lines):
        moved[kind, memory, int(size)] = Moved(path, *map(int, counts))
    return moved


def working_set(kind: str, size: int, ranks: int) -> float:
    """Bytes of all tensors of all ranks."""
    part, ends = size / ranks, {"gather": size, "scatter": size}
    if kind in ends:
        return ranks * part + ends[kind]
    return ranks * {"all_gather": part + size, "reduce_scatter": part + size, "all_to_all": 2 * size}.get(
        kind, size
    )


def missing(cache: float, work: float) -> float:
    """The share of accesses that a cache of this size does not serve."""
    return max(0.0, 1 - cache / work) if work else 0.0


@dataclass
class Model:
    """T = call + sync * synchronisations + bytes of the busiest rank / rate, in microseconds."""

    call: float
    sync: float
    per_cached_byte: float
    per_memory_byte: float
    cache: float
    """Bytes of the cache that the measured ranks share."""

    @staticmethod
    def terms(moved: Moved, miss: float) -> list[float]:
        return [1, moved.synchronisations, moved.busiest * (1 - miss), moved.busiest * miss]

    def parameters(self) -> list[float]:
        return [self.call, self.sync, self.per_cached_byte, self.per_memory_byte]

    def time(self, kind: str, size: int, ranks: int, moved: Moved) -> float:
        miss = missing(self.cache, working_set(kind, size, ranks))
        return float(np.dot(self.terms(moved, miss), self.parameters()))

    def predict(self, kind: str, size: int, moved: Moved, on: Machine) -> tuple[float, str]:
        """Microseconds on another machine, and what the transfer is bound by."""
        near, far = on.ranks // on.sockets, on.ranks - on.ranks // on.sockets
        # The first line of the slowest peer is waited for; the others come meanwhile, `overlap` at a time.
        lines = max(near - 2, 0) / on.overlap + (on.far * (1 + (far - 1) / on.overlap) if far else 1)
        latency = self.call + self.sync * moved.synchronisations * lines
        miss = missing(on.cache_bytes * on.sockets, working_set(kind, size, on.ranks))
        total = moved.total_near + moved.total_far
        bounds = {
            "core": moved.in_turn * ((1 - miss) * self.per_cached_byte + miss * self.per_memory_byte),
            "memory": total * miss / (on.memory_gbs * 1e3 * on.sockets),
            "link": moved.link / (on.link_gbs * 1e3),
        }
        bound = max(bounds, key=bounds.get)
        return latency + bounds[bound], bound if bounds[bound] > latency else "latency"


def not_negative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Least squares with x >= 0, for a few columns: what comes out negative is left out."""
    columns = list(range(a.shape[1]))
    while True:
        x = np.zeros(a.shape[1])
        x[columns] = np.linalg.lstsq(a[:, columns], b, rcond=None)[0]
        if (x >= 0).all():
            return x
        columns.remove(int(np.argmin(x)))


@dataclass(frozen=True)
class Point:
    kind: str
    memory: str
    size: int
    us: float


def measured(content: dict) -> list[Point]:
    found = {row["contender"] for row in content["results"]}
    names = [n for n in MEMORIES if n in found and n.startswith("core" if "core-dev" in found else "occl")]
    return [
        Point(KINDS[row["operation"]], MEMORIES[row["contender"]], row["bytes"], row["median_us"])
        for row in content["results"]
        if row["contender"] in names and row["operation"] in KINDS
    ]


def last_cache(caches: str) -> float:
    """Bytes of the last level in "L1d 48K, ..., L3 32768K"; 32 MiB where the machine does not say."""
    sizes = [int(n) << {"K": 10, "M": 20}[unit] for n, unit in re.findall(r" (\d+)([KM])", caches)]
    return max(sizes, default=32 << 20)


def fit(points: list[Point], moved: dict, ranks: int, cache: float) -> Model:
    """The parameters with the least relative errors."""
    rows = []
    for point in points:
        miss = missing(cache, working_set(point.kind, point.size, ranks))
        terms = Model.terms(moved[point.kind, point.memory, point.size], miss)
        rows.append([term / point.us for term in terms])
    # Columns differ by many orders of magnitude: scaled, so that the solver sees them alike.
    a = np.array(rows)
    scale = np.maximum(np.abs(a).max(axis=0), 1e-30)
    return Model(*(not_negative(a / scale, np.ones(len(rows))) / scale), cache)


def fit_table(model: Model, points: list[Point], moved: dict, ranks: int, source: str, about: dict) -> str:
    rate = lambda per_byte: f"{1e-3 / per_byte:.1f} GB/s" if per_byte else "no limit seen"  # noqa: E731
    errors = [model.time(p.kind, p.size, ranks, moved[p.kind, p.memory, p.size]) / p.us for p in points]
    spread = math.exp(statistics.pstdev(map(math.log, errors)))
    return "\n".join(
        [
            f"From `{source}` ({about['cpu']}, {about['cores']} cores, {about['caches']}), {ranks} ranks,",
            f"{len(points)} medians:",
            "",
            "| parameter | value |",
            "|---|---|",
            f"| a call | {model.call:.2f} us |",
            f"| a synchronisation | {model.sync:.2f} us |",
            f"| bytes in cache, a core, reads and writes | {rate(model.per_cached_byte)} |",
            f"| bytes in memory, a core, reads and writes | {rate(model.per_memory_byte)} |",
            "",
            f"Model over measurement: {min(errors):.2f} to {max(errors):.2f}, standard deviation a factor of "
            f"{spread:.2f}.",
        ]
    )


def bytes_table(two: dict, one_level: dict, many: dict, on: Machine, size: int) -> str:
    lines = [
        f"| {text.size(size)} each | memory | path | 2 ranks: moved | {on.ranks} ranks: moved | "
        "near read + written | far read + written | all ranks, far: one level | two levels | times fewer |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS.values():
        for memory in ("dev", "cpu"):
            few, lot = two[kind, memory, size], many[kind, memory, size]
            part = lambda value: f"{value / size:.3g}"  # noqa: E731
            before = one_level[kind, memory, size].total_far
            crossing = f"{part(lot.total_far)} | {before / lot.total_far:.0f}" if lot.levels > 1 else "- | -"
            lines.append(
                f"| {kind} | {memory} | {lot.path} | {part(few.busiest)} | {part(lot.busiest)} | "
                f"{part(lot.read_near)} + {part(lot.write_near)} | "
                f"{part(lot.read_far)} + {part(lot.write_far)} | {part(before)} | {crossing} |"
            )
    return "\n".join(lines)


def prediction_table(model: Model, one_level: dict, many: dict, on: Machine) -> str:
    lines = [
        "| | memory | " + " | ".join(text.size(size) for size in SHOWN_SIZES) + " |",
        "|---|---|" + "---|" * len(SHOWN_SIZES),
    ]
    for kind in KINDS.values():
        for memory in ("dev", "cpu"):
            cells = []
            for size in SHOWN_SIZES:
                us, bound = model.predict(kind, size, many[kind, memory, size], on)
                before, _ = model.predict(kind, size, one_level[kind, memory, size], on)
                times = f", {before / us:.2g} x" if many[kind, memory, size].levels > 1 else ""
                cells.append(f"{time_text(us)} ({bound}{times})")
            lines.append(f"| {kind} | {memory} | {' | '.join(cells)} |")
    return "\n".join(lines)


def time_text(us: float) -> str:
    return f"{text.three_digits(us / 1000)} ms" if us >= 1000 else f"{text.three_digits(us)} us"


def draw(stem: Path, model: Model, points: list[Point], ranks: int, on: Machine) -> None:
    """STEM-fit.png: measured and modelled at few ranks. STEM-prediction.png: the larger machine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    from occl.bench.plot import STYLES

    sizes = sorted({point.size for point in points})
    wide = [4 << i for i in range(27)]
    few, many = plans(ranks, 1, sizes), plans(on.ranks, on.sockets, wide)
    for name in ("fit", "prediction"):
        kinds = list(KINDS.values())
        if name == "fit":
            kinds = [kind for kind in kinds if any(point.kind == kind for point in points)]
        columns = min(4, len(kinds))
        rows = -(-len(kinds) // columns)
        figure, axes = pyplot.subplots(
            rows, columns, figsize=(3.6 * columns, 3 * rows + 1), sharex=True, sharey=True, squeeze=False
        )
        for panel, kind in zip(axes.flat, kinds, strict=False):
            for memory in ("dev", "cpu"):
                color = STYLES[f"occl-{memory}"]["color"]
                if name == "fit":
                    line = [(s, model.time(kind, s, ranks, few[kind, memory, s])) for s in sizes]
                    seen = [(p.size, p.us) for p in points if (p.kind, p.memory) == (kind, memory)]
                    marker = STYLES[f"occl-{memory}"]["marker"]
                    panel.plot(
                        *zip(*seen, strict=True), marker, color=color, ms=4, label=f"{memory}, measured"
                    )
                else:
                    line = [(s, model.predict(kind, s, many[kind, memory, s], on)[0]) for s in wide]
                panel.plot(*zip(*line, strict=True), color=color, lw=1.2, label=f"{memory}, model")
            panel.set(xscale="log", yscale="log", title=kind)
            panel.xaxis.set_major_locator(LogLocator(base=64))
            panel.xaxis.set_major_formatter(lambda size, _: text.size(size))
            panel.xaxis.set_minor_locator(LogLocator(base=8))
            panel.xaxis.set_minor_formatter(lambda *_: "")
            panel.yaxis.set_major_formatter(lambda us, _: text.duration(1e3 * us))
            panel.grid(color="#dddddd", lw=0.6)
            panel.spines[["top", "right"]].set_visible(False)
        for index, panel in enumerate(axes.flat):
            panel.set_visible(index < len(kinds))
            panel.tick_params(labelbottom=index + columns >= len(kinds))
        axes[0, 0].legend(frameon=False, fontsize=8)
        title = f"{ranks} ranks, measured, and the model fitted to it"
        if name == "prediction":
            title = f"{on.ranks} ranks on {on.sockets} sockets, predicted"
        figure.suptitle(f"{title}: time of a call over its size", x=0.01, ha="left", fontsize=11)
        figure.tight_layout(rect=(0, 0, 1, 0.98))
        figure.savefig(stem.with_name(f"{stem.name}-{name}.png"), dpi=100)
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="of occl bench --json")
    parser.add_argument("--update", type=Path, metavar="FILE.md", help="write the tables into this file")
    for name, value in vars(Machine()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = parser.parse_args()
    content = json.loads(options.results.read_text())
    on = Machine(**{name: getattr(options, name) for name in vars(Machine())})
    ranks, points = content["ranks"], measured(content)
    if not points:
        parser.error(f"{options.results} has no results of {', '.join(MEMORIES)}")
    shown = {*SHOWN_SIZES, *(point.size for point in points)}
    two, many = plans(ranks, 1, sorted(shown)), plans(on.ranks, on.sockets, sorted(shown))
    one_level = plans(on.ranks, on.sockets, sorted(shown), levels=1)
    model = fit(points, two, ranks, last_cache(content["machine"]["caches"]))
    tables = {
        "fit": fit_table(model, points, two, ranks, options.results.name, content["machine"]),
        "bytes": bytes_table(two, one_level, many, on, 16 << 20),
        "prediction": prediction_table(model, one_level, many, on),
    }
    for name, table in tables.items():
        print(f"{name}\n\n{table}\n")
    if options.update:
        text = options.update.read_text()
        for name, table in tables.items():
            text = replaced_between(text, MARK.format(f"{name} begins"), MARK.format(f"{name} ends"), table)
        draw(options.update.with_suffix(""), model, points, ranks, on)
        options.update.write_text(text)


if __name__ == "__main__":
    main()
