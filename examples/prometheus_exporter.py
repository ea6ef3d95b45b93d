"""Exports what the groups of this process do to Prometheus: call `export` once in every rank.

Needs prometheus_client. By itself this script is one rank that reduces until Ctrl-C, as under torchrun:
torchrun --nproc-per-node=2 examples/prometheus_exporter.py, then look at http://localhost:9400/metrics.
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from prometheus_client import start_http_server
from prometheus_client.core import REGISTRY, CounterMetricFamily

import torch_occl


class Exporter:
    def collect(self) -> Iterator[CounterMetricFamily]:
        for name in ("operations", "failed", "bytes", "waiting_seconds", "moving_seconds"):
            family = CounterMetricFamily(f"occl_{name}", f"{name} of collectives", labels=["group", "kind"])
            for group, kinds in torch_occl.stats().items():
                for kind, stats in kinds.items():
                    family.add_metric([group, kind], getattr(stats, name))
            yield family


def export(port: int) -> None:
    REGISTRY.register(Exporter())
    start_http_server(port, addr="localhost")


if __name__ == "__main__":
    dist.init_process_group("occl")
    export(9400 + int(os.environ.get("LOCAL_RANK", "0")))
    while True:
        dist.all_reduce(torch.ones(1 << 20))
