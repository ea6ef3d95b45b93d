"""What the doctor says about the system and its limits."""

import errno
import os

import pytest

from occl.tools.doctor import machine, system
from occl.tools.doctor.report import FINE, HINT, PROBLEM, WARNING


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
