"""A hook of MkDocs (mkdocs.yml): what the site has beside docs/.

The pages are also read as files of the repository, so they link to sources, tests and examples by relative
paths outside of docs/. The site gets a copy of each file that a page links to, as a page with its text, so
that it needs no other host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
COPIES = "repository"  # the folder of the site with the files of the repository
LINK = re.compile(r"(?<!\\)\]\((?!https?:|mailto:|#)<?([^)\s#>]+)(#[^)\s>]*)?>?\)")
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".py": "python", ".toml": "toml", ".sh": "sh", ".pyi": "python"}


def in_repository(page: str) -> str:
    """The place in the repository of what the site has at `page`."""
    if page.startswith(f"{COPIES}/"):
        copied = page.removeprefix(f"{COPIES}/")
        return copied if (ROOT / copied).is_file() else copied.removesuffix(".md")
    return f"docs/{page}"


def in_site(path: str) -> str:
    """The reverse of in_repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{COPIES}/{path}" if Path(path).suffix in (".md", ".png", ".svg") else f"{COPIES}/{path}.md"


def target(page: str, link: str) -> str | None:
    """The file of the repository that a link of a page of the site means; None if there is none."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository(page)), link))
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").is_file():
        path += "/README.md"
    return path if (ROOT / path).is_file() else None


def links(text: str) -> list[str]:
    without_code = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.M | re.S)
    return [match[1] for match in LINK.finditer(without_code)]


def copy_of(path: str, config: Any) -> File:
    page = in_site(path)
    if path.endswith((".png", ".svg")):
        return File.generated(config, page, abs_src_path=str(ROOT / path))
    text = (ROOT / path).read_text()
    if not path.endswith(".md"):
        language = LANGUAGES.get(Path(path).suffix, "text")
        head = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"
        text = f"{head}````{language}\n{text}\n````\n"
    return File.generated(config, page, content=text)


def on_files(files: Files, config: Any) -> Files:
    """Adds a copy of each file that a page, or a copy of a page, links to."""
    waiting = [file.src_uri for file in files if file.src_uri.endswith(".md")]
    while waiting:
        page = waiting.pop()
        source = ROOT / in_repository(page)
        if source.suffix != ".md":
            continue
        for link in links(source.read_text()):
            path = target(page, link)
            if path and not path.startswith("docs/") and not files.get_file_from_path(in_site(path)):
                files.append(copy_of(path, config))
                waiting.append(in_site(path))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri

    def replaced(match: re.Match[str]) -> str:
        path = target(here, match[1])
        if path is None:
            return match[0]  # MkDocs complains of it
        there = posixpath.relpath(in_site(path), posixpath.dirname(here) or ".")
        return f"]({there}{match[2] or ''})"

    pieces = re.split(r"(^```.*?^```|^````.*?^````)", markdown, flags=re.M | re.S)
    return "".join(piece if piece.startswith("```") else LINK.sub(replaced, piece) for piece in pieces)


def _existing(entries: list[Any], pages: set[str]) -> list[Any]:
    kept: list[Any] = []
    for entry in entries:
        if isinstance(entry, str):
            kept += [entry] if entry in pages else []
            continue
        ((title, value),) = entry.items()
        if isinstance(value, list):
            value = _existing(value, pages)
            kept += [{title: value}] if value else []
        elif value in pages:
            kept.append(entry)
    return kept


def _listed(entries: list[Any]) -> set[str]:
    found: set[str] = set()
    for entry in entries:
        for value in [entry] if isinstance(entry, str) else entry.values():
            found |= _listed(value) if isinstance(value, list) else {value}
    return found


def repository() -> str:
    """The address of the repository, of pyproject.toml; empty if it has none."""
    found = re.search(r'^(?:Repository|Source) *= *"([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    return found[1] if found else ""


def on_config(config: Any) -> Any:
    # Not repo_url, with which the theme asks the repository's host for numbers whenever a page is read.
    if address := repository():
        config.copyright = f'BSD-3-Clause. <a href="{address}">Repository</a>'
    docs = Path(config.docs_dir)
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    config.nav = _existing(config.nav, pages)
    more = sorted(pages - _listed(config.nav))
    if more:
        config.nav.append({"More": more})
    return config
