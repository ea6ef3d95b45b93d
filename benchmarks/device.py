"""What `dev` costs over the CPU: the same work on both, interleaved, medians.

    python benchmarks/device.py [--seconds 3] [--json FILE]

Prints one table. Ratios are what counts: absolute times depend on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

import torch_occl  # noqa: F401


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(1000, 256)
        self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens))).flatten(0, 1)


def mlp(device: str):
    model = nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 128)
    )
    return model.to(device), torch.randn(64, 784).to(device), torch.randint(128, (64,)).to(device)


def transformer(device: str):
    return (
        Transformer().to(device),
        torch.randint(1000, (4, 64)).to(device),
        torch.randint(1000, (256,)).to(device),
    )


def digits(device: str):
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    return model.to(device), torch.randn(64, 1, 8, 8).to(device), torch.randint(10, (64,)).to(device)


NETWORKS = {
    "MLP, 2 M parameters, batch 64": mlp,
    "transformer, 4 layers of 256": transformer,
    "digits network": digits,
}


def training_step(make, device: str):
    torch.manual_seed(0)
    model, x, y = make(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def small_operations(device: str):
    a, b = torch.randn(8).to(device), torch.randn(8).to(device)
    m = torch.randn(8, 8).to(device)
    parts = [torch.randn(8).to(device) for _ in range(10)]
    return {
        "add, 8 numbers": lambda: a + b,
        "add in place, 8 numbers": lambda: a.add_(b),
        "matrix product, 8 x 8": lambda: m @ m,
        "concatenate 10 tensors": lambda: torch.cat(parts),
        "sum": lambda: a.sum(),
        "item": lambda: a[0].item(),
        "view": lambda: a.view(2, 4),
        "empty, 8 numbers": lambda: torch.empty(8, device=device),
    }


def measure(cpu, dev, seconds: float) -> tuple[float, float]:
    """Median seconds of each, measured in turns so that what the machine does meanwhile hits both."""
    for f in (cpu, dev):
        for _ in range(3):
            f()
    started = time.perf_counter()
    cpu()
    batch = max(1, int(2e-3 / (time.perf_counter() - started)))
    times: dict[object, list[float]] = {cpu: [], dev: []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for f in (cpu, dev):
            started = time.perf_counter()
            for _ in range(batch):
                f()
            times[f].append((time.perf_counter() - started) / batch)
    return statistics.median(times[cpu]), statistics.median(times[dev])


def peak_memory(name: str, device: str) -> int:
    """Peak resident bytes of a fresh process while it trains for 20 steps, less what it had before."""
    command = [sys.executable, __file__, "--peak-memory-of", name, "--on", device]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def proc_status(field: str) -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise KeyError(field)


def print_peak_memory(name: str, device: str) -> None:
    torch.ones(8, 8).to(device) @ torch.ones(8, 8).to(
        device
    )  # what the first operation costs is not of interest
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # the peak starts again from here
    before = proc_status("VmRSS")
    step = training_step(NETWORKS[name], device)
    for _ in range(20):
        step()
    peak = proc_status("VmHWM") - before
    if device == "dev":  # reserved memory counts, whether it has been touched or not
        peak += max(0, torch.dev.max_memory_reserved() - proc_status("RssShmem"))
    print(peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each line")
    parser.add_argument("--json", help="write the numbers to this file")
    parser.add_argument("--no-memory", action="store_true", help="leave out the peak memory")
    parser.add_argument("--peak-memory-of", choices=NETWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--on", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_memory_of:
        return print_peak_memory(options.peak_memory_of, options.on)

    rows = []
    on_cpu, on_dev = small_operations("cpu"), small_operations("dev")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print(f"{'':<34}{'CPU us':>12}{'dev us':>12}{'ratio':>9}{'dev - CPU us':>15}{'peak memory':>13}")
    for name in on_cpu:
        cpu, dev = measure(on_cpu[name], on_dev[name], options.seconds / 3)
        rows.append({"name": name, "cpu_us": cpu * 1e6, "dev_us": dev * 1e6})
        print(
            f"{name:<34}{cpu * 1e6:12.2f}{dev * 1e6:12.2f}{dev / cpu:9.2f}{(dev - cpu) * 1e6:15.2f}",
            flush=True,
        )
    for name, make in NETWORKS.items():
        cpu, dev = measure(training_step(make, "cpu"), training_step(make, "dev"), options.seconds * 3)
        row = {"name": name, "cpu_us": cpu * 1e6, "dev_us": dev * 1e6}
        text = f"{name:<34}{cpu * 1e6:12.0f}{dev * 1e6:12.0f}{dev / cpu:9.3f}{(dev - cpu) * 1e6:15.0f}"
        if not options.no_memory:
            row["peak_ratio"] = peak_memory(name, "dev") / peak_memory(name, "cpu")
            text += f"{row['peak_ratio']:13.2f}"
        rows.append(row)
        print(text, flush=True)
    if options.json:
        with open(options.json, "w") as file:
            machine = {"machine": torch.dev.get_device_name(), "cores": torch.dev.get_device_properties()[2]}
            json.dump(
                {**machine, "torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows},
                file,
                indent=1,
            )
            file.write("\n")


if __name__ == "__main__":
    main()
