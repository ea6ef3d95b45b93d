"""Each folder of csrc includes only what the layers below it offer; the core includes nothing of PyTorch."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[1] / "csrc"

MAY_INCLUDE = {
    "base": {"base"},
    "kernels": {"kernels", "base"},
    "shm": {"shm", "base"},
    "memory": {"memory", "base", "shm"},
    "coll": {"coll", "base", "kernels", "shm"},
    "hosts": {"hosts", "base", "kernels", "shm", "coll"},
    "ucx": {"ucx", "base", "shm", "coll", "hosts"},
    "tcp": {"tcp", "base", "shm", "ucx"},
    "device": {"device", "base", "shm", "memory", "torch"},
    "pg": {"pg", "base", "kernels", "shm", "memory", "coll", "hosts", "ucx", "tcp", "device", "torch"},
}
MAY_INCLUDE["bind"] = {"bind"} | MAY_INCLUDE["pg"]
"""For each layer the layers whose headers it may include; "torch" stands for PyTorch and all it brings."""

TORCH = {"torch", "ATen", "c10", "c10d", "caffe2", "pybind11", "Python.h", "gloo", "fmt"}
INCLUDE = re.compile(r'^\s*#\s*(?:include|include_next|import)\b\s*(?:([<"])([^>"]+)[>"]|(.*))')


def includes(text: str) -> list[tuple[str, re.Match[str]]]:
    """The lines of a source file that include something."""
    return [(line, match) for line in text.splitlines() if (match := INCLUDE.match(line))]


def violations(layer: str, text: str) -> list[str]:
    """The lines of a source file of ``layer`` that include what that layer may not."""
    allowed = MAY_INCLUDE[layer]
    found = []
    for line, match in includes(text):
        bracket, name, computed = match.groups()
        first = name.split("/")[0] if name else ""
        if first in TORCH:
            fine = "torch" in allowed
        elif computed is not None or ".." in name:
            fine = False
        else:
            # In angle brackets: the standard library (<memory>) or the system. In quotes: always from csrc.
            fine = first in allowed if bracket == '"' else "/" not in name or first not in MAY_INCLUDE
        if not fine:
            found.append(line.strip())
    return found


ROOMS = {
    "coll": {
        "task": set(),
        "plan": {"task"},
        "mesh": {"plan"},
        "observe": {"task", "mesh"},
        "progress": {"task", "observe"},
        "execution": {"task", "plan", "mesh", "observe"},
        "messages": {"task", "plan", "mesh", "observe"},
        "windows": {"task", "plan", "mesh", "observe", "messages"},
        "group": {"task", "plan", "mesh", "observe", "progress", "execution", "messages", "windows"},
    },
    "pg": {
        "compat": set(),
        "request": {"compat"},
        "process": {"request"},
        "observe": {"compat", "request"},
        "transport": {"request", "process"},
        "rendezvous": {"request", "process", "transport"},
        "backend": {"compat", "request", "process", "observe", "transport", "rendezvous"},
        "symmetric": {"backend", "request", "process"},
    },
    "device": {"runtime": set(), "ops": {"runtime"}},
}
"""For each room of a layer the other rooms of it whose headers it may include."""


def sources() -> list[Path]:
    return sorted(path for path in CSRC.rglob("*") if path.suffix in {".h", ".cpp", ".inc"})


def test_every_source_file_lies_in_a_layer():
    assert sources()
    assert [path for path in sources() if path.relative_to(CSRC).parts[0] not in MAY_INCLUDE] == []


def test_fences_are_those_of_base_sync():
    """The explorer replaces that header, so it sees no other fence."""
    found = [path.name for path in sources() if "atomic_thread_fence" in path.read_text()]
    assert found == ["sync.h"]


@pytest.mark.parametrize("layer", MAY_INCLUDE)
def test_a_layer_includes_only_what_it_may(layer):
    found = {
        str(path.relative_to(CSRC)): wrong
        for path in sources()
        if path.relative_to(CSRC).parts[0] == layer and (wrong := violations(layer, path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        ("base", '#include "shm/region.h"'),
        ("base", "#include <torch/extension.h>"),
        ("kernels", '#include "coll/plan/plan.h"'),
        ("kernels", "#include <c10/util/BFloat16.h>"),
        ("shm", '#include "kernels/kernels.h"'),
        ("shm", "  #  include <ATen/ATen.h>"),
        ("shm", '#include "../coll/plan.h"'),
        ("shm", '#include "region.h"'),
        ("memory", '#include "device/runtime/allocator.h"'),
        ("memory", "#include <c10/core/Allocator.h>"),
        ("coll", '#include "pg/backend/work.h"'),
        ("coll", "#include <pybind11/pybind11.h>"),
        ("coll", "#include <Python.h>"),
        ("coll", "#include <device/runtime/allocator.h>"),
        ("kernels", "#include <memory/heap.h>"),
        ("coll", "#include OCCL_HEADER"),
        ("device", '#include "pg/backend/work.h"'),
        ("pg", '#include "bind/bind.h"'),
    ],
)
def test_an_include_of_a_higher_layer_is_found(layer, line):
    assert violations(layer, f"#pragma once\n{line}\n") == [line.strip()]


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        ("base", "#include <atomic>"),
        ("base", "#include <memory>"),
        ("base", '#include "base/error.h"'),
        ("shm", "#include <sys/mman.h>"),
        ("coll", '#include "kernels/kernels.h"'),
        ("device", "#include <c10/core/Allocator.h>"),
        ("memory", '#include "shm/region.h"'),
        ("device", '#include "shm/region.h"'),
        ("device", '#include "memory/heap.h"'),
        ("pg", '#include "coll/plan/plan.h"'),
        ("bind", "#include <torch/extension.h>"),
        ("base", '// #include "pg/backend/work.h" would be wrong here'),
    ],
)
def test_an_include_of_a_lower_layer_is_allowed(layer, line):
    assert violations(layer, line) == []


def wrong_rooms(layer: str, room: str, text: str) -> list[str]:
    """What a source file in a room of a layer includes of rooms that it may not know."""
    allowed = ROOMS[layer][room] | {room}
    parts = [match[2].split("/") for _, match in includes(text) if match[2]]
    return [part[1] for part in parts if part[0] == layer and len(part) > 2 and part[1] not in allowed]


@pytest.mark.parametrize(("layer", "room"), [(layer, room) for layer in ROOMS for room in ROOMS[layer]])
def test_a_room_includes_only_what_it_may(layer, room):
    files = [path for path in sources() if path.is_relative_to(CSRC / layer / room)]
    assert files
    found = {path.name: wrong for path in files if (wrong := wrong_rooms(layer, room, path.read_text()))}
    assert found == {}


@pytest.mark.parametrize("layer", ROOMS)
def test_every_file_lies_in_a_room_and_rooms_have_an_order(layer):
    loose = {path.stem for path in sources() if path.parent == CSRC / layer}
    assert loose <= {"registrations"}
    before: set[str] = set()
    for room, known in ROOMS[layer].items():
        assert known <= before, f"{room} knows a room that comes after it"
        before.add(room)


def test_an_include_of_a_later_room_is_found():
    assert wrong_rooms("coll", "plan", '#include "coll/mesh/mesh.h"') == ["mesh"]
    assert wrong_rooms("coll", "plan", '#include "coll/task/operation.h"') == []
