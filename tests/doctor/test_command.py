"""The command `occl doctor` on this machine, and where something is wrong."""

import errno
import os
import platform
import re

import pytest
import torch

from occl.tools.doctor.report import FINE
from tests.doctor.running import doctor, document
from tests.hosts.separations import need
from tests.support.devices import DEVICES
from tests.support.interpreter import PACKAGE

SECTIONS = ["machine", "system", "environment", "nodes", "software", "choices of occl"]
FEW_DESCRIPTORS = "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))"


@pytest.mark.full
def test_a_machine_that_works_gives_every_section_and_no_problem(healthy):
    assert list(healthy["sections"]) == [*SECTIONS, "self-test"]
    assert healthy["works"] is True and healthy["problems"] == []
    for lines in healthy["sections"].values():
        for line in lines.values():
            assert set(line) == {"text", "value", "level", "remedy"} and line["text"]
            assert (line["level"] == FINE) == (line["remedy"] == ""), line


def test_what_the_report_says_agrees_with_this_process(described):
    sections = described["sections"]
    assert sections["machine"]["cores"]["value"] == len(os.sched_getaffinity(0))
    assert sections["system"]["memfd"]["value"] is True
    assert "lo" in sections["environment"]["interfaces"]["value"]
    assert sections["software"]["PyTorch"]["value"] == torch.__version__
    assert sections["software"]["torch_occl"]["text"].endswith(f"({PACKAGE / 'torch_occl'})")
    assert sections["software"]["PrivateUse1"]["value"] == ("torch_occl" if "dev" in DEVICES else "")
    assert sections["choices of occl"]["instruction set"]["value"] in ("baseline", "avx2", "avx512")


@pytest.mark.full
def test_the_self_test_checks_results_times_and_a_death(healthy):
    lines = healthy["sections"]["self-test"]
    assert re.search(r"rank 1 \(pid \d+, .*\) exited", lines["death of a rank"]["value"])
    for device in DEVICES:
        assert lines[f"result on {device}"]["value"] is True
        assert all(lines[f"{size} on {device}"]["value"] > 0 for size in ("4 B", "1 MiB"))


def test_warnings_name_what_is_wrong_in_80_columns_and_do_not_change_the_status():
    shown = doctor("--no-test", lower=FEW_DESCRIPTORS, OCCL_DEVIC_COUNT="3", GLOO_SOCKET_IFNAME="nosuch0")
    assert all(len(line) <= 80 or " " not in line.strip() for line in shown.splitlines()), shown
    assert [line for line in shown.splitlines() if re.match(r"\S", line)][:6] == SECTIONS
    words = " ".join(shown.split())
    assert "open files (-n) 12 WARNING: Raise it (ulimit -n 1024)" in words
    assert "OCCL_DEVIC_COUNT 3 WARNING: Correct or unset it" in words
    assert "(did you mean OCCL_DEVICE_COUNT?)" in words
    assert "nosuch0 (there is no nosuch0) WARNING: Set GLOO_SOCKET_IFNAME to one of" in words
    assert words.endswith(
        "Everything that was tried works. Warnings: system: open files (-n); "
        "environment: OCCL_DEVIC_COUNT; environment: GLOO_SOCKET_IFNAME."
    )


@pytest.mark.full
def test_ranks_that_run_out_of_descriptors_fail_the_self_test_and_the_command():
    found = document(lower=FEW_DESCRIPTORS, status=1)
    assert found["works"] is False
    assert found["problems"] == ["self-test: rank 0", "self-test: rank 1"]
    # One of them may be busy for so long that the other one only knows of no answer.
    remedies = [found["sections"]["self-test"][f"rank {rank}"]["remedy"] for rank in (0, 1)]
    assert any("(ulimit -n)" in remedy for remedy in remedies), remedies


@pytest.mark.full
def test_a_wrong_value_is_a_problem_and_the_remedy_has_the_legal_ones():
    found = document("--no-test", status=1, OCCL_INTER_NODE="mpi", OCCL_QUIET="7")
    assert found["works"] is False
    names = ["OCCL_INTER_NODE", "OCCL_QUIET"]
    assert found["problems"] == [*(f"environment: {name}" for name in names), "software: torch_occl"]
    lines = found["sections"]["environment"]
    assert (
        "must be ucx, tcp or gloo" in lines[names[0]]["remedy"]
        and "0, 1 or empty" in lines[names[1]]["remedy"]
    )
    remedy = found["sections"]["software"]["torch_occl"]["remedy"]
    assert remedy == "Correct or unset the environment variable OCCL_QUIET."


@pytest.mark.full
def test_an_instruction_set_of_another_processor_is_a_problem_and_the_remedy_names_the_variable():
    other = "neon_bf16" if platform.machine() == "x86_64" else "avx2"
    found = document("--no-test", status=1, OCCL_ISA=other)
    assert found["problems"] == ["software: settings"]
    line = found["sections"]["software"]["settings"]
    assert f'OCCL_ISA is "{other}"' in line["text"]
    assert line["remedy"] == "Correct or unset the environment variable OCCL_ISA."


@pytest.mark.full
@pytest.mark.parametrize(("call", "name"), [("memfd_create", "memfd"), ("pidfd_open", "pidfd")])
def test_a_sandbox_that_refuses_a_call_is_a_problem(call, name):
    found = document("--no-test", lower=f"limits.without_call({call!r}, {errno.EPERM})", status=1)
    line = found["sections"]["system"][name]
    assert "refused: Operation not permitted" in line["text"] and "seccomp profile" in line["remedy"]
    assert found["sections"]["system"]["seccomp"]["value"] == "filter"


def test_without_proc_the_report_says_what_is_unknown():
    need("without_proc")
    found = document("--no-test", lower="limits.without_proc()")["sections"]
    assert found["machine"]["memory"]["text"] == "unknown"
    assert found["nodes"]["identity"]["remedy"].startswith("Mount /proc")


@pytest.mark.full
def test_a_container_that_runs_read_only_works():
    need("read_only_files")
    found = document(lower="limits.read_only_files(); limits.own_temporary_folder()")
    assert found["works"] is True and found["problems"] == []


@pytest.mark.full
def test_without_the_device_only_cpu_tensors_are_tried():
    found = document(OCCL_DEVICE="0")["sections"]
    assert found["software"]["PrivateUse1"]["text"] == "no package (OCCL_DEVICE=0)"
    assert found["self-test"]["result on cpu"]["value"] is True
    assert found["self-test"]["result on dev"]["text"].startswith("not tried")
