"""Says which backend a program got that asks for Gloo: one rank does, once for all of its job.

`occl.distributed.gloo` knows the choice, which all ranks of a group have made together.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from occl import variables
from occl.distributed import program

_said: set[str] = set()
"""Why groups of this process became Gloo's; "" once occl has been in its place."""


def tell(name: str, rank: int, size: int, choice: Mapping[str, Any]) -> None:
    """Says once in a job that occl is in Gloo's place, and once for each reason why it is not.

    Rank 0 of the job writes a line to standard error where the environment asked for occl: a program that
    calls `replace_gloo` knows. That a group is Gloo's is a warning of its first rank that asked for occl,
    because rank 0 may not have. ``OCCL_QUIET=1`` leaves both out.

    Args:
        name: of the group.
        rank: of this process in the group.
    """
    if choice["why"] in _said:
        return
    _said.add(choice["why"])
    if variables.quiet():
        return
    if choice["occl"]:
        if variables.in_place_of() and (dist.get_rank() if dist.is_initialized() else rank) == 0:
            ranks = f"{size} rank{'s' * (size > 1)}"
            line = f"torch_occl: group {name} ({ranks}) uses occl in the place of Gloo (OCCL_IN_PLACE_OF)"
            print(line, file=sys.stderr, flush=True)
    elif rank == choice["first"]:
        warnings.warn(
            f"group {name} uses Gloo, and not occl in its place: {choice['why']} (said once for each reason)",
            stacklevel=program.stacklevel(),
        )
