"""The body of a process that runs a script as a fresh interpreter would that has imported torch.

It imports nothing of torch_occl: what importing that does is up to the script.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from occl.testing.child import EndInterpreter


def run(
    rank: int,
    n: int,
    device: str,
    *,
    text: str,
    arguments: list[str],
    environment: dict[str, str],
    output: str,
) -> None:
    """Ends the process as the interpreter does at the end of the script, whose stdout becomes this file."""
    import torch

    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT, 0o600), 1)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        torch._import_device_backends()  # the last thing that `import torch` does
    sys.argv = ["-c", *arguments]
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(compile(text, "<script>", "exec"), main.__dict__)
    raise EndInterpreter(0)
