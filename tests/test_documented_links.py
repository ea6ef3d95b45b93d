"""Links and first lines of the docs: links lead somewhere, and the table of contents has every page."""

from __future__ import annotations

import posixpath
import re

from tests.support import markdown

ROOT = markdown.ROOT


def resolved(page: str, link: str) -> tuple[str, str]:
    """The file of the repository and the anchor that a link means."""
    path, _, anchor = link.partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page), anchor


def internal_links() -> list[tuple[str, str]]:
    return [
        (page, link)
        for page in markdown.pages()
        for link in markdown.links(page)
        if not re.match(r"https?:|mailto:", link)
    ]


def test_every_link_leads_to_a_file():
    broken = [
        (page, link) for page, link in internal_links() if not (ROOT / resolved(page, link)[0]).exists()
    ]
    assert not broken


def test_every_anchor_is_on_its_page():
    assert "glossary" in markdown.anchors("docs/architecture.md")
    broken = []
    for page, link in internal_links():
        path, anchor = resolved(page, link)
        if (
            anchor
            and path.endswith(".md")
            and (ROOT / path).is_file()
            and anchor not in markdown.anchors(path)
        ):
            broken.append((page, link))
    assert not broken


def test_the_table_of_contents_has_every_page_of_docs():
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = {f"docs/{page}" for page in re.findall(r": (\S+\.md)$", nav, re.M)}
    assert listed == {page for page in markdown.pages() if page.startswith("docs/")}


def test_no_page_of_docs_begins_with_a_question():
    begins = {
        page: markdown.text_of(page).split("\n\n")[1] for page in markdown.pages() if page.startswith("docs/")
    }
    assert not [page for page, text in begins.items() if "?" in text]


def test_no_link_goes_over_plain_http():
    links = [(page, link) for page in markdown.pages() for link in markdown.links(page)]
    assert not [(page, link) for page, link in links if link.startswith("http:")]
