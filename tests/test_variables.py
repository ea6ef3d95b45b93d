"""Wrong values of environment variables: which they are, and where they are noticed."""

from __future__ import annotations

import json
import re

import pytest

from occl import variables
from tests.support.cpp_build import ROOT

WRONG = {
    "OCCL_DEVICE": ["on", "2"],
    "OCCL_IN_PLACE_OF": ["nccl", "1"],
    "OCCL_QUIET": ["2", "yes"],
    "OCCL_SHARE_CPU": ["yes", "-1", "1" * 30],
    "OCCL_STUCK_AFTER": ["on", "-1", "nan", "1e7"],
    "OCCL_DEVICE_COUNT": ["0", "65", "many", "8.0", "8 ", "1_0", "-1", " "],
    "OCCL_MEMORY_FRACTION": ["2", "0", "half", "-0.5", "nan", "inf", "0.5 ", "0.9_5", ".", "1e", " "],
    "OCCL_INTER_NODE": ["mpi", "UCX", "gloo ", "gl\x01oo", "gl\udcffoo"],
    "OCCL_ISA": ["avx1024", "AVX2"],
    "OCCL_NODE": [" a", "a ", "\n", "a\tb", "ü", "a" * 64],
    "OCCL_TOPOLOGY": ["0-1;2-3", "a", "1-0", "0-1,1-2", "2,0", "0-", "-1", "0,", "1234567", "0 1"],
    "OCCL_TUNING": [
        "nonsense",
        "nonsense=1",
        "slot_bytes",
        "slot_bytes=",
        "slot_bytes=-1",
        "slot_bytes=1k",
        "=5",
        ",",
        "slot_bytes=1,,",
        "slot_bytes=1,a=2",
        "slot_bytes=18446744073709551616",
    ],
}
RIGHT = {
    "OCCL_DEVICE": ["0", "1", ""],
    "OCCL_IN_PLACE_OF": ["gloo", "Gloo", ""],
    "OCCL_QUIET": ["0", "1", ""],
    "OCCL_SHARE_CPU": ["0", "1", "16384"],
    "OCCL_STUCK_AFTER": ["0", "0.5", "1e3"],
    "OCCL_DEVICE_COUNT": ["1", "64", "+8", " 08"],
    "OCCL_MEMORY_FRACTION": ["1", "0.95", ".5", "5e-1", " 1."],
    "OCCL_INTER_NODE": ["gloo", "ucx", ""],
    "OCCL_ISA": ["avx512", "avx2", "neon_bf16", "baseline"],
    "OCCL_NODE": ["a", "node 1", "~" * 63, ""],
    "OCCL_TOPOLOGY": ["0", "0-31,32-63", "1,3-5", "000000"],
    "OCCL_TRACE": ["/tmp/a b", "ü"],
    "OCCL_TUNING": ["slot_bytes=0", "slot_bytes=1,", "far_ns=18446744073709551615,ring_bytes=007", ""],
}


def test_every_variable_has_a_check():
    assert {*WRONG, "OCCL_TRACE"} == {*RIGHT} == {*variables.NAMES}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_named_with_the_variable(name):
    for value in WRONG[name]:
        found = variables.wrong({name: value})
        assert [*found] == [name] and re.match(rf"{name}\b", found[name]), value


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_value_is_not(name):
    for value in RIGHT[name]:
        assert variables.wrong({name: value}) == {}


BY_THE_EXTENSION = """
import json, os, sys
import torch, torch.distributed as dist
from occl import _C

def group():
    _C.ProcessGroupOCCL(dist.HashStore(), 0, 1, _C.ProcessGroupOCCL.Options())

read = {
    "OCCL_DEVICE_COUNT": _C._device_count,
    "OCCL_MEMORY_FRACTION": _C._device_memory_limit,
    "OCCL_INTER_NODE": lambda: _C.ProcessGroupOCCL.Options(inter_node=os.environ["OCCL_INTER_NODE"]),
    "OCCL_ISA": _C._isa,
}

def text(name, value):
    os.environ[name] = value
    try:
        read.get(name, group)()
    except (RuntimeError, ValueError) as error:
        return str(error).replace("Options.inter_node", name)
    finally:
        del os.environ[name]
    return ""

asked = json.loads(sys.argv[1])
print(json.dumps({name: [text(name, value) for value in asked[name]] for name in asked}))
"""


def test_the_extension_refuses_and_accepts_the_same_values_in_the_same_words(scripts):
    names = [*variables.NAMES][variables.NAMES.index("OCCL_DEVICE_COUNT") :]
    environment = dict.fromkeys(variables.NAMES, "") | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    def said(values: dict[str, list[str]]) -> dict[str, list[str]]:
        return json.loads(scripts.run(BY_THE_EXTENSION, json.dumps(values), **environment))

    wrong = {name: [value for value in WRONG[name] if value.isascii()] for name in names if name in WRONG}
    for name, texts in said(wrong).items():
        for value, text in zip(wrong[name], texts, strict=True):
            ours = variables.wrong({name: value})[name]
            if name == "OCCL_ISA":  # which of them there are, depends on the machine
                assert text.startswith(f'OCCL_ISA is "{value}"') and ours.startswith(f'OCCL_ISA is "{value}"')
            elif name == "OCCL_MEMORY_FRACTION":
                assert text and ours == f'{text}, not "{value}"'
            else:
                assert ours == text
    for name in {*wrong} - {"OCCL_ISA"}:
        for value in filter(None, RIGHT[name]):  # each in a process of its own: the first one may stay
            assert said({name: [value]}) == {name: [""]}


def test_the_names_of_tuning_are_those_of_the_sources():
    table = (ROOT / "csrc/coll/plan/tuning.cpp").read_text()
    assert [*variables.TUNINGS] == re.findall(r'^    \{"(\w+)", ', table, re.M)


def test_importing_the_package_refuses_all_wrong_values_at_once(scripts):
    said = scripts.run(
        "try:\n    import torch_occl\nexcept ValueError as error:\n    print(error)",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        OCCL_DEVICE="0",
        OCCL_DEVICE_COUNT="0",
        OCCL_INTER_NODE="mpi",
        OCCL_QUIET="2",
    )
    assert said == (
        "OCCL_QUIET='2': it must be 0, 1 or empty; "
        'OCCL_DEVICE_COUNT must be a number from 1 to 64, not "0"; '
        'OCCL_INTER_NODE is "mpi": it must be ucx, tcp or gloo\n'
    )
