"""`occl.testing.gpu.suites`: tests for GPUs, which are skipped without it, run on ``dev``."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from occl.testing.gpu import suites
from tests.support import own_pytest
from tests.support.own_pytest import Ending

SAMPLE = Path(__file__).parent / "support" / "gpu_suite_sample.py"
CONFTEST = """
from pathlib import Path

from occl.testing.gpu import suites

suites.install(Path(__file__).parent)
"""
BAD = {"test_bad_assertion", "test_bad_rank"}


def run(folder: Path, plugin: str, conftest: str = "", chosen: str = "") -> dict[str, Ending]:
    """How each test of the sample ends, in a pytest of its own."""
    shutil.copy(SAMPLE, folder / "test_sample.py")
    (folder / "conftest.py").write_text(conftest)
    return own_pytest.run(folder, "-k", chosen, plugin=plugin, settings="").endings


@pytest.mark.full
@pytest.mark.parametrize("left_out", ["OfFSDP or test_ddp", "nothing"])
def test_tests_for_gpus_run_without_any(tmp_path, left_out):
    ended = run(tmp_path, "pytest_torch_occl", CONFTEST, f"not ({left_out})")
    names = set(re.findall(r"def (test_\w+)", SAMPLE.read_text()))
    if left_out != "nothing":
        names -= {"test_ddp", "test_shards"}
    assert {name.partition("[")[0] for name in ended} == names
    kinds = {name: ending.kind for name, ending in ended.items()}
    assert {name for name, kind in kinds.items() if kind != "passed"} == BAD, ended
    assert "assert 2.0 == 3" in ended["test_bad_assertion"].text  # pytest explains what was compared
    assert "Expected 0 but got 1.0" in ended["test_bad_rank"].text  # from the process of a rank


@pytest.mark.full
def test_without_it_they_are_skipped(tmp_path):
    ended = run(tmp_path, "no:pytest_torch_occl")
    assert {ending.kind for ending in ended.values()} == {"skipped"}, ended


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"folder": "no/folder"}, r"there is no folder .*no/folder: pass Path\(__file__\).parent"),
        ({"folder": ".", "device": "xpu"}, r'device must be "dev" or "cpu", not \'xpu\''),
        ({"folder": str(Path(__file__).parent)}, r"tests.test_testing.* has been imported already"),
    ],
)
def test_wrong_arguments_say_what_to_do(arguments, words):
    with pytest.raises(ValueError, match=words):
        suites.install(**arguments)
