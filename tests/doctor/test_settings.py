"""What the doctor says about environment variables and interfaces."""

import re
from pathlib import Path

import pytest

from occl import interfaces, variables
from occl.tools.doctor import settings
from occl.tools.doctor.report import FINE, HINT, PROBLEM, WARNING

ROOT = Path(__file__).parents[2]


def test_the_known_variables_are_those_of_the_docs_and_the_sources():
    table = re.findall(r"^\| `(OCCL_\w+)` \|", (ROOT / "docs/environment.md").read_text(), re.MULTILINE)
    assert list(variables.NAMES) == table
    header = (ROOT / "csrc/base/environment.h").read_text()
    assert set(re.findall(r'"(OCCL_\w+)"', header)) < set(variables.NAMES)


def test_variables_are_listed_and_unknown_ones_are_warnings():
    environment = {"OCCL_NODE": "a", "OCCL_X": "1", "OCCL_TEST_SEED": "5", "PATH": "/", "OCCL_ISA": ""}
    lines = {line.name: (line.text, line.level) for line in settings.variable_lines(environment)}
    assert lines == {
        "OCCL_ISA": ("empty, as if not set", FINE),
        "OCCL_NODE": ("a", WARNING),
        "OCCL_X": ("1", WARNING),
    }
    assert settings.variable_lines({})[0].text == "none is set"


def test_wrong_values_are_problems_with_the_legal_ones():
    lines = settings.variable_lines({"OCCL_NODE": " a", "OCCL_INTER_NODE": "mpi", "OCCL_QUIET": "1"})
    assert [(line.name, line.level) for line in lines] == [
        ("OCCL_INTER_NODE", PROBLEM),
        ("OCCL_NODE", PROBLEM),
        ("OCCL_QUIET", FINE),
    ]
    assert lines[0].remedy == 'Correct or unset it: OCCL_INTER_NODE is "mpi": it must be ucx, tcp or gloo.'


@pytest.mark.parametrize(
    ("wish", "level"), [("lo", FINE), ("lo,eth0", FINE), ("lo,eth1", WARNING), ("et", WARNING)]
)
def test_every_interface_that_gloo_is_to_use_must_exist(wish, level):
    assert settings.gloo_line(wish, ["lo", "eth0"]).level == level


@pytest.mark.parametrize(
    ("wish", "level"),
    [
        ("eth0", FINE),
        ("mlx5_0:1", FINE),
        ("eth9,mlx5_0:1", FINE),
        ("eth9", WARNING),
        ("mlx5_1:1,et", WARNING),
    ],
)
def test_a_device_that_ucx_is_to_use_must_exist(wish, level):
    line = settings.ucx_line(wish, ["lo", "eth0", "mlx5_0"])
    assert line.level == level and ("one or more of lo, eth0, mlx5_0" in line.remedy) == (level == WARNING)


@pytest.mark.parametrize("wish", ["all", "^eth9", "mlx5_[0-3]:1", ""])
def test_patterns_of_devices_are_left_to_ucx(wish):
    assert settings.ucx_line(wish, ["lo"]) is None


def test_loopback_has_its_address():
    assert "127.0.0.1" in interfaces.interfaces()["lo"]


@pytest.mark.parametrize(
    ("names", "address", "text", "level"),
    [
        (["eth0"], "127.0.0.1", "eth0 (GLOO_SOCKET_IFNAME)", FINE),
        ([], "10.0.0.1", "eth0 (10.0.0.1), where the host's name a leads", FINE),
        ([], "127.0.1.1", "lo (127.0.1.1), where the host's name a leads", HINT),
        ([], "fe80::1%eth0", "eth0 (fe80::1%eth0), where the host's name a leads", FINE),
    ],
)
def test_the_interface_that_gloo_takes_is_named(names, address, text, level):
    found = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1", "fe80::1"]}
    line = settings.choice_line(names, address, found, "a")
    assert (line.text, line.level) == (text, level)
