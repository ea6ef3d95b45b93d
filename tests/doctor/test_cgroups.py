"""What the doctor reads from control groups."""

from pathlib import Path

import pytest

from occl.tools.doctor import cgroups, machine
from occl.tools.doctor.report import FINE, WARNING


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


def test_a_memory_limit_below_the_machine_s_memory_is_shown():
    texts = [machine.memory_limit_line(limit, 4 << 30).text for limit in (1 << 30, 4 << 30, None)]
    assert texts == ["1 GiB", "none", "none"]
