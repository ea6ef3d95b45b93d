"""Limits of the system, lowered for this process alone: bodies call these before they use torch_occl."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from pathlib import Path

from occl.tools.doctor import cgroups

CALLS = {
    "x86_64": {"pidfd_open": 434, "memfd_create": 319, "fcntl": 72, "clone": 56, "clone3": 435},
    "aarch64": {"pidfd_open": 434, "memfd_create": 279, "fcntl": 25, "clone": 220, "clone3": 435},
}[platform.machine()]
MFD_NOEXEC_SEAL, F_ADD_SEALS, F_SEAL_FUTURE_WRITE = 0x8, 1033, 0x10
CLONE_NEWNS, CLONE_THREAD, MS_PRIVATE, MS_REC, MNT_DETACH = 0x20000, 0x10000, 1 << 18, 1 << 14, 2
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 0x20, 0x1000

LOAD, JUMP_EQUAL, JUMP_BITS, RETURN = 0x20, 0x15, 0x45, 0x06  # of the classic BPF machine
ALLOW, ERRNO = 0x7FFF0000, 0x00050000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def without_call(name: str, error: int = errno.ENOSYS, argument: int = 0, bits: int = 0) -> None:
    """The kernel answers this call with ``error``; with ``bits``, only if that argument has one of them."""
    code = [(LOAD, 0, 0, 0), (JUMP_EQUAL, 0, 3 if bits else 1, CALLS[name])]
    if bits:
        code += [(LOAD, 0, 0, 16 + 8 * argument), (JUMP_BITS, 0, 1, bits)]
    code += [(RETURN, 0, 0, ERRNO | error), (RETURN, 0, 0, ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    described = Filter(len(code), ctypes.addressof(program))
    _check(_libc.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    _check(_libc.prctl(22, 2, ctypes.byref(described), 0, 0), "PR_SET_SECCOMP")


def without_threads() -> None:
    """The C library asks for them with clone3, whose flags no filter sees, and else with clone."""
    without_call("clone3")
    without_call("clone", errno.EAGAIN, 0, CLONE_THREAD)


def few_descriptors(more: int) -> None:
    """So many more than are open."""
    number = len(os.listdir("/proc/self/fd")) - 1 + more
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def little_address_space(more: int) -> None:
    """So many bytes more than are mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    number = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (number, number))


def address_space(number: int) -> None:
    """In all."""
    resource.setrlimit(resource.RLIMIT_AS, (number, number))


def no_locked_memory() -> None:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))


def own_mounts() -> None:
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    _check(_libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")


def read_only_files() -> None:
    """All mounts as a container has them that runs read-only, without a /tmp that can be written."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    own_mounts()
    for point in points:
        _libc.mount(None, point.encode(), None, MS_REMOUNT | MS_BIND | MS_RDONLY, None)
    for folder in ("/", "/tmp", "/dev/shm"):
        assert os.statvfs(folder).f_flag & os.ST_RDONLY, f"{folder} can still be written"


def own_temporary_folder() -> None:
    """Not /tmp, where a checkout may lie."""
    own_mounts()
    _check(_libc.mount(b"tmpfs", b"/var/tmp", b"tmpfs", 0, None), "tmpfs")


def without_proc() -> None:
    """Mounts of its own, without /proc, as in a bare chroot."""
    own_mounts()
    while _libc.umount2(b"/proc", MNT_DETACH) == 0:
        pass


def small_shared_folder(size: str) -> None:
    """/dev/shm of this size, or none at all."""
    own_mounts()
    if size == "absent":
        while _libc.umount2(b"/dev/shm", MNT_DETACH) == 0:  # there may be several, one above the other
            pass
    else:
        options = f"size={size}".encode()
        _check(_libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, options), "tmpfs")


def small_container(limit: int, used: int) -> None:
    """What a process reads about its container's memory, in bytes: in the outermost group of each version."""
    own_mounts()
    mounts = cgroups.parse_mounts(Path("/proc/self/mountinfo").read_text())
    places = {Path(mount.point): mount.controllers for mount in mounts if mount.controllers & {"", "memory"}}
    assert places, "no control groups are mounted here"
    _check(_libc.mount(b"tmpfs", b"/sys/fs/cgroup", b"tmpfs", 0, None), "tmpfs")
    for place, controllers in places.items():
        place.mkdir(parents=True, exist_ok=True)
        second = "" in controllers
        (place / ("memory.max" if second else "memory.limit_in_bytes")).write_text(f"{limit}\n")
        (place / ("memory.current" if second else "memory.usage_in_bytes")).write_text(f"{used}\n")
