"""The Markdown of the repository, read for the tests of the docs: pages, blocks of code, links, anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>\w*)[^\n`]*\n(?P<text>.*?)^(?P=indent)(?P=fence) *$",
    re.M | re.S,
)
RUN = re.compile(r"<!-- run:?\s*(.*?)\s*-->\s*$")
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")
ID = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    options: dict[str, str] | None
    """Of the comment `<!-- run: ranks=2 device=dev -->` before the block; None without one."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    __hash__ = object.__hash__


@lru_cache
def pages() -> tuple[str, ...]:
    """The Markdown files of the repository, by their paths in it."""
    found = list(ROOT.glob("*.md"))
    for folder in ("docs", "examples", "tests", "benchmarks", "tools"):
        found += (ROOT / folder).rglob("*.md")
    relative = (path.relative_to(ROOT) for path in found)
    return tuple(sorted(path.as_posix() for path in relative if "build" not in path.parts))


@lru_cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(*languages: str) -> Iterator[Block]:
    for page in pages():
        text = text_of(page)
        for match in FENCE.finditer(text):
            if match["language"] not in languages:
                continue
            run = RUN.search(text, 0, match.start())
            options = dict(option.split("=") for option in run[1].split()) if run else None
            code = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.M)
            yield Block(page, text.count("\n", 0, match.start()) + 1, match["language"], code, options)


def prose(page: str) -> str:
    """The page without code, in blocks and in lines."""
    return re.sub(r"(`+)[^`\n]+?\1", "", FENCE.sub("", text_of(page)))


def links(page: str) -> list[str]:
    return LINK.findall(prose(page))


def slug(heading: str) -> str:
    """The anchor that GitHub, and the site, give to a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip()).replace("`", "")
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


@lru_cache
def anchors(page: str) -> frozenset[str]:
    text = FENCE.sub("", text_of(page))
    found: list[str] = []
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.M):
        name = slug(heading)
        same = sum(
            other == name or re.fullmatch(rf"{re.escape(name)}-\d+", other) is not None for other in found
        )
        found.append(f"{name}-{same}" if same else name)
    return frozenset([*found, *ID.findall(text)])
