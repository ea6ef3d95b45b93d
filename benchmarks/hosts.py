"""Times collectives between hosts, which are network namespaces of this machine (needs root and iproute2).

    python -m benchmarks.hosts                                      all_reduce, about six minutes
    python -m benchmarks.hosts --ops all_reduce all_gather_single --shapes 2+2 --rates none 1gbit
    python -m benchmarks.hosts --contenders occl-cpu gloo --shapes 2+2 --write      then 4+4, on the same day

A shape says how many ranks each host has. A rate is the most that each host sends; with "none", the processor
is the limit, because all hosts share its cores. Each contender is alone in its processes. They take turns,
and all results are checked, as `occl bench` does. Open MPI (`openmpi`) is called from C and occl's backend
also from C++ (`c++-tcp`). "sockets" is the floor: the bytes that two hosts of as many ranks must exchange
(benchmarks/bare_sockets.py). The last columns are what a host sends in a call, as its interface counts it, of
the host that sends most: in bytes, or over the size from 1 KiB on.
"""

import argparse
import dataclasses
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.bare_sockets import NAME as SOCKETS
from benchmarks.bare_sockets import Sockets, fits
from benchmarks.peers import alone, programs
from occl import compat
from occl.bench import machine
from occl.bench.command import parse_size
from occl.bench.contenders import EVERY, check_available
from occl.bench.gate import Gate
from occl.bench.launch import exit_on_sigterm, run_ranks
from occl.bench.measure import Contestant, Data, Round, Samples, make_arena, measure
from occl.bench.noise import judge, verdict
from occl.bench.operations import OPERATIONS, Operation
from occl.bench.report import Table, summarize
from occl.bench.worker import turns
from tests.hosts.launch import enter, meet, placement
from tests.hosts.namespaces import INTERFACE, Host, Network, why_not

NO_LIMIT = "none"
OPENMPI = "openmpi"
BUILT = {"c++-tcp": "c++-cpu", OPENMPI: OPENMPI}
"""Contenders that are not called from Python, and their programs on one host."""
SIZES = [parse_size(size) for size in ("4", "64K", "1M", "16M", "64M")]
COUNTED_BYTES, MOST_COUNTED = 16 << 20, 50
"""Calls whose bytes are counted: as many as move COUNTED_BYTES, but at least 1 and at most MOST_COUNTED."""
RESULTS = Path(__file__).parent / "results"


def bytes_sent(
    operation: Operation, size: int, contestants: dict[str, Contestant], gate: Gate, host: Host
) -> dict[str, list[float]]:
    """For each contender, how many bytes each rank's host sends in a call. A call of one element comes before
    the counted ones, and its bytes are among theirs."""
    ranks, item = dist.get_world_size(), operation.dtype.itemsize
    whole = -(-max(size // item, 1) // ranks) * ranks
    calls = min(max(COUNTED_BYTES // size, 1), MOST_COUNTED)
    data = Data.of(operation, whole, calls)
    sent: dict[str, list[float]] = {}
    for name, contestant in contestants.items():
        arena = make_arena(operation, name, contestant, whole, calls)
        if arena is None:
            continue
        gate.wait(asleep=True)
        before = host.bytes_sent()
        gate.wait(asleep=True)
        arena.run(gate, Round(operation, data, 0), calls)
        gate.wait(asleep=True)
        mine = torch.tensor([(host.bytes_sent() - before) / calls])
        everyone = torch.empty(ranks)
        gate.wait(asleep=True)  # all have looked
        compat.all_gather_single()(everyone, mine)
        sent[name] = everyone.tolist()
    return sent


class Report:
    """What rank 0 prints as soon as it is known, and leaves for the files."""

    def __init__(self, rank: int) -> None:
        self._quiet = rank != 0
        self.lines: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def say(self, line: str) -> None:
        if not self._quiet:
            print(line, flush=True)
            self.lines.append(line)


def measure_table(
    report: Report,
    rank: int,
    options: argparse.Namespace,
    contestants: dict[str, Contestant],
    sockets: Sockets | None,
    gate: Gate,
) -> None:
    """Every operation at every size, as far as the time goes."""
    table = Table([*contestants, *([SOCKETS] if sockets else [])])
    title, rule = table.header().splitlines()
    columns = [f"{name} sends" for name in contestants]
    report.say("  ".join([title, *columns]) + "\n" + rule + "-" * sum(len(column) + 2 for column in columns))
    for operation, size, seconds in turns(options):
        results = [summarize(samples) for samples in measure(operation, size, contestants, gate, seconds)]
        if sockets and operation.name == "all_reduce":
            results.append(
                summarize(Samples(operation.name, size, SOCKETS, 1, sockets.seconds(size, gate.wait)))
            )
        sent = bytes_sent(operation, size, contestants, gate, options.hosts[rank])
        most = {name: max(values) for name, values in sent.items()}
        form = "{:.0f} B" if size < 1024 else "{:.2f}"
        counts = {name: form.format(value if size < 1024 else value / size) for name, value in most.items()}
        shown = [counts.get(name, "-") for name in contestants]
        shown = [cell.rjust(len(column)) for cell, column in zip(shown, columns, strict=True)]
        report.say("  ".join([table.line(results), *shown]))
        report.rows += [
            dataclasses.asdict(result) | {"noisy": result.noisy, "sent": sent.get(result.contender, [])}
            for result in results
        ]


def openmpi_across(hosts: list[Host], folder: Path) -> programs.Program:
    """Open MPI's program on these hosts, one for each rank. Rank 0's host runs the launcher, which starts a
    daemon in each other one through a script that it takes for ssh."""
    agent = folder / "agent"
    # The daemon keeps the numbers of processes, with which its ranks open memory of rank 0 for the start.
    script = "echo {0} >/proc/sys/kernel/hostname && exec sh -c "
    cases = "".join(
        f"{host.address4}) shift; "
        f'exec ip netns exec {host.name} unshare --uts sh -c \'{script.format(host.name)}"$0"\' "$*" ;;\n'
        for host in dict.fromkeys(hosts)
    )
    # Every rank writes the same.
    agent.write_text(f'#!/bin/sh\n# HOST COMMAND...\ncase "$1" in\n{cases}esac\n')
    agent.chmod(0o755)
    slots = ",".join(f"{host.address4}:{hosts.count(host)}" for host in dict.fromkeys(hosts))
    settings = {
        "plm_rsh_agent": str(agent),
        "orte_leave_session_attached": "1",  # the script's processes end with it
        "oob_tcp_if_include": INTERFACE,
        "btl_tcp_if_include": INTERFACE,
        "mpi_yield_when_idle": "1",  # all hosts share the cores, which no daemon can know
    }
    given = [word for name, value in settings.items() for word in ("--mca", name, value)]
    launcher = ["mpirun.openmpi", "--host", slots, "--bind-to", "none", *given]
    return dataclasses.replace(
        programs.PROGRAMS[OPENMPI], launcher=lambda ranks: [*launcher, "-n", str(ranks)]
    )


def across(name: str, hosts: list[Host], folder: Path) -> programs.Program:
    """The program of a contender on these hosts, one for each rank."""
    if name == OPENMPI:
        return openmpi_across(hosts, folder)
    inside = lambda rank: ["ip", "netns", "exec", hosts[rank].name]  # noqa: E731
    if name in BUILT:
        program = programs.PROGRAMS[BUILT[name]]
        return dataclasses.replace(program, around=lambda rank: (inside(rank), [hosts[rank].address]))
    command = (sys.executable, "-m", alone.__name__)
    return programs.Program(name, command=command, arguments=(name,), around=lambda rank: (inside(rank), []))


def work(rank: int, options: argparse.Namespace, folder: str, counters: Any) -> None:
    """What each rank does."""
    enter(rank, options.ranks, "cpu", hosts=options.hosts)
    torch.set_num_threads(1)
    gc.disable()  # a collection in a timed section would be noise
    # The default group, with which the ranks agree about times. It is not timed itself.
    address = {"address": options.hosts[0].address, "port": options.port}
    meet(rank, options.ranks, "cpu", backend="gloo", timeout=600.0, **address)
    gate = Gate(counters, rank)
    places = placement(options.shape)
    sockets = Sockets(rank, places, options.hosts[rank].address) if fits(places) else None
    report = Report(rank)
    tables = {}
    known = {name: across(name, options.hosts, Path(folder)) for name in options.contenders}
    with programs.started(known, Path(folder), rank, options.ranks, known) as connections:
        for rate in options.rates:
            if rank == 0 and rate != NO_LIMIT:
                for host in set(options.hosts):
                    host.limit(rate)
            gate.wait()
            report.say(f"\n{options.shape} ranks, {'no limit' if rate == NO_LIMIT else rate}\n")
            measure_table(report, rank, options, connections, sockets, gate)
            tables[rate], report.rows = report.rows, []
    if rank == 0:
        Path(folder, "results").write_text(json.dumps({"lines": report.lines, "tables": tables}))
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    names = [operation.name for operation in OPERATIONS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hosts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ops", nargs="+", choices=names, default=["all_reduce"], metavar="OP")
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=SIZES, metavar="SIZE")
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=[*EVERY, *BUILT],
        default=["occl-tcp", "occl-ucx", "gloo", *BUILT],
        metavar="NAME",
    )
    parser.add_argument("--shapes", nargs="+", default=["1+1", "2+2", "4+4"], metavar="SHAPE")
    parser.add_argument("--rates", nargs="+", default=[NO_LIMIT, "10gbit", "1gbit"], metavar="RATE")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each shape and rate (30)")
    parser.add_argument("--write", action="store_true", help=f"into {RESULTS.name}/DATE-hosts.txt and .json")
    options = parser.parse_args()
    options.rates.sort(key=lambda rate: rate != NO_LIMIT)  # limits are set once and not lifted
    return options


def write(content: dict[str, Any]) -> None:
    """Into the files of this day. Shapes that were measured earlier on this day stay."""
    stem = RESULTS / f"{content['machine']['date'][:10]}-hosts"
    table = stem.with_suffix(".json")
    if table.exists():
        content = json.loads(table.read_text()) | {k: v for k, v in content.items() if k != "machine"}
    text = machine.lines(content["machine"])
    for shape, measured in content.items():
        if shape != "machine":
            text += [*measured["lines"], "", measured["verdict"]]
    stem.with_suffix(".txt").write_text("\n".join(text) + "\n")
    table.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    exit_on_sigterm()
    options = parse_arguments()
    check_available([name for name in options.contenders if name in EVERY])
    built = [name for name in options.contenders if name in BUILT]
    lacking = programs.prepare(BUILT[name] for name in built)[1]
    for name in built:
        if reason := lacking.get(BUILT[name]):
            print(f"left out: {name} lacks {reason}")
            options.contenders.remove(name)
    if reason := why_not():
        sys.exit(f"error: {reason}")
    for library in ("OMP", "MKL", "OPENBLAS"):  # ranks must have a single thread when they enter their hosts
        os.environ[f"{library}_NUM_THREADS"] = "1"
    content: dict[str, Any] = {}
    for shape in options.shapes:
        places = placement(shape)
        with Network(max(places) + 1) as network:
            hosts = [network.hosts[place] for place in places]
            given = {"shape": shape, "ranks": len(hosts), "hosts": hosts, "port": network.new_port()}
            chosen = argparse.Namespace(**vars(options) | given)
            note = f"{shape} on {len(network.hosts)} hosts, one thread each"
            about, written, shares = run_ranks(work, chosen, note)
        found, noise = json.loads(written), judge([], *shares)
        print(f"\n{verdict(noise)}\n")
        content.setdefault("machine", about)
        content[shape] = {
            "noise": noise,
            "verdict": verdict(noise),
            "lines": found["lines"],
            "tables": found["tables"],
        }
    if options.write:
        write(content)


if __name__ == "__main__":
    main()
