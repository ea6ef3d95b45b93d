"""Tables that a program writes into a page, between marks that the page has."""

from __future__ import annotations

from pathlib import Path


def replaced_between(text: str, begin: str, end: str, table: str) -> str:
    """The text with this table, on lines of its own, in the place of what stands between the marks."""
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise RuntimeError(f"the marks '{begin}' and '{end}' are missing")
    content = table.strip("\n")
    return f"{before}{begin}\n{content}\n{end}{after}"


def write_between(page: Path, begin: str, end: str, table: str) -> None:
    page.write_text(replaced_between(page.read_text(), begin, end, table))
