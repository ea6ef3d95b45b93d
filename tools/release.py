"""What a release needs to know of the repository (RELEASING.md).

release.py check TAG    ends with a sentence unless the tag names the version, and CHANGELOG.md has it
release.py notes        prints the section of CHANGELOG.md of the version
release.py api GRIFFE   names what Python modules lost or changed since the last tag; fails if docs/api
                        has it and the minor version is still the same (GRIFFE: the command)
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("occl", "torch_occl")


def version() -> str:
    found: str = runpy.run_path(str(ROOT / "occl" / "versions.py"))["VERSION"]
    return found


def section(changelog: str, of: str) -> str:
    """The text below the heading of a version; "" if there is none with a date."""
    heading = rf"^## \[{re.escape(of)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.M | re.S)
    return found[1].strip() if found else ""


def check(tag: str, of: str, changelog: str) -> str:
    """What is wrong with a tag; "" if nothing."""
    if ".dev" in of or tag != f"v{of}":
        return f"the tag {tag} is not of version {of}: set VERSION in occl/versions.py before tagging"
    if not section(changelog, of):
        return f'CHANGELOG.md has no section "## [{of}] - YYYY-MM-DD"'
    return ""


def last_tag() -> str:
    """The newest version that is tagged before this commit; "" if none is."""
    described = ["git", "describe", "--tags", "--abbrev=0", "--match=v[0-9]*"]
    return subprocess.run(described, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def same_minor(tag: str, of: str) -> bool:
    """Whether users expect that nothing is lost: until 1.0 an interface may change with a minor version."""
    return tag.removeprefix("v").split(".")[:2] == of.split(".")[:2]


def offered() -> list[str]:
    """What the pages of docs/api describe: functions, classes and modules."""
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M)]


def is_offered(line: str, names: list[str]) -> bool:
    """Whether what a line of griffe is about is one of these, whichever module it is defined in, or in one of
    them. True too if the line is about something else, such as a failure."""
    found = re.match(r"(\S+?)(?:/__init__)?\.py:\d+: (\w+)", line)
    if not found:
        return True
    module = found[1].replace("/", ".")
    return module in names or found[2] in {name.rpartition(".")[2] for name in names}


def api(griffe: str) -> bool:
    """Whether the interface may be what it is."""
    tag = last_tag()
    if not tag:
        print("No version is tagged yet: there is no interface to compare with.")
        return True
    names, lost = offered(), []
    for package in PACKAGES:
        command = [griffe, "check", package, "--against", tag, "--search", "."]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = done.stdout.splitlines() if done.returncode else []
        lost += [line for line in lines if is_offered(line, names)]
        for line in lines:
            print(line)
    return not (lost and same_minor(tag, version()))


def main() -> None:
    arguments = sys.argv[1:]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if arguments[:1] == ["check"] and len(arguments) == 2:
        if wrong := check(arguments[1], version(), changelog):
            sys.exit(f"release: {wrong}")
    elif arguments == ["notes"]:
        print(section(changelog, version()))
    elif arguments[:1] == ["api"] and len(arguments) == 2:
        if not api(arguments[1]):
            sys.exit(f"release: {version()} lacks what {last_tag()} offers (above): keep it, deprecated")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
