"""docs/errors.md against the texts in the sources: each has an entry, and each entry has a text."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support import error_texts

PAGE = Path(__file__).parents[1] / "docs/errors.md"
HEADING = "| the text contains | meaning | what to do |"

# Texts that are built as errors are and are none, as patterns, each with what it is.
NOT_ERRORS = dict.fromkeys(
    [
        "rank ... of ... of group ...:",
        "if each rank has a core",
        "all ranks share memory; up to ... bytes in one step",
        "its ranks are on several nodes; between them:",
        "; waiting ranks ... spin",
    ],
    "a line of the log about a group",
)


def entries() -> list[str]:
    """The patterns in the first column of the tables of texts."""
    found = []
    for table in PAGE.read_text().split(HEADING)[1:]:
        for row in table.split("\n\n")[0].strip().splitlines()[1:]:
            cells = row.split(" | ")
            assert len(cells) == 3 and all(cell.strip(" |") for cell in cells), row
            found += re.findall(r"`([^`]+)`", cells[0])
    return found


def normalized(pattern: str) -> str:
    return pattern.replace("and 'dev' runs", "and `dev` runs")  # a code span cannot hold another one


def test_every_text_of_an_error_has_an_entry():
    patterns = [normalized(entry) for entry in entries()]
    patterns += NOT_ERRORS
    missing = [text for text in error_texts.all_texts() if not any(map(text.fits, patterns))]
    listing = "\n".join(f"{text.place}: {text.text}" for text in missing)
    assert not missing, f"add an entry to docs/errors.md for each of\n{listing}"


def test_every_entry_is_of_a_text():
    texts = error_texts.all_texts()
    assert len(texts) > 300
    stale = [
        entry
        for entry in [*entries(), *NOT_ERRORS]
        if not any(text.fits(normalized(entry)) for text in texts)
    ]
    assert not stale, "no source has these texts of docs/errors.md: " + "; ".join(stale)
