"""Draws time over size, and the share of the roofline over size. Needs matplotlib: the extra ``bench``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from occl.bench.report import ROOFLINES, Result, cells_of
from occl.tools.text import duration, size

STYLES: dict[str, dict[str, Any]] = {
    "occl-dev": {"color": "#0072b2", "marker": "o"},
    "occl-cpu-shared": {"color": "#0072b2", "marker": "s", "linestyle": "--"},
    "occl-cpu": {"color": "#56b4e9", "marker": "s"},
    "core-dev": {"color": "#0072b2", "marker": "o", "mfc": "white", "linestyle": ":"},
    "core-cpu": {"color": "#56b4e9", "marker": "s", "mfc": "white", "linestyle": ":"},
    "gloo": {"color": "#d55e00", "marker": "^"},
    "openmpi": {"color": "#009e73", "marker": "v"},
    "mpich": {"color": "#cc79a7", "marker": "D"},
    "intelmpi": {"color": "#e69f00", "marker": "P"},
    "oneccl": {"color": "#7a5195", "marker": "X"},
    "floor": {"color": "#999999", "linestyle": "--"},
    "roofline": {"color": "#000000", "linestyle": "-.", "lw": 1},
}
"""Filled markers: called from Python; hollow ones and those of the peers: from C++ or C."""
LEFT_OUT = {"c++-dev", "c++-cpu", *ROOFLINES}
"""In the table and in the JSON file only: their lines lie on others."""
BANDS_UP_TO = 5
"""Contenders up to which the quartiles are drawn as bands."""


def draw_all(file: Path, results: list[Result], title: str) -> None:
    """Writes ``file``, and beside it FILE-roofline.png if a roofline was measured."""
    names = [n for n in dict.fromkeys(r.contender for r in results) if n not in LEFT_OUT]
    draw(file, [result for result in results if result.contender in names], title)
    if "roofline" in names:
        shares = [name for name in names if name not in ("roofline", "floor")]
        draw_shares(file.with_stem(f"{file.stem}-roofline"), results, shares, title)


def draw(file: Path, results: list[Result], title: str) -> None:
    """Writes a picture: medians as lines, the quartiles as bands where few contenders leave room for them.

    Raises ImportError without matplotlib.
    """
    names = list(dict.fromkeys(result.contender for result in results))
    bands = len(names) <= BANDS_UP_TO
    # Below what a call costs from Python there are only the peers' and the core's calls, and the roofline.
    least = min(result.median_us for result in results if result.contender != "roofline") / 2

    def fill(panel: Any, operation: str, labels: bool) -> None:
        for name in names:
            line = [r for r in results if (r.operation, r.contender) == (operation, name)]
            sizes = [r.bytes for r in line]
            label = name if labels else None
            panel.plot(sizes, [r.median_us for r in line], ms=4, label=label, **STYLES[name])
            if bands:
                lower, upper = [r.lower_us for r in line], [r.upper_us for r in line]
                panel.fill_between(sizes, lower, upper, color=STYLES[name]["color"], alpha=0.2, lw=0)
        panel.set(yscale="log")
        panel.set_ylim(bottom=least)
        panel.yaxis.set_major_formatter(lambda us, _: duration(1e3 * us))

    panels(file, results, f"{title}. Time of a call", names, fill)


def draw_shares(file: Path, results: list[Result], names: list[str], title: str) -> None:
    """Writes a picture: the roofline's time divided by each contender's, in percent."""
    cells = cells_of(results)

    def fill(panel: Any, operation: str, labels: bool) -> None:
        rows = [(size, row) for (of, size), row in cells.items() if of == operation and "roofline" in row]
        for name in names:
            line = [(size, 100 * row["roofline"] / row[name]) for size, row in rows if name in row]
            label = name if labels else None
            panel.plot(*zip(*line, strict=True) if line else ([], []), ms=4, label=label, **STYLES[name])
        panel.axhline(80, color="#999999", lw=0.8, linestyle="--")
        panel.set_ylim(0, 110)
        panel.yaxis.set_major_formatter(lambda share, _: f"{share:g} %")

    with_line = [r for r in results if "roofline" in cells[r.operation, r.bytes]]
    panels(file, with_line, f"{title}. Share of the roofline (dashed: 80 %)", names, fill)


def panels(
    file: Path,
    results: list[Result],
    title: str,
    names: list[str],
    fill: Callable[[Any, str, bool], None],
) -> None:
    """One panel for each operation that has sizes, with a legend below all of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator

    operations = list(dict.fromkeys(result.operation for result in results if result.bytes))
    columns = min(len(operations), 3)
    rows = -(-len(operations) // columns)
    height = 3.2 * rows + 1.2
    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(max(4.6 * columns, 8), height),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    for index, (panel, operation) in enumerate(zip(axes.flat, operations, strict=False)):
        fill(panel, operation, index == 0)
        panel.set(xscale="log", title=operation)
        panel.xaxis.set_major_locator(LogLocator(base=16))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda bytes_, _: size(bytes_)))
        panel.xaxis.set_minor_locator(LogLocator(base=4))
        panel.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        panel.grid(color="#dddddd", lw=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    for index, panel in enumerate(axes.flat):
        panel.set_visible(index < len(operations))
        panel.tick_params(labelbottom=index + columns >= len(operations))
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    legend_rows = -(-len(names) // 6)
    figure.legend(loc="lower left", ncol=6, frameon=False)
    figure.tight_layout(rect=(0, (0.1 + 0.22 * legend_rows) / height, 1, 1 - 0.1 / height))
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
