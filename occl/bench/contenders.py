"""What is compared: a backend together with the device its tensors are on."""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist

from occl.distributed import ucx
from torch_occl import ProcessGroupOCCL, share_cpu_memory  # which makes the device that is compared


@dataclass(frozen=True)
class Contender:
    """A backend, the kind of device its tensors are on, and how both appear in tables."""

    name: str
    backend: str
    device_type: str
    moves_data: bool = True
    """Without it, results are not checked: such a backend shows what a call costs before any work."""
    shared: bool = False
    """Whether the tensors lie in memory that the other ranks can map."""
    carrier: str | None = None
    """What carries messages between nodes, if not what the backend takes by default."""

    def device(self, rank: int) -> torch.device:
        """The device of a rank: ranks share devices where there are fewer."""
        if self.device_type == "cpu":
            return torch.device("cpu")
        module = torch.get_device_module(self.device_type)
        return torch.device(self.device_type, rank % module.device_count())

    @property
    def mapped(self) -> bool:
        """Whether its tensors lie where the other ranks can map them."""
        return self.backend == "occl" and (self.shared or self.device_type != "cpu")

    def memory(self, min_bytes: int = 1) -> AbstractContextManager[None]:
        """What tensors must be made in. Those of ``min_bytes`` or more are shared, if any."""
        return share_cpu_memory(min_bytes) if self.shared else nullcontext()


CONTENDERS = {
    contender.name: contender
    for contender in [
        Contender("occl-dev", "occl", "dev"),
        Contender("occl-cpu-shared", "occl", "cpu", shared=True),
        Contender("occl-cpu", "occl", "cpu"),
        Contender("gloo", "gloo", "cpu"),
        Contender("floor", "fake", "cpu", moves_data=False),
    ]
}
BETWEEN_HOSTS = {
    contender.name: contender
    for contender in [
        Contender(f"occl-{carrier}", "occl", "cpu", carrier=carrier) for carrier in ("ucx", "tcp", "gloo")
    ]
}
"""Those that differ from another one only where the ranks are on several hosts."""
EVERY = CONTENDERS | BETWEEN_HOSTS


def check_available(names: Iterable[str]) -> None:
    """Raises RuntimeError, saying which, if a contender cannot run here."""
    for contender in (EVERY[name] for name in names):
        missing = ""
        if contender.backend == "occl" and not dist.is_backend_available("occl"):
            missing = "the backend occl is not registered"
        elif contender.carrier == "ucx" and not ucx.found():
            missing = "UCX is not installed"
        elif contender.device_type not in ("cpu", torch._C._get_privateuse1_backend_name()):
            missing = f"no device {contender.device_type} is registered"
        if missing:
            raise RuntimeError(
                f"{contender.name} cannot run: {missing}. Is torch_occl installed, with its extension built? "
                f"--contenders chooses others: {', '.join(CONTENDERS)}."
            )


def options_of(name: str) -> ProcessGroupOCCL.Options | None:
    """Those that choose what carries a contender's messages between nodes."""
    carrier = EVERY[name].carrier
    return ProcessGroupOCCL.Options(inter_node=carrier) if carrier else None


def make_groups(names: Iterable[str]) -> dict[str, dist.ProcessGroup]:
    """A group of all ranks for each contender, beside the default group and all at once."""
    groups = {}
    for name in names:
        backend = EVERY[name].backend
        if backend == "fake":
            # Importing it registers the backend.
            import torch.testing._internal.distributed.fake_pg  # noqa: F401
        groups[name] = dist.new_group(backend=backend, pg_options=options_of(name))
    return groups


def occl_variables() -> dict[str, str]:
    """The settings of occl in the environment, which belong to a result."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("OCCL_")}
