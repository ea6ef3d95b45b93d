"""The smallest backend of torch.distributed: all_reduce, broadcast and barrier, through the group's store."""

import my_device  # noqa: F401  (first the device: the backend is registered for it, by its name)
import torch
import torch.distributed as dist

from my_backend._C import MyBackend


def create(opts, _options=None):
    """The factory that init_process_group and new_group call (PyTorch's extended backend API)."""
    return MyBackend(opts.store, opts.group_rank, opts.group_size, opts.timeout)


def autoload():
    """What ``import torch`` calls where the package is installed: importing this module has done it all."""


def devices():
    """The CPU, and the device of this process that comes from outside of PyTorch, if there is one by now."""
    own = torch._C._get_privateuse1_backend_name()
    return ["cpu"] if own == "privateuseone" else ["cpu", own]


if "my_backend" not in dist.Backend.backend_list:
    dist.Backend.register_backend("my_backend", create, extended_api=True, devices=devices())
