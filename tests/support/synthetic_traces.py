"""Traces as processes write them, made by hand: csrc/coll/observe/trace_file.h, in Python."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from occl.tools.report import read

KINDS = ["barrier", "broadcast", "all_reduce", "reduce", "all_gather"]
TEXT_AT, RECORDS_AT = 4096, 256 << 10
BEGAN = 1_800_000_000 * 10**9
"""When all of them begin, in nanoseconds since 1970."""


@dataclass
class Process:
    """One process that records. Times are microseconds of a clock that all processes of a host share."""

    pid: int
    host: str = "a"
    boot: str = "boot-a"
    rank: int = -1
    ticks_of_us: float = 2000.0
    began: float = 0.0
    clock_is: float = 0.0
    """Microseconds by which this host's clock is ahead."""
    drift: float = 0.0
    """Of this host's clock, in parts of one."""
    capacity: int = 4096
    state: int = 2
    lines: list[dict[str, Any]] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)

    def group(self, key: str, rank: int, size: int, name: str = "0", spans: bool = False) -> int:
        number = len(self.lines)
        self.lines.append(
            {"group": number, "name": name, "key": key, "rank": rank, "size": size, "spans": int(spans)}
        )
        return number

    def operation(
        self,
        number: int,
        called: float,
        arrived: float | None = None,
        met: float | None = None,
        ended: float | None = None,
        waited: float | None = None,
        moved: float | None = None,
        group: int = 0,
        kind: int = 2,
        size: int = 4,
        dtype: int = 0,
        peer: int = -1,
        detail: int = 0,
        failed: bool = False,
        future: bool = False,
    ) -> None:
        progress = (
            5
            if failed
            else 4
            if ended is not None
            else 3
            if met is not None
            else 2
            if arrived is not None
            else 1
        )

        def after(t: float | None) -> float:
            return -1.0 if t is None else (t - called) * (1 + self.drift) * self.ticks_of_us

        index = len(self.records)
        self.records.append(
            read.RECORD.pack(
                *(
                    index + 1,
                    self.ticks(called),
                    number,
                    size,
                    group,
                    progress,
                    kind,
                    dtype,
                    int(future),
                    peer,
                    detail,
                ),
                *map(after, (arrived, met, moved, ended, waited)),
            )
        )

    def clock(self, us: float) -> float:
        return us * (1 + self.drift) + self.clock_is

    def ticks(self, us: float) -> int:
        return 10**12 + round(self.clock(us) * self.ticks_of_us)

    def reading(self, us: float) -> tuple[int, int, int]:
        ns = round(self.clock(us) * 1000)
        return self.ticks(us), 10**10 + ns, BEGAN + ns

    def content(self) -> bytes:
        about = {
            **{"host": self.host, "boot": self.boot, "pid": self.pid, "rank": self.rank, "world": -1},
            **{
                "command": "python train.py",
                "kinds": KINDS,
                "dtypes": ["float32"],
                "reductions": ["SUM", "NONE"],
            },
        }
        header = read.HEADER.pack(
            read.MAGIC,
            read.VERSION,
            read.RECORD.size,
            TEXT_AT,
            RECORDS_AT - TEXT_AT,
            RECORDS_AT,
            self.capacity,
            self.state,
        )
        header += read.READING.pack(*self.reading(self.began))
        header += read.LATER.pack(1, *self.reading(self.began + 1e6)) + read.LATER.pack(0, 0, 0, 0)
        text = "".join(json.dumps(line) + "\n" for line in [about, *self.lines]).encode()
        places: list[bytes] = [b""] * min(len(self.records), self.capacity)
        for i, record in enumerate(self.records):
            places[i % self.capacity] = record
        return header.ljust(TEXT_AT, b"\0") + text.ljust(RECORDS_AT - TEXT_AT, b"\0") + b"".join(places)

    def write(self, directory: Path) -> Path:
        path = directory / f"{self.host}-{self.pid}{read.SUFFIX}"
        path.write_bytes(self.content())
        return path


def world(size: int, **changes: Any) -> list[Process]:
    """The ranks of a group of one host."""
    made = [Process(100 + rank, **changes) for rank in range(size)]
    for rank, process in enumerate(made):
        process.group("77", rank, size)
    return made


def straggling(size: int, operations: int, late: int = 1) -> list[Process]:
    """Ranks that meet each millisecond; rank `late` comes 300 us after the others, and moving takes 50 us."""
    made = world(size)
    for number in range(1, operations + 1):
        begin = 1000.0 * number
        came = begin + 300
        for rank, process in enumerate(made):
            arrived = came if rank == late else begin + rank
            process.operation(
                number,
                arrived,
                arrived,
                came + 1,
                came + 50,
                waited=arrived,
                size=4096,
                peer=late if rank != late else -1,
            )
    return made
