"""Warns when the ranks of a host have more threads of PyTorch than cores.

PyTorch starts a thread for each core in every process. ``torchrun`` sets ``OMP_NUM_THREADS=1``; other ways to
start ranks do not, and then the threads of all ranks take the cores away from each other in every operation.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from occl.distributed import program

if TYPE_CHECKING:
    from occl._C import ProcessGroupOCCL

_checked = False


def excess(ranks: int, threads: int, cores: int) -> str:
    """What to tell the user, or nothing.

    Args:
        ranks: of one host.
        threads: of each rank, for PyTorch's operators.
        cores: on which the ranks may run, together.
    """
    if threads == 1 or ranks * threads <= cores:
        return ""
    most = max(1, cores // ranks)
    return (
        f"{ranks} ranks on this host have {threads} threads of PyTorch each and {cores} cores together, so "
        f"the threads of one rank slow down the others. Set OMP_NUM_THREADS={most} before the ranks start "
        f"(torchrun sets 1), or call torch.set_num_threads({most}) in each before init_process_group"
    )


def check(backend: ProcessGroupOCCL) -> None:
    """Warns in rank 0 of this process's first group, which takes the other ranks to have as many threads."""
    global _checked
    if _checked:
        return
    _checked = True
    ranks, cores = backend._ranks_and_cores()
    text = excess(ranks, torch.get_num_threads(), cores)
    if backend.rank() == 0 and text:
        warnings.warn(text, stacklevel=program.stacklevel())
