"""The mean of gradients over the devices of one process, beside a round trip through NumPy.

    python benchmarks/replicas.py [--mebibytes 10] [--devices 2] [--seconds 10] [--json FILE]

The round trip is what code in the style of torch.nn.DataParallel does where devices cannot add up each
other's tensors: copy all gradients to the host, add them up with NumPy, and copy the mean to each. The ways
take turns, so that whatever else the machine does hits all of them; the table shows medians and quartiles.
All ways must give the same result, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import torch

import torch_occl  # noqa: F401
from torch_occl import replicas

Way = Callable[[list[torch.Tensor]], object]


def through_numpy(tensors: list[torch.Tensor]) -> None:
    arrays = [tensor.cpu().numpy() for tensor in tensors]
    mean = numpy.mean(arrays, axis=0, dtype=arrays[0].dtype)
    for tensor in tensors:
        tensor.copy_(torch.from_numpy(mean))


def through_numpy_in_place(tensors: list[torch.Tensor]) -> None:
    """The same without ``mean``, which first copies all arrays into one."""
    arrays = [tensor.cpu().numpy() for tensor in tensors]
    total = arrays[0].copy()
    for array in arrays[1:]:
        numpy.add(total, array, out=total)
    numpy.divide(total, len(arrays), out=total)
    for tensor in tensors:
        tensor.copy_(torch.from_numpy(total))


WAYS: dict[str, Way] = {
    "all_reduce_p2p": lambda tensors: replicas.all_reduce_p2p(tensors, "mean"),
    "all_reduce (through the host)": lambda tensors: replicas.all_reduce(tensors, "mean"),
    "NumPy round trip, in place": through_numpy_in_place,
    "NumPy round trip": through_numpy,
}


def gradients(devices: int, mebibytes: float) -> list[torch.Tensor]:
    """Of numbers whose mean stays what it is, so that repeating does not change it."""
    generator = torch.Generator().manual_seed(0)
    count = int(mebibytes * 2**20) // 4
    return [torch.randn(count, generator=generator).to(f"dev:{i}") for i in range(devices)]


def check(devices: int) -> None:
    """Every way gives every device the same result."""
    expected = None
    for name, way in WAYS.items():
        tensors = gradients(devices, 0.1)
        way(tensors)
        expected = tensors[0].cpu() if expected is None else expected
        for tensor in tensors:
            torch.testing.assert_close(tensor.cpu(), expected, msg=lambda m, name=name: f"{name}: {m}")


def measure(devices: int, mebibytes: float, seconds: float) -> dict[str, list[float]]:
    """Seconds of each call, for each way."""
    tensors = gradients(devices, mebibytes)
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for way in WAYS.values():
        for _ in range(3):
            way(tensors)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, way in WAYS.items():
            started = time.perf_counter()
            way(tensors)
            times[name].append(time.perf_counter() - started)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=float, default=10.0, help="of float32 gradients on each device")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="for the whole table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args()
    check(options.devices)
    times = measure(options.devices, options.mebibytes, options.seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    baseline = min(medians[name] for name in WAYS if name.startswith("NumPy"))
    print(
        f"mean of {options.mebibytes:g} MiB of float32 on each of {options.devices} devices, "
        f"{len(times['all_reduce_p2p'])} rounds, {torch.get_num_threads()} threads, "
        f"{torch.dev.get_device_name()}\n"
    )
    print(f"{'':<32}{'median ms':>10}{'quartiles':>18}{'times as fast as the better round trip':>42}")
    rows = []
    for name, values in times.items():
        low, _, high = statistics.quantiles(values, n=4)
        rows.append({"way": name, "median": medians[name], "quartiles": [low, high]})
        quartiles = f"{low * 1e3:.2f} .. {high * 1e3:.2f}"
        print(f"{name:<32}{medians[name] * 1e3:10.2f}{quartiles:>18}{baseline / medians[name]:42.1f}")
    if options.json:
        machine = {"machine": torch.dev.get_device_name(), "cores": len(os.sched_getaffinity(0))}
        settings = {key: value for key, value in vars(options).items() if key != "json"}
        content = machine | settings | {"torch": torch.__version__, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
