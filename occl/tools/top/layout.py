"""The layout of a control region: shm/wire.h, coll/observe/record.h and coll/mesh/layout.h of csrc in Python.

Every number here was written by another process. A number out of range raises `Unreadable`, and none is used
as a size before it is compared with a limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

PROTOCOL = 18  # shm::kProtocolVersion
MAGIC = 0x6C63636F  # shm::kMagic
RECORD_MAGIC = 0x61636C6F  # coll::kRecordMagic
MAX_RANKS = 256
MAX_RECORDS = 1 << 16
LONGEST_NAMES = 1 << 13

HEADER = struct.Struct("<QIII44x64xiIQQ64s40x")
"""ProcessHeader: nonce, magic, version, ending, pid, (padding,) records, names, host."""
IDENTITY = struct.Struct("<IIQQQiiQQQ128s")
"""ActivityRecord: magic, bytes, next, state, group, rank, size, block, wanted, flags, name."""
WORDS = struct.Struct("<112Q")
"""The words after the identity: the fields of `FIELDS`, then eight words of counters for each kind."""
FIELDS = [
    *(
        "first_ticks",
        "first_ns",
        "recent_ticks",
        "recent_ns",
        "memory",
        "message_deadline",
        "barriers",
        "barrier_since",
    ),
    *("version", "stage", "number", "signature", "volume", "posted", "since", "deadline"),
    *("submitted", "last", "collectives", "message", "envelope", "message_volume"),
    *("message_posted", "messages_open"),
]
KINDS = 11  # nine collectives, sends, receives
VERSION_AT = IDENTITY.size + 8 * FIELDS.index("version")
RECORD_BYTES = IDENTITY.size + WORDS.size
RECV_LINE = 64
WANTED_IN_LINE = 16  # offset of RecvLine::wanted
assert HEADER.size == 256 and IDENTITY.size == 192 and WORDS.size == 8 * (len(FIELDS) + 8 * KINDS)

OPEN, ENDED = 1, 2  # RecordState
SPANS_NODES, PART_OF_ANOTHER = 1, 2  # bits of the flags
IN_PIECES = "in pieces"
COMPOSITES = [
    "?",
    "all_reduce_sparse",
    "new_window",
    "tensor_register",
    "tensor_deregister",
    "rendezvous",
    IN_PIECES,
]
"""coll::Composite, by number."""
ACCESSES = ["?", "put", "signal", "wait_signal"]
"""coll::Access, by number."""
STAGES = ("idle", "held", "meeting", "moving", "syncing")

Read = Callable[[int, int], bytes]
"""``read(offset, count)``: bytes of a control region, fewer at its end."""


class Unreadable(Exception):
    """The bytes are not what a process of this version writes."""


class OtherVersion(Unreadable):
    """A process of another version of torch_occl."""

    def __init__(self, version: int) -> None:
        super().__init__(f"speaks protocol version {version}, and this is version {PROTOCOL}")
        self.version = version


def take(read: Read, offset: int, count: int) -> bytes:
    data = read(offset, count)
    if len(data) != count:
        raise Unreadable(f"its region ends within {count} bytes at {offset}")
    return data


def word(read: Read, offset: int) -> int:
    return int.from_bytes(take(read, offset, 8), "little")


def text(field: bytes) -> str:
    """The bytes up to the first zero, with ``?`` for what is not printable, as in the core's messages."""
    shown = field.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(c if c.isprintable() and c != "\N{REPLACEMENT CHARACTER}" else "?" for c in shown)


class Names:
    """The names for the numbers in records, which the process that writes them publishes."""

    def __init__(self, said: str) -> None:
        parts = said.split(";")
        if len(parts) != 3:
            raise Unreadable("its table of operation names is damaged")
        self.kinds = [*parts[0].split(","), "send", "recv"]
        dtypes = [dtype.partition(":") for dtype in parts[1].split(",")]
        self.dtypes = [name for name, _, _ in dtypes]
        self.sizes = [int(size) if size.isdecimal() and size != "0" else 1 for _, _, size in dtypes]
        self.ops = parts[2].split(",")
        if len(self.kinds) != KINDS:
            raise Unreadable(f"it has {len(self.kinds)} kinds of operations, and {KINDS} are expected")

    @staticmethod
    def at(names: list[str], number: int) -> str:
        return names[number] if number < len(names) else "?"


def offsets(read: Read, first: int) -> Iterator[int]:
    """Where the records lie, in the list that begins at ``first``."""
    offset, seen = first, 0
    while offset:
        if seen == MAX_RECORDS or offset % 64:
            raise Unreadable("its list of groups is damaged")
        yield offset
        offset, seen = word(read, offset + 8), seen + 1
