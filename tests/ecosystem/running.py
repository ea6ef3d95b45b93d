"""Runs examples of examples/integrations, over Gloo, over occl and on `dev`, and reads what they print."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.namespaces import INTERFACE, Network

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"
COMPILED = str(EXAMPLES.parents[1] / "build" / "torch_extensions")
"""Where DeepSpeed compiles: a run that is killed meanwhile leaves a lock, so not in a shared place."""
TIMEOUT = 240
"""Seconds after which a run counts as hanging."""
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2")
GLOO, CPU, DEV = "Gloo", "occl on CPU tensors", "occl on dev"
SETTINGS = [pytest.param(CPU, id="cpu"), pytest.param(DEV, id="dev")]
OPTIONS = {
    GLOO: ("--backend", "gloo", "--device", "cpu"),
    CPU: ("--backend", "occl", "--device", "cpu"),
    DEV: ("--backend", "occl", "--device", "dev"),
}
"""For examples that choose the backend themselves."""
IN_PLACE = {
    GLOO: {},
    CPU: {"OCCL_IN_PLACE_OF": "gloo"},
    DEV: {"OCCL_IN_PLACE_OF": "gloo", "OCCL_DEVICE": "1", "ACCELERATE_TORCH_DEVICE": "dev:0"},
}
"""For examples that know only Gloo."""
OWN_RAY = {"RAY_ADDRESS": "local"}
"""Otherwise Ray joins a cluster that another test has started on this machine."""


GLOO_ABORTS = "terminate called without an active exception"
"""What a process with Gloo's groups says that aborts at its end, when its results are out. With PyTorch 2.13
`metrics_digits.py` did so in 2 of 20 runs, and in 3 of 24 where torch_occl was not loaded."""


def environment(variables: dict[str, str]) -> dict[str, str]:
    """That of an example's command."""
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {"PATH": scripts, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": COMPILED}
    return os.environ | given | variables


def run(*command: str, alone: bool = False, reference: bool = False, **variables: str) -> str:
    """The output of a command in the folder of the examples, which must succeed.

    ``alone``: whether its ranks may train alone. ``reference``: over Gloo, which may abort at its end.
    """
    done = subprocess.run(
        command,
        cwd=EXAMPLES,
        env=environment(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0 or (reference and GLOO_ABORTS in done.stdout), done.stdout
    assert "uses Gloo, and not occl" not in done.stdout, done.stdout
    assert alone or "trains alone" not in done.stdout, done.stdout
    return done.stdout


def run_on_two_nodes(*script: str, **variables: str) -> list[str]:
    """What an example prints, by rank, where each of two ranks has a network namespace for a host."""
    with Network(2) as network, contextlib.ExitStack() as stack:
        meeting = ["--master-addr", network.hosts[0].address, "--master-port", str(network.new_port())]
        nodes = []
        for number, host in enumerate(network.hosts):
            command = ["torchrun", "--nnodes=2", f"--node-rank={number}", "--nproc-per-node=1", *meeting]
            node = subprocess.Popen(
                host.command(*command, *script),
                cwd=EXAMPLES,
                env=environment({"GLOO_SOCKET_IFNAME": INTERFACE} | variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(node.kill)
            nodes.append(node)
        shown = [node.communicate(timeout=TIMEOUT)[0] for node in nodes]
    assert not any(node.returncode for node in nodes), "\n".join(shown)
    return shown


def fails(*command: str, **variables: str) -> str:
    """The output of a command that must fail."""
    with pytest.raises(AssertionError) as failed:
        run(*command, **variables)
    return str(failed.value)


def losses(shown: str) -> list[float]:
    """What the example's line of losses has."""
    (line,) = re.findall(r"^losses (.*)$", shown, re.MULTILINE)
    found = [float(text) for text in line.split()]
    assert len(found) > 2 and found[-1] < found[0], line
    return found


def assert_same_losses(shown: str, reference: str) -> None:
    """To the printed digits. On `dev`, sums may be rounded otherwise, by one in the last of them."""
    assert losses(shown) == pytest.approx(losses(reference), abs=2e-4)


@functools.cache
def with_gloo(*command: str, **variables: str) -> str:
    return run(*command, reference=True, **variables)
