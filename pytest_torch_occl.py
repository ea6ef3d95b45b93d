"""The entry point that pytest calls if torch_occl is installed (group ``pytest11``).

The plugin is ``torch_occl.testing.plugin``. It is loaded without the package's ``__init__``, so that no test
run imports PyTorch or gets the device ``dev`` because of it. ``from torch_occl.testing import ...`` in a test
module then finds the loaded module and makes no device either.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from _torch_occl_autoload import load_alone


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Registers the plugin, whose own hooks pytest then calls."""
    pluginmanager.register(load_alone("testing.plugin"), "torch_occl.testing")


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Registers the conformance suite where it is asked for: its options have names that others use too."""
    suite = Path(__file__).parent / "torch_occl" / "conformance"
    if any(arg == "torch_occl.conformance" or Path(arg).absolute() == suite for arg in args):
        early_config.pluginmanager.register(load_alone("conformance.plugin"), "torch_occl.conformance")
