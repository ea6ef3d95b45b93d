"""What the kernel lets this process do: each facility that occl needs is really tried."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import mmap
import os
import resource
import secrets
import select
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from occl.tools.doctor.kernel_files import field, read
from occl.tools.doctor.report import PROBLEM, WARNING, Line, Section
from occl.tools.text import size

NOEXEC_SEAL, FUTURE_WRITE = 0x8, 0x10  # MFD_NOEXEC_SEAL of Linux 6.3, F_SEAL_FUTURE_WRITE of 5.1
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | FUTURE_WRITE
SECONDS = 5.0
"""How long a socket of this process may take to answer another one."""

REMEDIES = {
    errno.EMFILE: "Raise the limit of open descriptors: ulimit -n 4096.",
    errno.ENFILE: "Raise the system's limit of open files: sysctl fs.file-max.",
    errno.EFBIG: "Raise the limit of the size of files: ulimit -f unlimited.",
    errno.ENOMEM: "Free some memory, or raise the limit of the address space: ulimit -v unlimited.",
    errno.EAGAIN: "Raise the limit of processes and threads: ulimit -u.",
    errno.EPERM: "Allow this call in the sandbox's seccomp profile.",
    errno.EACCES: "Allow this in the sandbox's security policy (AppArmor, SELinux).",
    errno.ENOSYS: "Use Linux 5.3 or newer, or allow this call in the sandbox's seccomp profile.",
}

PIDFD_REMEDIES = REMEDIES | {
    errno.ENOSYS: "Use Linux 5.3 or newer. gVisor, other sandboxes that answer system calls themselves, and "
    "emulators may lack pidfd_open on any kernel: run outside of them, or in a newer version of them.",
    **dict.fromkeys(
        (errno.EPERM, errno.EACCES),
        "Allow pidfd_open and pidfd_send_signal in the seccomp profile: container runtimes from before "
        "2020, nsjail, Firejail and systemd's SystemCallFilter may forbid them. A newer runtime allows them.",
    ),
}
"""For pidfd_open, which some sandboxes refuse although the kernel has it."""


def remedy(error: OSError, remedies: Mapping[int, str] = REMEDIES) -> str:
    """What to do about a system call that failed."""
    unknown = "Find out what refuses it: strace -f shows the call, dmesg what a security module says."
    return remedies.get(error.errno or 0, unknown)


def check(name: str, attempt: Callable[[], str], remedies: Mapping[int, str] = REMEDIES) -> Line:
    """Tries something: ``attempt`` says in words what worked, or raises OSError."""
    try:
        return Line(name, attempt(), value=True)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        return Line(name, f"refused: {reason}", False, PROBLEM, remedy(error, remedies))


def make_memfd() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("occl-doctor", flags | NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what kernels that do not know the flag say
            raise
    return os.memfd_create("occl-doctor", flags)


def try_memfd() -> str:
    """Makes, maps, reserves and seals anonymous memory, and checks that the seals hold."""
    size = mmap.PAGESIZE
    fd = make_memfd()
    try:
        os.ftruncate(fd, size)
        with mmap.mmap(fd, size):
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            for what, forbidden in (
                ("shrinking", lambda: os.ftruncate(fd, 0)),
                ("a second writable mapping", lambda: mmap.mmap(fd, size)),
            ):
                with contextlib.suppress(PermissionError):
                    forbidden()
                    raise OSError(f"a sealed memfd allows {what}")
    finally:
        os.close(fd)
    return "created, mapped and sealed"


def try_pidfd() -> str:
    """Opens a descriptor of this process, which must not read as ended."""
    fd = os.pidfd_open(os.getpid())
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if poll.poll(0):
            raise OSError("the pidfd of a running process says that it has ended")
    finally:
        os.close(fd)
    return "opened and polled"


def try_socket() -> str:
    """Sends a descriptor through an abstract Unix socket, and asks who sent it."""
    with contextlib.ExitStack() as held:
        listener, client = (
            held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(2)
        )
        for each in (listener, client):
            each.settimeout(SECONDS)
        name = f"\0occl-doctor-{secrets.token_hex(16)}"
        listener.bind(name)
        listener.listen(1)
        client.connect(name)
        server = held.enter_context(listener.accept()[0])
        server.settimeout(SECONDS)
        credentials = server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, user, _ = struct.unpack("3i", credentials)
        if (pid, user) != (os.getpid(), os.geteuid()):
            raise OSError(f"SO_PEERCRED names process {pid} of user {user}, which is not this one")
        sent = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
        held.callback(os.close, sent)
        client.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sent]))])
        _, ancillary, _, _ = server.recvmsg(1, socket.CMSG_SPACE(struct.calcsize("i")))
        received = array.array("i", b"".join(data for _, _, data in ancillary))
        for fd in received:
            held.callback(os.close, fd)
        if len(received) != 1:
            raise OSError(errno.EMFILE, "the descriptor that was sent did not arrive")
        if not os.path.sameopenfile(sent, received[0]):
            raise OSError("another descriptor arrived than was sent")
    return "sent a descriptor, and its user and process are known"


def seccomp_line(status: str) -> Line:
    """Of /proc/self/status."""
    modes = {"0": "off", "1": "strict", "2": "filter"}
    mode = modes.get(field(status, "Seccomp"), "unknown")
    return Line("seccomp", f"{mode}{', as in most containers' if mode == 'filter' else ''}", mode)


def user_namespace_line(uid_map: str) -> Line:
    """Of /proc/self/uid_map. Every user is mapped to itself outside of user namespaces."""
    inside = uid_map.split() not in ([], ["0", "0", "4294967295"])
    text = f"of its own ({len(uid_map.splitlines())} ranges of users)" if inside else "the machine's"
    return Line("user namespace", text, inside)


def limit_line(letter: str, name: str, soft: int, least: int | None, purpose: str) -> Line:
    """A limit of this user or process.

    Args:
        letter: ulimit's option.
        soft: the limit; -1 for none.
        least: below this, a warning; None for a limit that does not matter.
    """
    in_bytes = letter in "vlf"
    text = "unlimited" if soft < 0 else size(soft) if in_bytes else str(soft)
    title = f"{name} (-{letter})"
    if least is None or soft < 0 or soft >= least:
        return Line(title, text + ("" if least is not None else f"; {purpose}"), soft)
    raised = "unlimited" if in_bytes else str(least)
    return Line(title, text, soft, WARNING, f"Raise it (ulimit -{letter} {raised}): {purpose}.")


LIMITS = (
    ("n", "open files", resource.RLIMIT_NOFILE, 1024, "a rank has some descriptors for each other rank"),
    (
        "v",
        "address space",
        resource.RLIMIT_AS,
        16 << 30,
        "each rank maps memory of all others, in smaller regions under a limit",
    ),
    ("l", "locked memory", resource.RLIMIT_MEMLOCK, None, "occl locks none"),
    ("u", "processes", resource.RLIMIT_NPROC, 1024, "it counts the threads of all of the user's processes"),
    ("f", "file size", resource.RLIMIT_FSIZE, 64 << 30, "shared memory counts as a file"),
)


def section() -> Section:
    tried = (
        check("memfd", try_memfd),
        check("pidfd", try_pidfd, PIDFD_REMEDIES),
        check("Unix sockets", try_socket),
    )
    limits = [
        limit_line(letter, name, resource.getrlimit(number)[0], least, purpose)
        for letter, name, number, least, purpose in LIMITS
    ]
    status, users = read(Path("/proc/self/status")), read(Path("/proc/self/uid_map"))
    return Section("system", [*tried, seccomp_line(status), user_namespace_line(users), *limits])
