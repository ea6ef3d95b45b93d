"""Writes ``compile_commands.json`` for clangd and clang-tidy, from what ninja has been told to build so far.

The builds of the extension and of the C++ tests call it. The commands for ``csrc`` are those of the
extension, and the commands for ``tests`` those of the mode ``plain``.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commands(folder: Path, cwd: Path) -> list[dict[str, str]]:
    """The commands of ``folder/build.ninja``, whose paths start at ``cwd``; none if there is no such file."""
    file = folder / "build.ninja"
    ninja = shutil.which("ninja", path=sysconfig.get_path("scripts")) or shutil.which("ninja")
    if ninja is None or not file.exists():
        return []
    command = [ninja, "-f", str(file), "-C", str(cwd), "-t", "compdb", "compile"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def write() -> None:
    extension = ROOT / "build" / f"objects-{sys.implementation.cache_tag}"
    found = commands(extension, extension) + commands(ROOT / "build" / "cpp" / "plain", ROOT)
    by_source = {str(Path(entry["directory"], entry["file"])): entry for entry in reversed(found)}
    by_source = {source: entry for source, entry in sorted(by_source.items()) if Path(source).exists()}
    (ROOT / "compile_commands.json").write_text(json.dumps(list(by_source.values()), indent=1) + "\n")


if __name__ == "__main__":
    write()
