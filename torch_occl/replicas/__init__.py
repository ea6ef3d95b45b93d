"""Data parallelism within one process that drives several ``dev`` devices, one replica on each.

No process group is needed, because the process can reach the memory of all its devices. Reductions use the
same kernels as the collectives of the backend ``occl`` and give the same bits: contributions are combined in
the order of the list, float16 and bfloat16 are added up in float32 and rounded once.

    modules = replicas.prepare_replicas(network, ["dev:0", "dev:1"])
    parameters = [list(module.parameters()) for module in modules]
    optimizers = [torch.optim.SGD(p, lr=0.1) for p in parameters]
    for batch in loader:
        result = replicas.data_parallel_step(
            lambda i, _, shard: loss_of(modules[i](shard[0]), shard[1]), parameters, optimizers, batch
        )

All functions take the names and forms of the published interface ``netcl.distributed`` too: queues for
devices, ``forward_fn(queue, *shards, params) -> (loss, tape)``, batches of NumPy arrays. ``docs/replicas.md``
maps name to name.

Wrong arguments raise ``TypeError`` or ``ValueError`` before anything has been changed. An exception in the
code of a replica or a hook becomes a `ReplicaError`.
"""

from torch_occl.replicas._batch import shard_batch
from torch_occl.replicas._comm import Pending, all_reduce, all_reduce_p2p, broadcast, gather, scatter
from torch_occl.replicas._devices import DeviceManager, ReplicaError
from torch_occl.replicas._parameters import (
    MissingGradient,
    broadcast_params,
    prepare_replicas,
    replicate_params,
    sync_grads,
)
from torch_occl.replicas._step import StepResult, data_parallel_step

__all__ = [
    "DeviceManager",
    "MissingGradient",
    "Pending",
    "ReplicaError",
    "StepResult",
    "all_reduce",
    "all_reduce_p2p",
    "broadcast",
    "broadcast_params",
    "data_parallel_step",
    "gather",
    "prepare_replicas",
    "replicate_params",
    "scatter",
    "shard_batch",
    "sync_grads",
]
