"""Which package owns PrivateUse1, and which distributions have the files of torch_occl."""

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


def test_the_kits_beside_torch_occl_are_a_warning(tmp_path, monkeypatch):
    taken = {"taken": True, "device": False, "before": place("dev"), "after": place("dev")}
    said = {"extension": __file__, "commit": "", "package": "1.0", "package_file": __file__} | taken
    assert all(line.name != "torch_occl_kits" for line in software.package_lines(said))
    (folder := tmp_path / "torch_occl_kits-1.2.dist-info").mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_occl_kits\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    line = software.package_lines(said)[-1]
    assert (line.name, line.text, line.level) == ("torch_occl_kits", "1.2", WARNING)
    assert "pip uninstall torch_occl_kits torch_occl" in line.remedy
