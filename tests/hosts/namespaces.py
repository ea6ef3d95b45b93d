"""Hosts on one machine: network namespaces that are joined by a switch.

    with Network(2) as network:
        first, second = network.hosts
        first.run("python", "serve.py")     # sees eth0 with first.address, and nothing of the other host
        second.limit("1gbit")
        second.cut()

Each host is a network namespace with one interface, ``eth0``. The switch is a bridge in a namespace of its
own, so addresses cannot clash with those of the machine. Hosts know each other's names, share no abstract
sockets and no loopback interface, but do share the file system and, unless `Host.command` starts them, the
numbers of processes. Leaving the context kills what still runs in the hosts and removes everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "eth0"
"""The name of every host's interface."""

CLONE_NEWNET, CLONE_NEWUTS, CLONE_NEWNS = 0x40000000, 0x04000000, 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
NETWORK4, NETWORK6 = "10.83.0", "fd00:83:"

FIRST_PORT = 29500
"""Below those that the kernel gives to sockets without a port."""

_numbers = itertools.count()


class CommandFailed(RuntimeError):
    """A command of iproute2 failed."""


def _execute(*command: str) -> str:
    """The command's output. Raises CommandFailed with what it wrote to stderr."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CommandFailed(f"`{' '.join(command)}`: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _call(name: str, *arguments: int | bytes | None) -> None:
    """A function of the C library that Python lacks, or has only from 3.12 on."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@functools.cache
def why_not() -> str:
    """Why networks cannot be made here, as a sentence; empty if they can."""
    if os.geteuid() != 0:
        return "Network namespaces need root."
    if missing := [name for name in ("ip", "tc", "unshare") if not shutil.which(name)]:
        return f"The command {missing[0]} is missing (Debian: iproute2, util-linux)."
    try:
        with Network(1) as network:
            network.hosts[0].limit("1gbit")
    except CommandFailed as error:
        return f"This machine does not let us make network namespaces: {error}."
    return ""


def ipv6_is_on() -> bool:
    """Whether the kernel lets interfaces have IPv6 addresses."""
    switch = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
    return switch.exists() and switch.read_text().strip() == "0"


@dataclass(frozen=True)
class Host:
    """One host: a network namespace, and its port at the switch."""

    number: int
    name: str
    switch: str
    names: Path
    """A file with the names and addresses of all hosts, in the format of /etc/hosts."""
    address4: str
    """Empty on a network without IPv4."""
    address6: str
    """Empty on a network without IPv6."""

    @property
    def address(self) -> str:
        return self.address4 or self.address6

    @property
    def port(self) -> str:
        """The switch's end of this host's cable."""
        return f"port{self.number}"

    def enter(self) -> None:
        """Moves this process, which must have a single thread, into the host. There is no way back."""
        if threads := len(list(Path("/proc/self/task").iterdir())) - 1:
            raise RuntimeError(f"{threads} threads would stay outside of host {self.number}")
        with Path("/run/netns", self.name).open() as namespace:
            _call("setns", namespace.fileno(), CLONE_NEWNET)
        _call("unshare", CLONE_NEWUTS | CLONE_NEWNS)
        socket.sethostname(self.name)
        _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
        _call("mount", bytes(self.names), b"/etc/hosts", None, MS_BIND, None)

    def command(self, *command: str) -> list[str]:
        """The command line that runs a command in this host, with process numbers and a /proc of its own."""
        name = f"echo {self.name} >/proc/sys/kernel/hostname"
        script = f'{name} && mount --bind {shlex.quote(str(self.names))} /etc/hosts && exec "$@"'
        apart = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return ["ip", "netns", "exec", self.name, *apart, "sh", "-c", script, "sh", *command]

    def run(self, *command: str) -> str:
        """The command's output. Raises CommandFailed with what it wrote to stderr."""
        return _execute(*self.command(*command))

    def limit(self, rate: str) -> None:
        """The most that the host sends from now on, in "gbit" or "mbit".

        What it has not sent for up to a millisecond may follow at once, and at least a large packet. More
        would hide the limit from calls of less.
        """
        bits = float(rate[:-4]) * {"gbit": 1e9, "mbit": 1e6}[rate[-4:]]
        burst = max(int(bits / 8 / 1000), 128 << 10)
        shaping = ["tbf", "rate", rate, "burst", str(burst), "latency", "50ms"]
        _execute("tc", "-n", self.name, "qdisc", "replace", "dev", INTERFACE, "root", *shaping)

    def lift_limit(self) -> None:
        _execute("tc", "-n", self.name, "qdisc", "del", "dev", INTERFACE, "root")

    def cut(self) -> None:
        """Pulls the cable at the switch: whatever is sent is lost, and no end is told."""
        _execute("ip", "-n", self.switch, "link", "set", self.port, "down")

    def restore(self) -> None:
        _execute("ip", "-n", self.switch, "link", "set", self.port, "up")

    def add_interfaces_to_nowhere(self) -> None:
        """A bridge, as Docker's, and a cable to it, with the same addresses on every host that has them."""
        for command in (
            "link add name docker0 type bridge",
            "link add name veth0 type veth peer name veth1",
            "link set veth1 master docker0 up",
            "link set veth0 up",
            "link set docker0 up",
            "address add 172.17.0.1/16 dev docker0",
            "address add 172.18.0.1/16 dev veth0",
        ):
            _execute("ip", "-n", self.name, *command.split())

    def bytes_sent(self) -> int:
        """By the host's interface, since it was made. Segments that are sent together have one header."""
        shown = _execute("ip", "-n", self.name, "-s", "-j", "link", "show", "dev", INTERFACE)
        return json.loads(shown)[0]["stats64"]["tx"]["bytes"]

    def processes(self) -> list[int]:
        return [int(pid) for pid in _execute("ip", "netns", "pids", self.name).split()]

    def kill(self) -> list[int]:
        """Kills every process that runs in the host; returns which.

        They are stopped before, so that none of them sees another one die.
        """
        pids = self.processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return pids


class Network:
    """Hosts and the switch between them. Used with ``with``."""

    def __init__(self, hosts: int, *, ipv4: bool = True, ipv6: bool | None = None) -> None:
        """``ipv6``: as the kernel has it, unless given."""
        stem = f"occl-{os.getpid()}-{next(_numbers)}"
        with_ipv6 = ipv6_is_on() if ipv6 is None else ipv6
        self.switch = f"{stem}-switch"
        self._folder = tempfile.TemporaryDirectory(prefix="occl-hosts-")
        self.hosts = [
            Host(
                number=number,
                name=f"{stem}-{number}",
                switch=self.switch,
                names=Path(self._folder.name, "hosts"),
                address4=f"{NETWORK4}.{number + 1}" if ipv4 else "",
                address6=f"{NETWORK6}:{number + 1}" if with_ipv6 else "",
            )
            for number in range(hosts)
        ]
        self._undo = contextlib.ExitStack()
        self._ports = itertools.count(FIRST_PORT)

    def new_port(self) -> int:
        """One that nothing listens on: only what asks here runs in these hosts."""
        return next(self._ports)

    def __enter__(self) -> Network:
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._folder)
            self._write_names()
            self._add_namespace(undo, self.switch)
            _execute("ip", "-n", self.switch, "link", "add", "name", "bridge", "type", "bridge")
            _execute("ip", "-n", self.switch, "link", "set", "bridge", "up")
            for host in self.hosts:
                self._add_namespace(undo, host.name)
                undo.callback(host.kill)
                self._plug_in(host)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _write_names(self) -> None:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for host in self.hosts:
            lines += [f"{address} {host.name}" for address in (host.address4, host.address6) if address]
        Path(self._folder.name, "hosts").write_text("\n".join(lines) + "\n")

    @staticmethod
    def _add_namespace(undo: contextlib.ExitStack, name: str) -> None:
        _execute("ip", "netns", "add", name)
        undo.callback(_execute, "ip", "netns", "del", name)
        _execute("ip", "-n", name, "link", "set", "lo", "up")

    @staticmethod
    def _plug_in(host: Host) -> None:
        peer = ["peer", "name", host.port, "netns", host.switch]
        _execute("ip", "link", "add", "name", INTERFACE, "netns", host.name, "type", "veth", *peer)
        _execute("ip", "-n", host.switch, "link", "set", host.port, "master", "bridge", "up")
        _execute("ip", "-n", host.name, "link", "set", INTERFACE, "up")
        if host.address4:
            _execute("ip", "-n", host.name, "address", "add", f"{host.address4}/24", "dev", INTERFACE)
        if host.address6:  # without the check for duplicates, during which the address cannot be used
            address = f"{host.address6}/64"
            _execute("ip", "-n", host.name, "address", "add", address, "dev", INTERFACE, "nodad")
