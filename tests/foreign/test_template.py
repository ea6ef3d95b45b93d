"""The backend template serves a device that is not the host's memory, by copies to the host and back."""

from __future__ import annotations

import os

import pytest

from tests.support.cpp_build import ROOT
from tests.test_conformance import suite
from tests.test_example_backend_template import built  # noqa: F401  (a fixture)


@pytest.mark.full
def test_the_template_conforms_on_the_device(library, built, tmp_path):  # noqa: F811
    declared = (built / "capabilities.toml").read_text()
    declared = declared.replace('import = ["my_backend"]', 'import = ["tests.foreign.loaded", "my_backend"]')
    tmp_path.joinpath("capabilities.toml").write_text(declared)
    done = suite(
        *("--backend=my_backend", "--device=foreign", "--world-size=3", "--quick"),
        f"--capabilities={tmp_path / 'capabilities.toml'}",
        folder=tmp_path,
        env={"PYTHONPATH": f"{ROOT}{os.pathsep}{built}"},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
