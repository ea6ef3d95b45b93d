"""Run in a process of its own: says what PyTorch and torch_occl are, a JSON object on each line.

What has been said stays said if a later line raises an exception, crashes or hangs: the command then knows
how far it came.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

from occl import registration, versions


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def owner() -> dict[str, Any]:
    """The PrivateUse1 device of this process."""
    import torch

    name = torch._C._get_privateuse1_backend_name()
    module = getattr(torch, name, None)
    return {"name": name, "module": getattr(module, "__name__", ""), "file": getattr(module, "__file__", "")}


def ucx() -> dict[str, str]:
    """The version of UCX, or "", and why it is not used."""
    module = importlib.import_module("occl.distributed.ucx")
    try:
        return {"version": module.version(), "why_not": module.why_not()}
    except RuntimeError as error:
        return {"version": "", "why_not": module.why_not() or str(error).partition("\n")[0]}


def main() -> None:
    torch = importlib.import_module("torch")
    say(torch=torch.__version__, torch_file=torch.__file__)
    dist = torch.distributed
    say(
        capability=torch.backends.cpu.get_cpu_capability(),
        debug=torch.version.debug,
        cxx11_abi=torch.compiled_with_cxx11_abi(),
        threads=torch.get_num_threads(),
        distributed=dist.is_available(),
        gloo=dist.is_available() and dist.is_gloo_available(),
        autoload=registration.names() if dist.is_available() else [],
        owner_of_name=registration.owner("occl") if dist.is_available() else "",
        before=owner(),
    )
    versions.check_running()  # before torch_occl, whose error sends to the doctor
    extension = importlib.import_module("occl._C")
    package = importlib.import_module("torch_occl")
    device = importlib.import_module("torch_occl.dev._registration").registered()
    say(
        package=package.__version__,
        package_file=package.__file__,
        extension=extension.__file__,
        commit=versions.commit_of(torch.__version__),
        device=device,
        taken=extension._device_taken(),
        after=owner(),
    )
    say(devices=extension._device_count() if device else 0)
    say(isa=extension._isa())
    say(memory=extension._device_memory_limit())
    say(ucx=ucx())
    say(done=True)


if __name__ == "__main__":
    main()
