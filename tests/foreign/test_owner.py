"""The device stays its owner's, and so do its defaults."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.support.cpp_build import ROOT
from tests.support.interpreter import run_python
from torch_occl import ProcessGroupOCCL

DEVICE = "foreign:0"


def who_owns(rank: int, n: int, device: str) -> None:
    assert torch._C._get_privateuse1_backend_name() == "foreign" and not hasattr(torch, "dev")
    assert isinstance(dist.group.WORLD._get_backend(torch.device(device)), ProcessGroupOCCL)
    assert dist.get_backend_config() == "foreign:occl,cpu:occl"
    assert "foreign" not in dist.Backend.default_device_backend_map
    assert "foreign" not in dist.Backend.backend_capability["gloo"]


def test_the_device_stays_its_owners(pool):
    pool.run(who_owns, 2, DEVICE)


WITHOUT_IMPORT = """
import sys, torch, torch.distributed as dist
from tests.foreign import device
device.load()
dist.init_process_group("cpu:occl,foreign:occl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3, device="foreign")
dist.all_reduce(x)
print(x.tolist(), "torch_occl" in sys.modules)
"""


def test_a_group_that_names_it_needs_no_import(library):
    said = run_python("-c", WITHOUT_IMPORT, path=ROOT, OCCL_DEVICE="")
    assert said.splitlines()[-1] == "[1.0, 1.0, 1.0] False"


def owner_comes_later(rank: int, n: int, device: str) -> None:
    dist.Backend.register_backend("vendor", lambda *_: None, devices=["foreign"])
    assert dist.get_default_backend_for_device("foreign") == "vendor"


def test_a_backend_of_the_owner_becomes_the_default_one(pool):
    with pool.fresh(1) as team:
        team.run(owner_comes_later, DEVICE)


TWO_OWNERS = """
import torch
from tests.foreign import device
device.load()
try:
    torch.utils.rename_privateuse1_backend("second")
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


@pytest.mark.full
def test_the_page_for_vendors_has_the_text_of_a_second_owner(library):
    said = run_python("-c", TWO_OWNERS, path=ROOT).splitlines()[-1]
    documented = (ROOT / "docs/writing-a-backend.md").read_text().replace("\n", " ")
    assert said.endswith("Current backend: foreign") and said.replace("foreign", "...") in documented
