"""The documentation as a site: MkDocs builds it without a warning, and it has every public name."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "torch_occl",
    "torch_occl.attention",
    "torch_occl.dev",
    "torch_occl.flight_recorder",
    "torch_occl.replicas",
    "occl.testing",
)

OF_MAKE_DOCS = ROOT / "build/docs-venv/bin/python"
HERE = importlib.util.find_spec("mkdocs") and importlib.util.find_spec("mkdocstrings")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not HERE and not OF_MAKE_DOCS.exists(),
        reason="the site needs MkDocs: run make docs once, or pip install '.[docs]'",
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    python = sys.executable if HERE else str(OF_MAKE_DOCS)
    command = [python, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_every_page_is_in_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        built = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / (built.with_name("index.html") if page.name == "README.md" else built)).is_file()


def test_the_site_loads_nothing_from_other_hosts(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=\"?(https?:[^\"> ]+)", page.read_text())
        loaded += re.findall(
            r"<link[^>]*rel=\"?(?:stylesheet|preconnect|preload)[^>]*href=\"?(https?:[^\"> ]+)",
            page.read_text(),
        )
        assert not loaded, page


def test_every_public_name_is_in_the_interface_of_python(site):
    """objects.inv lists what the pages of the interface describe, in Sphinx's format."""
    content = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    described = {line.split()[0] for line in zlib.decompress(content).decode().splitlines()}
    script = (
        "import importlib, torch_occl\n"
        f"for name in {PUBLIC!r}:\n"
        "    module = importlib.import_module(name)\n"
        "    print(*(f'{name}.{public}' for public in module.__all__), sep='\\n')\n"
    )
    names = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(names) > 80
    for path in (ROOT / "torch_occl/integrations").glob("[!_]*.py"):  # importing them needs their packages
        (listed,) = re.findall(r"^__all__ = \[(.*)\]$", path.read_text(), re.M)
        names += [f"torch_occl.integrations.{path.stem}.{name}" for name in re.findall(r"\w+", listed)]
    # Its submodules have the names of torch.dev. These two are PyTorch's, and made when they are asked for.
    described |= {re.sub(r"^torch_occl\.dev\.\w+\.", "torch_occl.dev.", name) for name in described}
    assert set(names) - described == {"torch_occl.dev.OutOfMemoryError", "torch_occl.dev.default_generators"}
