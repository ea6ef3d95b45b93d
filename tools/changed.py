"""Prints the C++ sources that a change touches, one a line, for clang-tidy (`make lint`).

They are the files of ``csrc/**/*.cpp`` that differ from the merge base with the main branch (on that branch,
from the commit before), and those that include a header that differs. What is not committed yet counts. Where
files have moved in large numbers there are none: checking them all takes half an hour (`make lint TIDY=all`).
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAIN = ("origin/main", "main")
MOST = 40
"""More sources than these are left to `make lint TIDY=all`."""


def git(*arguments: str, root: Path = ROOT) -> str:
    """What git prints; nothing where it fails."""
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True).stdout.strip()


def base(root: Path = ROOT) -> str:
    """The commit to compare with; empty where there is none, as in a shallow clone."""
    head = git("rev-parse", "HEAD", root=root)
    found = (git("merge-base", branch, "HEAD", root=root) for branch in MAIN)
    return next((commit for commit in found if commit not in ("", head)), "") or git(
        "rev-parse", "--verify", "--quiet", "HEAD~1", root=root
    )


def sources(root: Path = ROOT) -> list[str]:
    since = base(root)
    if not since:
        print("There is no commit to compare with: no source counts as changed.", file=sys.stderr)
        return []
    names = git("diff", "--name-only", "--diff-filter=d", since, "--", "csrc", root=root).splitlines()
    names += git("ls-files", "--others", "--exclude-standard", "--", "csrc", root=root).splitlines()
    changed = {name.removeprefix("csrc/") for name in names}
    found = sorted(
        str(path.relative_to(root))
        for path in (root / "csrc").rglob("*.cpp")
        if {str(path.relative_to(root / "csrc")), *re.findall(r'#include "(.+)"', path.read_text())} & changed
    )
    if len(found) > MOST:
        print(f"{len(found)} sources differ: they are left to `make lint TIDY=all`.", file=sys.stderr)
        return []
    return found


if __name__ == "__main__":
    print("\n".join(sources()))
