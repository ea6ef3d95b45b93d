"""Draws time over size, one panel for each operation. Needs matplotlib: the extra ``bench``."""

from pathlib import Path

from torch_occl.bench.report import Result, size_name

COLORS = {"occl-dev": "#0072b2", "occl-cpu": "#56b4e9", "gloo": "#d55e00", "floor": "#999999"}
MARKERS = {"occl-dev": "o", "occl-cpu": "s", "gloo": "^", "floor": None}


def time_name(us: float) -> str:
    """For people: 10 us, 1 ms."""
    return f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} us"


def draw(file: Path, results: list[Result], title: str) -> None:
    """Writes a picture: medians as lines, the quartiles as bands. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator

    operations = list(dict.fromkeys(result.operation for result in results if result.bytes))
    columns = min(len(operations), 3)
    rows = -(-len(operations) // columns)
    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(max(4.6 * columns, 8), 3.5 * rows + 0.8),
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    for panel, operation in zip(axes.flat, operations, strict=False):
        for name in dict.fromkeys(result.contender for result in results):
            line = [r for r in results if (r.operation, r.contender) == (operation, name)]
            sizes = [r.bytes for r in line]
            style = {"color": COLORS[name], "linestyle": "--" if name == "floor" else "-"}
            panel.plot(sizes, [r.median_us for r in line], marker=MARKERS[name], ms=4, label=name, **style)
            panel.fill_between(
                sizes,
                [r.lower_us for r in line],
                [r.upper_us for r in line],
                color=COLORS[name],
                alpha=0.2,
                lw=0,
            )
        panel.set(xscale="log", yscale="log", title=operation)
        panel.xaxis.set_major_locator(LogLocator(base=16))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_name(int(size))))
        panel.xaxis.set_minor_locator(LogLocator(base=4))
        panel.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda us, _: time_name(us)))
        panel.grid(color="#dddddd", lw=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    for index, panel in enumerate(axes.flat):
        panel.set_visible(index < len(operations))
        panel.tick_params(labelbottom=index + columns >= len(operations))
    for panel in axes[:, 0]:
        panel.set_ylabel("time of a call")
    axes[0, 0].legend(frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
