"""Runs every test and the sanitizers, and says how long each part took (``make test-all``).

``python -m tests.everything ARGUMENT...`` hands its arguments to pytest.
"""

import subprocess
import sys
import time

from tests.support import cpp_build

PARTS = {
    "every test": [sys.executable, "-m", "pytest", "-m", "", *sys.argv[1:]],
    "ASan and UBSan": [sys.executable, "-m", "tests.sanitize", "asan"],
    "TSan": [sys.executable, "-m", "tests.sanitize", "tsan"],
}


def main() -> None:
    report, failed = [], False
    for number, (name, command) in enumerate(PARTS.items(), 1):
        print(f"[{number}/{len(PARTS)}] {name}", flush=True)
        begin = time.monotonic()
        status = subprocess.run(command, cwd=cpp_build.ROOT).returncode
        minutes, seconds = divmod(round(time.monotonic() - begin), 60)
        report.append(f"{name:<16}{minutes:>4}:{seconds:02}  {'failed' if status else 'passed'}")
        failed |= status != 0
    print("\n".join(report))
    sys.exit(failed)


if __name__ == "__main__":
    main()
