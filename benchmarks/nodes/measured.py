"""The tables of what was measured between hosts, as the documentation shows them."""

from occl.tools import text

CONTENDERS = {
    "occl-tcp": "occl over TCP",
    "occl-ucx": "occl over UCX",
    "gloo": "Gloo",
    "c++-tcp": "occl from C++",
    "openmpi": "Open MPI from C",
}
SIZES = [4, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
LIMITED_SIZES = [1 << 20, 64 << 20]
LIMIT = "1gbit"


def medians(rows: list[dict]) -> dict[int, dict[str, float]]:
    """By size, the microseconds of an all_reduce of each contender."""
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["operation"] == "all_reduce":
            found.setdefault(row["bytes"], {})[row["contender"]] = row["median_us"]
    return found


def all_reduce_table(content: dict) -> str:
    """Of a result of ``benchmarks/hosts.py``. The last columns have the time over that of Open MPI."""
    rows = []
    for shape, found in content.items():
        if shape == "machine":
            continue
        for rate, sizes in (("none", SIZES), (LIMIT, LIMITED_SIZES)):
            times = medians(found["tables"].get(rate, []))
            for size in sizes if times else []:
                us = times[size]
                cells = [text.duration(1e3 * us[name]) for name in CONTENDERS]
                over = [f"{us[name] / us['openmpi']:.2f}" for name in ("occl-tcp", "c++-tcp")]
                network = "no limit" if rate == "none" else "1 Gbit/s"
                first = f"{shape.replace('+', ' + ')}, {network}" if size == sizes[0] else ""
                rows.append([first, text.size(size), *cells, *over])
    header = ["ranks, network", "size", *CONTENDERS.values(), "TCP over Open MPI", "C++ over Open MPI"]
    return "\n".join(text.markdown_table(header, rows))


def groups_table(runs: list[dict]) -> str:
    """Of results of ``benchmarks/startup.py``: milliseconds to make and to destroy groups."""
    rows = []
    for run in sorted(runs, key=lambda run: (run["nodes"] > 1, run["ranks"], run["nodes"])):
        times = [run["first_ms"][name] for name in ("occl", "gloo")]
        times += [
            run["groups"][name][what] for what in ("create_ms", "destroy_ms") for name in ("occl", "gloo")
        ]
        rows.append([str(run["ranks"]), str(run["nodes"]), *map(text.three_digits, times)])
    header = ["ranks", "nodes", "first: occl", "Gloo", "make: occl", "Gloo", "destroy: occl", "Gloo"]
    return "\n".join(text.markdown_table(header, rows))
