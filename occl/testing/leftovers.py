"""The state of a kept rank that a test must leave as it has found it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class State:
    """What the next test would find."""

    groups: dict[int, str]
    """The names of the process groups, by the identity of each."""
    environment: dict[str, str]
    modules: dict[str, ModuleType]
    folder: str

    def changes(self, later: State) -> str:
        """What a test has changed, for its user; "" if it has left everything as it was.

        Modules that it has imported for the first time are no change: it may be the first to need them.
        """
        replaced = [name for name, it in self.modules.items() if later.modules.get(name) is not it]
        found = [
            (
                "process groups",
                [name for key, name in self.groups.items() if key not in later.groups],
                "ended",
            ),
            (
                "process groups",
                [name for key, name in later.groups.items() if key not in self.groups],
                "left",
            ),
            ("variables", _changed(self.environment, later.environment), "changed"),
            ("modules", replaced, "removed or replaced"),
            ("working directory", [later.folder] if later.folder != self.folder else [], "changed"),
        ]
        return "; ".join(f"{what} {verb}: {', '.join(sorted(names))}" for what, names, verb in found if names)


def _changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]


def state() -> State:
    """The state of this process."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    names = distributed._world.pg_names if distributed else {}
    return State(
        {id(group): str(name) for group, name in names.items()},
        dict(os.environ),
        {name: it for name, it in sys.modules.items() if isinstance(it, ModuleType)},
        str(Path.cwd()),
    )
