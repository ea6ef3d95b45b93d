"""What the doctor says about the identity of this node."""

import os
from pathlib import Path

from occl.tools.doctor import nodes
from occl.tools.doctor.report import FINE, HINT


def test_the_identity_of_this_process_is_what_the_kernel_says(described):
    found = described["sections"]["nodes"]
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
