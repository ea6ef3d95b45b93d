"""`python -m torch_occl doctor` on this machine, where something is wrong, and what it makes of files."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
import torch

from tests.support.devices import DEVICES
from tests.support.interpreter import PACKAGE, run_python
from torch_occl import _command, _interfaces
from torch_occl._commands import main
from torch_occl.doctor import (
    cgroups,
    children,
    machine,
    nodes,
    reading,
    report,
    selftest,
    settings,
    software,
    system,
)
from torch_occl.doctor.children import Ended
from torch_occl.doctor.report import FINE, HINT, PROBLEM, WARNING, Line, Section

ROOT = Path(__file__).parents[1]
CLEAN = dict.fromkeys(("OCCL_TUNING", "OCCL_ISA", "GLOO_SOCKET_IFNAME"), "")
"""Empty is as good as not set."""
SECTIONS = ["machine", "system", "environment", "nodes", "software", "choices of occl"]

PRELUDE = """
import os, resource, sys
from tests.faults import limits
{lower}
os.execv(sys.executable, [sys.executable, "-m", "torch_occl", "doctor", *sys.argv[1:]])
"""
FEW = "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))"


def doctor(*options: str, lower: str = "", status: int = 0, path: Path = PACKAGE, **environment: str) -> str:
    """What the command prints, after the statements ``lower`` have taken something from its process."""
    command = ["-c", PRELUDE.format(lower=lower)] if lower else ["-m", "torch_occl", "doctor"]
    return run_python(*command, *options, path=path, status=status, stderr=False, **CLEAN | environment)


def document(*options: str, **how) -> dict:
    return json.loads(doctor("--json", *options, **how))


@pytest.fixture(scope="module")
def healthy() -> dict:
    """The whole report of this machine."""
    return document()


# ---- the command ---------------------------------------------------------------------------------------


def test_a_machine_that_works_gives_every_section_and_no_problem(healthy):
    assert list(healthy["sections"]) == [*SECTIONS, "self-test"]
    assert healthy["works"] is True and healthy["problems"] == []
    for lines in healthy["sections"].values():
        for line in lines.values():
            assert set(line) == {"text", "value", "level", "remedy"} and line["text"]
            assert (line["level"] == FINE) == (line["remedy"] == ""), line


def test_what_the_report_says_agrees_with_this_process(healthy):
    sections = healthy["sections"]
    assert sections["machine"]["cores"]["value"] == len(os.sched_getaffinity(0))
    assert sections["system"]["memfd"]["value"] is True
    assert "lo" in sections["environment"]["interfaces"]["value"]
    assert sections["software"]["PyTorch"]["value"] == torch.__version__
    assert sections["software"]["torch_occl"]["text"].endswith(f"({PACKAGE / 'torch_occl'})")
    assert sections["software"]["PrivateUse1"]["value"] == ("torch_occl" if "dev" in DEVICES else "")
    assert sections["choices of occl"]["instruction set"]["value"] in ("baseline", "avx2", "avx512")


def test_the_self_test_checks_results_times_and_a_death(healthy):
    lines = healthy["sections"]["self-test"]
    assert re.search(r"rank 1 \(pid \d+, .*\) exited", lines["death of a rank"]["value"])
    for device in DEVICES:
        assert lines[f"result on {device}"]["value"] is True
        assert all(lines[f"{size} on {device}"]["value"] > 0 for size in ("4 B", "1 MiB"))


def test_warnings_name_what_is_wrong_in_80_columns_and_do_not_change_the_status():
    shown = doctor("--no-test", lower=FEW, OCCL_DEVIC_COUNT="3", GLOO_SOCKET_IFNAME="nosuch0")
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


def test_ranks_that_run_out_of_descriptors_fail_the_self_test_and_the_command():
    found = document(lower=FEW, status=1)
    assert found["works"] is False
    assert found["problems"] == ["self-test: rank 0", "self-test: rank 1"]
    assert "(ulimit -n)" in found["sections"]["self-test"]["rank 0"]["remedy"]


def test_a_wrong_value_is_a_problem_and_the_remedy_names_the_variable():
    found = document("--no-test", status=1, OCCL_ISA="avx1024")
    assert found["problems"] == ["software: settings"]
    line = found["sections"]["software"]["settings"]
    assert 'OCCL_ISA is "avx1024"' in line["text"]
    assert line["remedy"] == "Correct or unset the environment variable OCCL_ISA."


@pytest.mark.full
@pytest.mark.parametrize(("call", "name"), [("memfd_create", "memfd"), ("pidfd_open", "pidfd")])
def test_a_sandbox_that_refuses_a_call_is_a_problem(call, name):
    found = document("--no-test", lower=f"limits.without_call({call!r}, {errno.EPERM})", status=1)
    line = found["sections"]["system"][name]
    assert "refused: Operation not permitted" in line["text"] and "seccomp profile" in line["remedy"]
    assert found["sections"]["system"]["seccomp"]["value"] == "filter"


@pytest.mark.full
def test_a_tuning_that_does_not_exist_fails_the_self_test():
    found = document(status=1, OCCL_TUNING="nonsense=1")
    assert "OCCL_TUNING" in found["sections"]["self-test"]["rank 0"]["remedy"]


@pytest.mark.full
def test_without_the_device_only_cpu_tensors_are_tried():
    found = document(OCCL_DEVICE="0")["sections"]
    assert found["software"]["PrivateUse1"]["text"] == "no package (OCCL_DEVICE=0)"
    assert found["self-test"]["result on cpu"]["value"] is True
    assert found["self-test"]["result on dev"]["text"].startswith("not tried")


def test_without_a_command_it_prints_its_help(capsys):
    assert main([]) == 0
    assert "usage: python -m torch_occl" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--nonsense"], ["doctor", "--nonsense"], ["nonsense"]])
def test_wrong_options_get_the_usual_error(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


# ---- where PyTorch or the extension does not work ------------------------------------------------------

FAKE_TORCH = """
from types import SimpleNamespace as Anything
from . import distributed
__version__ = {version!r}
version = Anything(debug=False)
backends = Anything(cpu=Anything(get_cpu_capability=lambda: "none"))
compiled_with_cxx11_abi = get_num_threads = lambda: 1
_C = Anything(_get_privateuse1_backend_name=lambda: "privateuseone")
{statement}
"""


HIDE = "import sys; sys.meta_path[:] = [it for it in sys.meta_path if 'editable' not in repr(it)]\n"
"""Python runs this first. The finder of an editable installation would find its extension."""


def with_torch(
    folder: Path, version: str = "2.13.0", statement: str = "", library: str | None = None
) -> Path:
    """A folder with Python's part of torch_occl and what stands in for PyTorch.

    ``library`` is what the file of the extension contains; None for no file.
    """
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(PACKAGE / "torch_occl", folder / "torch_occl", ignore=ignored)
    if library is not None:
        (folder / "torch_occl" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}").write_text(library)
    (folder / "sitecustomize.py").write_text(HIDE)
    (folder / "torch" / "distributed").mkdir(parents=True)
    text = FAKE_TORCH.format(version=version, statement=statement)
    (folder / "torch" / "__init__.py").write_text(text)
    (folder / "torch" / "distributed" / "__init__.py").write_text("is_available = lambda: False\n")
    return folder


@pytest.mark.parametrize(
    ("torch_is", "name", "text", "remedy"),
    [
        ({"version": "2.12.1"}, "torch_occl", "and this is torch 2.12.1", "Install a supported PyTorch"),
        ({"version": "2.14.0"}, "torch_occl", "and this is torch 2.14.0", "Install a supported PyTorch"),
        ({}, "torch_occl", "'_C'", "Build the extension"),
        ({"library": "no library"}, "torch_occl", ".so: file too short", "Build torch_occl again"),
        (
            {"statement": "raise ModuleNotFoundError(\"No module named 'torch'\")"},
            "PyTorch",
            "No module named 'torch'",
            'Install PyTorch: pip install "torch>=2.13,<2.14"',
        ),
        ({"statement": "raise OSError('libgomp.so.1')"}, "PyTorch", "OSError: libgomp", "Repair PyTorch"),
        (
            {"statement": "import os; os.kill(os.getpid(), 11)"},
            "PyTorch",
            "it was ended by SIGSEGV",
            "Repair PyTorch",
        ),
    ],
)
def test_what_cannot_be_loaded_is_a_problem_with_its_remedy(tmp_path, torch_is, name, text, remedy):
    found = document(status=1, path=with_torch(tmp_path, **torch_is))
    assert found["problems"] == [f"software: {name}"]
    line = found["sections"]["software"][name]
    assert text in line["text"] and line["remedy"].startswith(remedy)
    assert "self-test" not in found["sections"]  # there is nothing to test


def test_the_help_needs_neither_pytorch_nor_the_extension(tmp_path):
    path = with_torch(tmp_path, statement="raise ImportError")
    assert "usage: python -m torch_occl" in run_python("-m", "torch_occl", path=path)


@pytest.mark.parametrize(
    ("argv", "orig_argv", "starting"),
    [
        (["-m", "doctor"], ["python", "-X", "dev", "-m", "torch_occl", "doctor"], True),
        (["-m"], ["python", "-m", "torch_occl"], True),
        (["-m"], ["python", "-Imtorch_occl"], True),
        (["-m"], ["python", "-m", "torch_occl.__main__"], True),
        (["-m", "torch_occl"], ["python", "-m", "pytest", "torch_occl"], False),
        (["-m"], ["python", "-m", "torch_occl.bench"], False),
        (["-c", "torch_occl"], ["python", "-c", "import torch_occl", "torch_occl"], False),
        (["torch_occl"], ["python", "torch_occl"], False),
        ([], [], False),
    ],
)
def test_only_the_command_leaves_the_package_unregistered(monkeypatch, argv, orig_argv, starting):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert _command.starting() is starting


# ---- processes -----------------------------------------------------------------------------------------


def script(folder: Path, text: str) -> list[Ended]:
    (folder / "script.py").write_text(textwrap.dedent(text))
    return children.run([["script.py", "argument"]], 60.0, folder)


def test_a_process_that_does_not_end_is_killed_at_the_deadline_and_what_it_said_is_kept(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "script.py").write_text(f"open({str(fifo)!r})")  # waits for a writer
    ended = children.run([["script.py"]], 0.0, tmp_path)[0]
    assert ended.status is None and ended.reason() == "it did not end in time, and was killed"
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):  # no process has it open
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


def test_objects_that_were_said_stay_said_when_the_process_fails(tmp_path):
    (ended,) = script(
        tmp_path, "import sys\nprint('{\"a\": 1}\\nno object\\n[2]')\nraise KeyError(sys.argv[1])"
    )
    assert (ended.status, ended.said) == (1, {"a": 1})
    assert ended.reason() == "KeyError: 'argument'"


@pytest.mark.parametrize(
    ("text", "exception"),
    [
        ("Traceback:\n  File\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("[rank0]:   File\n[rank0]: KeyError: 'a'\n[rank0]: b\n", "KeyError: 'a' b"),
        ("ValueError: x\nDuring handling\na.b.CError: two\nlines\n", "a.b.CError: two lines"),
        ("Fatal Python error\nlast words\n", "last words"),
        ("", ""),
    ],
)
def test_the_last_exception_is_the_reason(text, exception):
    assert children.exception_in(text) == exception


def test_a_long_reason_is_cut():
    assert children.exception_in(f"ValueError: {'x' * 1000}").endswith("x ...")


# ---- the self-test's verdict ---------------------------------------------------------------------------

KILLED = Ended(-signal.SIGKILL, {}, "")
SAID = {
    "wrong": {"cpu": [], "dev": []},
    "cpu": {"4 B": 5.0, "1 MiB": 70.0},
    "dev": {"4 B": 5.0, "1 MiB": 70.0},
    "death": "rank 1 (pid 5, host a) exited during all_reduce",
}


def verdict(said: dict, other: Ended = KILLED, status: int | None = 0, errors: str = "") -> dict[str, str]:
    """The levels that are not fine, by name."""
    lines = selftest.lines([Ended(status, SAID | said, errors), other], cores=2)
    return {line.name: line.level for line in lines if line.level != FINE}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {}),
        ({"wrong": {"cpu": [1000], "dev": []}}, {"result on cpu": PROBLEM}),
        ({"wrong": {"cpu": [], "dev": [1]}}, {"result on dev": PROBLEM}),
        ({"death": ""}, {"death of a rank": PROBLEM}),
        ({"death": "Timed out waiting"}, {"death of a rank": PROBLEM}),
        ({"death": "rank 11 (pid 5) exited"}, {"death of a rank": PROBLEM}),
        ({"cpu": {"4 B": 1e6, "1 MiB": 70.0}}, {"4 B on cpu": HINT}),
    ],
)
def test_each_thing_that_the_self_test_tries_can_fail_it(said, expected):
    assert verdict(said) == expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Ended(1, {}, "KeyError: 3"), {"death of a rank": PROBLEM}),
        (Ended(None, {}, ""), {"death of a rank": PROBLEM}),
    ],
)
def test_a_rank_that_was_not_killed_proves_nothing(other, expected):
    assert verdict({}, other) == expected


def test_a_rank_that_hangs_or_fails_is_named():
    assert verdict({}, status=None) == {"rank 0": PROBLEM}
    lines = selftest.lines([Ended(1, {}, "KeyError: 3"), Ended(1, {}, "KeyError: 4")], cores=2)
    assert [(line.name, line.text) for line in lines] == [
        ("rank 0", "failed: KeyError: 3"),
        ("rank 1", "failed: KeyError: 4"),
    ]


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("cannot map 5 bytes (ulimit -v may be too low)", "Raise this limit (ulimit -v)"),
        ('OCCL_TUNING="a=1": there is no', "Correct or unset the environment variable OCCL_TUNING."),
        ("OCCL_TUNING_X", "Look above"),
    ],
)
def test_the_remedy_for_a_rank_follows_from_its_error(reason, remedy):
    assert selftest.advice(reason).startswith(remedy)


@pytest.mark.parametrize(("cores", "words"), [(1, "yield for"), (4, "up to 4 ranks"), (500, "up to 256")])
def test_how_ranks_wait_follows_from_the_cores(cores, words):
    (line,) = software.choice_lines({}, "AVX2", cores)
    assert words in line.text


def test_a_time_is_slow_for_the_kind_of_machine():
    medians = {"4 B": 500.0}
    assert [selftest.time_lines("cpu", medians, cores)[0].level for cores in (2, 1)] == [HINT, FINE]


def test_ranks_that_cannot_be_started_are_a_problem(monkeypatch):
    def run(*_):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(children, "run", run)
    (line,) = selftest.section().lines
    assert line.level == PROBLEM and "ulimit -u" in line.remedy


def test_no_folder_for_temporary_files_is_a_problem():
    line = software.not_started("ranks", FileNotFoundError(errno.ENOENT, "No usable temporary directory"))
    assert line.level == PROBLEM and "TMPDIR" in line.remedy


# ---- what the system offers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "told"),
    [(errno.ENOSYS, "Linux 5.3 or newer. gVisor, "), (errno.EPERM, "Allow pidfd_open and pidfd_send_signal")],
)
def test_a_refused_pidfd_names_the_kinds_of_sandbox_that_refuse_it(monkeypatch, number, told):
    def refused(pid):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refused)
    (line,) = [line for line in system.section().lines if line.name == "pidfd"]
    assert line.level == PROBLEM and told in line.remedy


@pytest.mark.parametrize("attempt", [system.try_memfd, system.try_pidfd, system.try_socket])
def test_what_is_tried_works_here_and_leaves_no_descriptor(attempt):
    before = os.listdir("/proc/self/fd")
    line = system.check("it", attempt)
    assert (line.level, line.value) == (FINE, True), line
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errno.EPERM, "seccomp"),
        (errno.ENOSYS, "Linux 5.3"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EIO, "strace"),
    ],
)
def test_a_refusal_is_a_problem_with_the_remedy_for_its_reason(error, remedy):
    def refused() -> str:
        raise OSError(error, os.strerror(error))

    line = system.check("memfd", refused)
    assert line.level == PROBLEM and os.strerror(error) in line.text and remedy in line.remedy


def test_seals_that_do_not_hold_are_a_problem(monkeypatch):
    monkeypatch.setattr(system, "SEALS", 0)
    line = system.check("memfd", system.try_memfd)
    assert (line.level, line.text) == (PROBLEM, "refused: a sealed memfd allows shrinking")


def test_an_older_kernel_gets_a_memfd_without_the_newest_flag(monkeypatch):
    monkeypatch.setattr(system, "NOEXEC_SEAL", 1 << 30)  # no kernel knows it
    assert system.check("memfd", system.try_memfd).level == FINE


@pytest.mark.parametrize(
    ("letter", "soft", "least", "level", "text"),
    [
        ("n", 1023, 1024, WARNING, "1023"),
        ("n", 1024, 1024, FINE, "1024"),
        ("n", -1, 1024, FINE, "unlimited"),
        ("v", 1 << 30, 64 << 30, WARNING, "1 GiB"),
        ("l", 0, None, FINE, "0 B; why"),
    ],
)
def test_limits_that_are_too_low_are_warnings(letter, soft, least, level, text):
    line = system.limit_line(letter, "limit", soft, least, "why")
    assert (line.level, line.text) == (level, text)


@pytest.mark.parametrize(("number", "mode"), [("0", "off"), ("2", "filter"), ("", "unknown")])
def test_the_mode_of_seccomp_is_named(number, mode):
    line = system.seccomp_line(f"NoNewPrivs:\t1\nSeccomp:\t{number}\nSeccomp_filters:\t1\n")
    assert line.value == mode


@pytest.mark.parametrize(
    ("uid_map", "inside"),
    [
        ("         0          0 4294967295", False),
        ("         0       1000          1", True),
        ("0 1000 1\n1 100000 65536", True),
        ("", False),
    ],
)
def test_a_user_namespace_is_recognized(uid_map, inside):
    assert system.user_namespace_line(uid_map).value is inside


@pytest.mark.parametrize(
    ("release", "level"),
    [("5.2.21", PROBLEM), ("4.18.0-553.el8", PROBLEM), ("5.3.0", FINE), ("6.18.44-fc", FINE), ("x", FINE)],
)
def test_a_kernel_that_is_too_old_is_a_problem(release, level):
    assert machine.kernel_line(release).level == level


@pytest.mark.parametrize(
    ("top", "largest", "used"),
    [
        ("always within_size advise [never] deny force", "", False),
        ("always within_size [advise] never deny force", "", True),
        ("always within_size advise [never] deny force", "always [inherit] within_size advise never", False),
        ("[always] within_size advise never deny force", "always [inherit] within_size advise never", True),
        ("always within_size advise [never] deny force", "always inherit within_size [advise] never", True),
        ("always within_size advise never [deny] force", "[always] inherit within_size advise never", False),
        ("always within_size advise never deny [force]", "always inherit within_size advise [never]", True),
        ("", "", False),
    ],
)
def test_huge_pages_are_used_where_the_kernel_gives_them_on_advice(top, largest, used):
    assert machine.shared_huge_pages(top, largest) is used


def test_one_core_is_a_hint():
    assert machine.cores_line({3}, 8).level == HINT and machine.cores_line({3, 4}, 8).level == FINE


# ---- control groups ------------------------------------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"""
NEAR_2_63 = "9223372036854771712"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "proc/self/mountinfo": V2,
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/memory.max": "1073741824",
                "sys/fs/cgroup/cpu.max": "150000 100000",
            },
            cgroups.Limits(("v2",), 1.5, 1 << 30),
        ),
        (  # of the groups around it, too
            {
                "proc/self/mountinfo": V2,
                "proc/self/cgroup": "0::/a.slice/b.service",
                "sys/fs/cgroup/a.slice/memory.max": "4096",
                "sys/fs/cgroup/a.slice/cpu.max": "50000 100000",
                "sys/fs/cgroup/a.slice/b.service/memory.max": "8192",
                "sys/fs/cgroup/a.slice/b.service/cpu.max": "200000 100000",
                "sys/fs/cgroup/other/memory.max": "1",
            },
            cgroups.Limits(("v2",), 0.5, 4096),
        ),
        (
            {
                "proc/self/mountinfo": V2,
                "proc/self/cgroup": "0::/a",
                "sys/fs/cgroup/a/memory.max": "max",
                "sys/fs/cgroup/a/cpu.max": "max 100000",
            },
            cgroups.Limits(("v2",), None, None),
        ),
        (  # without a namespace of its own, as in Docker with version 1
            {
                "proc/self/mountinfo": V1.format(root="/docker/f00"),
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/f00\n4:memory:/docker/f00/inner\n0::/",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": NEAR_2_63,
                "sys/fs/cgroup/memory/inner/memory.limit_in_bytes": "8192",
            },
            cgroups.Limits(("v1",), 0.5, 8192),
        ),
        (
            {
                "proc/self/mountinfo": V1.format(root="/"),
                "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/../other",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": NEAR_2_63,
            },
            cgroups.Limits(("v1",), None, None),
        ),
        ({}, cgroups.Limits((), None, None)),
    ],
)
def test_limits_of_control_groups(tmp_path, files, expected):
    assert cgroups.limits(write(tmp_path, files)) == expected


def test_a_quota_below_the_number_of_cores_is_a_warning():
    levels = [machine.quota_line(cgroups.Limits(("v2",), n, None), 2).level for n in (1.5, 2.0, None)]
    assert levels == [WARNING, FINE, FINE]


@pytest.mark.parametrize(
    ("limit", "seen", "fraction", "level"),
    [
        (1 << 30, None, "", WARNING),  # of version 1, or of a group around this one
        (1 << 30, 2 << 30, "", WARNING),
        (1 << 30, 1 << 30, "", FINE),
        (1 << 30, None, "0.24", FINE),
        (1 << 30, None, "0.26", WARNING),
        (None, None, "", FINE),
        (4 << 30, None, "", FINE),
    ],
)
def test_a_memory_limit_that_occl_does_not_see_is_a_warning(limit, seen, fraction, level):
    assert machine.memory_limit_line(limit, 4 << 30, seen, fraction).level == level


def test_the_advised_fraction_stays_below_the_limit():
    remedy = machine.memory_limit_line(1 << 30, 4 << 30, None, "").remedy
    assert float(re.search(r"OCCL_MEMORY_FRACTION=(\S+):", remedy)[1]) * (4 << 30) < 1 << 30


# ---- the environment -----------------------------------------------------------------------------------


def test_the_known_variables_are_those_of_the_docs_and_the_sources():
    table = re.findall(r"^\| `(OCCL_\w+)` \|", (ROOT / "docs/environment.md").read_text(), re.MULTILINE)
    assert list(settings.VARIABLES) == table
    header = (ROOT / "csrc/base/environment.h").read_text()
    assert set(re.findall(r'"(OCCL_\w+)"', header)) < set(settings.VARIABLES)


def test_variables_are_listed_and_unknown_ones_are_warnings():
    environment = {"OCCL_NODE": "a", "OCCL_X": "1", "OCCL_TEST_SEED": "5", "PATH": "/", "OCCL_ISA": ""}
    lines = {line.name: (line.text, line.level) for line in settings.variable_lines(environment)}
    assert lines == {
        "OCCL_ISA": ("empty, as if not set", FINE),
        "OCCL_NODE": ("a", WARNING),
        "OCCL_X": ("1", WARNING),
    }
    assert settings.variable_lines({})[0].text == "none is set"


@pytest.mark.parametrize(
    ("wish", "level"), [("lo", FINE), ("lo,eth0", FINE), ("lo,eth1", WARNING), ("et", WARNING)]
)
def test_every_interface_that_gloo_is_to_use_must_exist(wish, level):
    assert settings.gloo_line(wish, ["lo", "eth0"]).level == level


def test_loopback_has_its_address():
    assert "127.0.0.1" in _interfaces.interfaces()["lo"]


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


# ---- nodes -----------------------------------------------------------------------------------------------


def test_the_identity_of_this_process_is_what_the_kernel_says(healthy):
    found = healthy["sections"]["nodes"]
    assert found["identity"]["value"] == {
        "kernel": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "user": os.geteuid(),
        "host": os.uname().nodename,
        "network": os.stat("/proc/self/ns/net").st_ino,
        "users": os.stat("/proc/self/ns/user").st_ino,
    }
    assert set(found["namespaces"]["value"]) == set(nodes.NAMESPACES)


def test_an_identity_that_proc_does_not_tell_is_a_hint():
    assert nodes.identity_line("b", {"network": 1, "users": 2}, 0, "a").level == FINE
    for boot, own in (("", {"network": 1, "users": 2}), ("b", {"network": None, "users": 2})):
        line = nodes.identity_line(boot, own, 0, "a")
        assert line.level == HINT and "unknown" in line.text and "/proc" in line.remedy


def test_namespaces_are_compared_with_those_of_process_1():
    line = nodes.namespaces_line(
        {"network": 1, "users": 2, "IPC": 3}, {"network": 1, "users": 9, "IPC": None}
    )
    assert line.text == "with process 1: shared: network; own: users; unknown: IPC"


# ---- the owner of PrivateUse1 ----------------------------------------------------------------------------


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


# ---- reading and writing -------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "cores"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set())])
def test_lists_of_cores(text, cores):
    assert reading.parse_cores(text) == cores and reading.write_cores(cores) == text


@pytest.mark.parametrize(
    ("text", "size"), [("32K", 32 << 10), ("16384 kB", 16 << 20), ("2M", 2 << 20), ("7", 7), ("big", None)]
)
def test_sizes_are_read(text, size):
    assert reading.parse_size(text) == size


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1 GiB")]
)
def test_sizes_are_written(size, text):
    assert reading.write_size(size) == text


def test_a_field_is_found_by_its_whole_name_and_a_missing_file_is_empty(tmp_path):
    assert reading.field("Seccomp_filters:\t3\nSeccomp:\t2\n", "Seccomp") == "2"
    assert reading.field("a: 1", "b") == "" and reading.read(tmp_path / "none") == ""


def test_only_problems_change_the_verdict():
    sections = [Section("s", [Line("a", "x"), Line("b", "y", 1, WARNING, "Do it.")])]
    assert report.works(sections) and report.named(sections, WARNING) == ["s: b"]
    sections[0].lines.append(Line("c", "z", False, PROBLEM, "Do that."))
    assert not report.works(sections)
    assert report.summary(sections) == "Does not work: s: c.\nWarnings: s: b."
