"""Which package owns PrivateUse1."""

import pytest

from occl.tools.doctor import software
from occl.tools.doctor.report import FINE, WARNING


def place(name: str, module: str = "") -> dict:
    return {"name": name, "module": module, "file": ""}


@pytest.mark.parametrize(
    ("said", "unwanted", "level", "text"),
    [
        (
            {"device": True, "devices": 8, "before": place("privateuseone"), "after": place("dev")},
            False,
            FINE,
            "torch_occl: dev, 8 devices",
        ),
        (
            {"device": True, "devices": 1, "before": place("dev"), "after": place("dev")},
            False,
            FINE,
            "torch_occl: dev, 1 devices (import torch alone makes it)",
        ),
        (
            {"device": False, "before": place("privateuseone"), "after": place("privateuseone")},
            True,
            FINE,
            "no package (OCCL_DEVICE=0)",
        ),
        (
            {"device": False, "before": place("npu", "torch_npu"), "after": place("npu", "torch_npu")},
            False,
            WARNING,
            "torch_npu: npu",
        ),
        (
            {
                "device": False,
                "taken": True,
                "before": place("privateuseone"),
                "after": place("privateuseone"),
            },
            True,
            FINE,
            "another package: privateuseone",
        ),
    ],
)
def test_the_owner_of_privateuse1_is_named(said, unwanted, level, text):
    line = software.owner_line({"taken": False} | said, unwanted)
    assert (line.level, line.text) == (level, text)
