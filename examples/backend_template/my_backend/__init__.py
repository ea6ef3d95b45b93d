"""The smallest backend of torch.distributed: all_reduce, broadcast, all_gather, barrier, over the store."""


def autoload():
    """What ``import torch`` calls where the package is installed: importing this module has done it all.

    It comes before the imports: where this module is imported first, it imports torch, which asks for the
    function.
    """


import my_device.loading  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from my_backend._C import MyBackend  # noqa: E402

my_device.loading.make()  # first the device: the backend is registered for it, by its name


def create(opts, _options=None):
    """The factory that init_process_group and new_group call (PyTorch's extended backend API)."""
    return MyBackend(opts.store, opts.group_rank, opts.group_size, opts.timeout)


def devices():
    """The CPU, and the device of this process that comes from outside of PyTorch, if there is one by now."""
    own = torch._C._get_privateuse1_backend_name()
    return ["cpu"] if own == "privateuseone" else ["cpu", own]


if "my_backend" not in dist.Backend.backend_list:
    dist.Backend.register_backend("my_backend", create, extended_api=True, devices=devices())
