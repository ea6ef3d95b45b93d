"""Runs every test, the sanitizers and the mutations, and says how long each part took (``make test-all``).

``python -m tests.everything PART...`` runs only these parts; ``--without PART`` leaves one out.
"""

import argparse
import subprocess
import sys
import time

from tests.support import cpp_build

PARTS = {
    "tests": ["pytest", "-n2"],
    "matrices": ["pytest", "-n2", "-m", "full"],
    "asan": ["tests.sanitize", "asan"],
    "tsan": ["tests.sanitize", "tsan"],
    "mutations": ["tests.mutations"],
}
"""By name: a module and its arguments. ``tests`` is what ``make test`` runs, ``matrices`` the rest."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--without", action="append", default=[], choices=PARTS, help="leave this part out")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part is named {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    chosen = [part for part in args.parts or PARTS if part not in args.without]
    report, failed = [], False
    for number, part in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {part}", flush=True)
        begin = time.monotonic()
        status = subprocess.run([sys.executable, "-m", *PARTS[part]], cwd=cpp_build.ROOT).returncode
        minutes, seconds = divmod(round(time.monotonic() - begin), 60)
        report.append(f"{part:<10}{minutes:>4}:{seconds:02}  {'failed' if status else 'passed'}")
        failed |= status != 0
    print("\n".join(report))
    sys.exit(failed)


if __name__ == "__main__":
    main()
