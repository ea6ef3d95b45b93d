"""docs/errors.md against the sources: texts of a group have rows or are internal, and rows have texts."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support import error_texts

PAGE = Path(__file__).parents[1] / "docs/errors.md"
HEADING = "| the text contains | meaning | what to do |"

OF_GROUPS = (
    "csrc/pg/",
    "csrc/coll/",
    "csrc/hosts/",
    "csrc/ucx/",
    "csrc/tcp/",
    "csrc/shm/",
    "occl/distributed/backend.py",
    "occl/distributed/gloo.py",
    "occl/distributed/groups.py",
    "occl/distributed/inter_node.py",
    "occl/distributed/tcp.py",
    "occl/distributed/windows.py",
)

LOG = "a line of the log about a group"
PART = "a part of other texts: how a call or a rank is named"
PROTOCOL = "another process wrote what no version writes; docs/errors.md has one remedy for all"
SYSTEM = "a system call that normally succeeds; the text ends with the system's reason"
INTERNAL = {
    "rank ... of ... of group ...:": LOG,
    "if each rank has a core": LOG,
    "all ranks share memory; up to ... bytes in one step (mapped: ...), slots of ... bytes, messages in": LOG,
    "its ranks are on several nodes; between them:": LOG,
    "; waiting ranks ... spin ... yield their core ...; kernels: ...; timeout": LOG,
    "; flight recorder ... on ... off": LOG,
    "group ... waits for reconfigure, with the handle": LOG,
    "#... of group ... on rank": PART,
    ", which connects to ...,": PART,
    "shrink group ... to ranks": PART,
    "the group has ended": PART,
    "rank ... does not answer": PART,
    "it could not connect through ... :": PART,
    "has ... , and ... has": PART,
    "create group ... of ranks ... of group": PART,
    "...uneven...dimensions in another order...": PART,
    "send(...recv(...dst=...src=..., tag=...": PART,
    "put(...[...], dst=..., offset=...": PART,
    "signal(dst=...wait_signal(src=...": PART,
    "shows a list of ranks that group ... of ... ranks cannot have": PROTOCOL,
    "copied more of a message than there is": PROTOCOL,
    "the process (...) gave its staging region the number ..., and there are": PROTOCOL,
    "the process (...) does not share the memory that it announced": PROTOCOL,
    "the process (...) pointed outside of its control region": PROTOCOL,
    "the process (...) pointed into memory region ..., and there are": PROTOCOL,
    "the process (...) pointed outside of its memory region": PROTOCOL,
    "announced a misaligned row of a window": PROTOCOL,
    "announced a tensor that cannot be": PROTOCOL,
    "a peer sent a descriptor that is not a sealed shared memory region": PROTOCOL,
    "a peer sent a shared memory region of ...": PROTOCOL,
    "an address of ... has ... bytes, and not": PROTOCOL,
    "a socket cannot be made": SYSTEM,
    "fstatfs on a peer's region failed": SYSTEM,
    "fstat on a peer's region failed": SYSTEM,
    "cannot give back ... bytes of shared memory": SYSTEM,
}


def entries() -> list[str]:
    """The patterns in the first column of the tables of texts."""
    found = []
    for table in PAGE.read_text().split(HEADING)[1:]:
        for row in table.split("\n\n")[0].strip().splitlines()[1:]:
            cells = row.split(" | ")
            assert len(cells) == 3 and all(cell.strip(" |") for cell in cells), row
            found += re.findall(r"`([^`]+)`", cells[0])
    return found


def of_groups() -> list[error_texts.Text]:
    return [text for text in error_texts.all_texts() if text.place.startswith(OF_GROUPS)]


def is_internal(text: error_texts.Text) -> bool:
    """An entry says at least half of its text, so that none hides another text."""
    return any(
        text.fits(entry) and 2 * error_texts.words(entry) >= error_texts.words(text.text)
        for entry in INTERNAL
    )


def test_every_text_of_a_group_has_a_row_or_is_internal():
    rows = entries()
    missing = [text for text in of_groups() if not any(map(text.fits, rows)) and not is_internal(text)]
    listing = "\n".join(f"{text.place}: {text.text}" for text in missing)
    assert not missing, f"add a row to docs/errors.md for each of\n{listing}"


def test_every_row_is_of_a_text():
    assert len(of_groups()) > 200
    texts = error_texts.all_texts()
    stale = [entry for entry in entries() if not any(text.fits(entry) for text in texts)]
    stale += [entry for entry in INTERNAL if not any(text.fits(entry) for text in of_groups())]
    assert not stale, "no source has these texts: " + "; ".join(stale)
