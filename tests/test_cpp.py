"""Runs the C++ tests of the core: plain; in full runs under the explorer and with the sanitizers too.

A test is one program, ``tests/cpp/test_*.cpp``. Its last line is ``N passed, M failed``. A line
``// modes: plain asan`` in it names the modes it runs in, where not all make sense. A program that calls
``check::thinned`` runs with part of its cases, and in full runs once with all of them.
"""

import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import cpp_build, thinning

TIMEOUT = 300
"""Seconds after which a program counts as hanging."""

THINNED = {"OCCL_TEST_THINNED": "1"}
SLOW = ("test_plan-asan",)
"""Pure computation that a sanitizer makes ten times slower: only `make test-all` runs it."""


def cases() -> Iterator[object]:
    """Each program in each of its modes; and those that can leave cases out, once with all of them."""
    for source in cpp_build.test_sources():
        text = (cpp_build.ROOT / source).read_text()
        runs = [(mode, mode != "plain", False) for mode in cpp_build.modes_of(text)]
        if "check::thinned(" in text:
            runs.append(("plain", True, True))
        for mode, full, whole in runs:
            name = f"{source.stem}-{mode}{'-whole' * whole}"
            marks = [pytest.mark.full] * full + [pytest.mark.matrix] * (name in SLOW)
            yield pytest.param(source, mode, whole, id=name, marks=marks)


@functools.cache
def sanitizers() -> dict[str, str]:
    """Options of the sanitizers. Leaks are looked for where the machine lets a process trace itself."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "empty")
        command = [*shlex.split(cpp_build.compiler()), "-fsanitize=address", "-xc++", "-", "-o", str(program)]
        subprocess.run(command, input="int main() {}", text=True, check=True)
        probe = subprocess.run(
            [program], env=os.environ | {"ASAN_OPTIONS": "detect_leaks=1"}, capture_output=True
        )
    return {
        "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
        "ASAN_OPTIONS": f"detect_leaks={int(probe.returncode == 0)}",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


@functools.cache
def without_address_randomization() -> list[str]:
    """A prefix for commands, or nothing: the TSan of older compilers refuses maps placed very randomly."""
    prefix = ["setarch", "--addr-no-randomize"]
    possible = (
        shutil.which(prefix[0]) and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    )
    return prefix if possible else []


def run(
    program: Path,
    timeout: float = TIMEOUT,
    only: str = "",
    emulator: Sequence[str] = (),
    settings: Mapping[str, str] = {},
) -> str:
    """The output of a program of tests. Fails, showing it, unless some tests passed and none failed.

    With ``only``, of the tests whose names contain that (for a fuzz target: the file of inputs). A program
    for another processor needs an ``emulator``.
    """
    prefix = emulator or without_address_randomization()
    try:
        result = subprocess.run(
            [*prefix, str(program), *([only] if only else [])],
            env=sanitizers() | os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as expired:
        shown = (expired.stdout or b"").decode(errors="replace")
        pytest.fail(f"{program.name} still ran after {timeout} s\n{shown}", pytrace=False)
    counts = re.findall(r"^(\d+) passed, (\d+) failed$", result.stdout, re.MULTILINE)
    if result.returncode or not counts or int(counts[-1][0]) == 0 or int(counts[-1][1]) > 0:
        pytest.fail(f"{program.name} ended with {result.returncode}\n{result.stdout}", pytrace=False)
    return result.stdout


@pytest.fixture(scope="module")
def outcome(request):
    """Of one program. The next one that is selected runs beside it: many of them sleep most of the time."""
    items = [item for item in request.session.items if getattr(item, "originalname", "") == "test_cpp"]
    cases = [tuple(item.callspec.params[name] for name in ("source", "mode", "whole")) for item in items]
    asked = thinning.asked(request.config)
    started: dict[tuple, Future] = {}

    def go(source: Path, mode: str, whole: bool) -> str:
        return run(cpp_build.build(mode, source), settings={} if whole or asked else THINNED)

    with ThreadPoolExecutor(2) as pool:

        def outcome(*of: object) -> Future:
            at = cases.index(of)
            for case in cases[at : at + 2]:
                if case not in started:
                    started[case] = pool.submit(go, *case)
            return started[of]

        yield outcome


@pytest.mark.parametrize(("source", "mode", "whole"), list(cases()))
def test_cpp(outcome, source: Path, mode: str, whole: bool):
    outcome(source, mode, whole).result()


def project(root: Path, body: str) -> Path:
    """A miniature of this repository with one C++ test, whose ``main`` is ``body``."""
    for layer in cpp_build.CORE:
        (root / "csrc" / layer).mkdir(parents=True)
    (root / "csrc" / "base" / "two.h").write_text("#pragma once\nint two();\n")
    (root / "csrc" / "base" / "two.cpp").write_text('#include "base/two.h"\nint two() { return 2; }\n')
    source = Path("tests", "cpp", "test_small.cpp")
    (root / source).parent.mkdir(parents=True)
    (root / source).write_text(
        '#include <cstdio>\n#include <cstdlib>\n#include <thread>\n#include "base/two.h"\n'
        f"int main() {{ {body} }}\n"
    )
    return source


PASSES = 'std::printf("%d passed, 0 failed\\n", two()); '


@pytest.mark.parametrize("mode", cpp_build.USUAL_MODES)
def test_a_program_that_is_right_passes_in_every_mode(mode, tmp_path):
    root = tmp_path / "path with spaces"
    assert run(cpp_build.build(mode, project(root, PASSES), root)) == "2 passed, 0 failed\n"


@pytest.mark.parametrize(
    ("mode", "body", "shown"),
    [
        ("plain", "return two();", "ended with 2"),
        ("plain", 'std::puts("0 passed, 0 failed");', "ended with 0"),
        ("plain", 'std::puts("3 passed, 1 failed");', "3 passed, 1 failed"),
        ("plain", "std::abort();", "ended with -6"),
        ("plain", "for (;;) two();", "still ran after"),
        ("asan", "int* p = new int(0); delete p; " + PASSES + "return *p;", "heap-use-after-free"),
        (
            "asan",
            "int big = 2147483647; big += two(); " + PASSES + "return big > 0;",
            "signed integer overflow",
        ),
        (
            "tsan",
            "int n = 0; std::thread t([&] { n += two(); }); n += two(); t.join(); " + PASSES,
            "data race",
        ),
    ],
    ids=["status", "nothing_ran", "one_failed", "abort", "hang", "use_after_free", "undefined", "race"],
)
def test_a_program_that_is_wrong_fails_and_shows_why(mode, body, shown, tmp_path):
    program = cpp_build.build(mode, project(tmp_path, body), tmp_path)
    with pytest.raises(pytest.fail.Exception, match=shown):
        run(program, timeout=20 if "ran" not in shown else 1)


def test_a_changed_header_rebuilds_what_includes_it(tmp_path):
    source = project(tmp_path, 'std::printf("%d passed, 0 failed\\n", two() + EXTRA);')
    header = tmp_path / "csrc" / "base" / "two.h"
    for extra in (1, 2):
        header.write_text(f"#pragma once\nint two();\n#define EXTRA {extra}\n")
        assert run(cpp_build.build("plain", source, tmp_path)) == f"{2 + extra} passed, 0 failed\n"


def test_a_source_that_does_not_compile_shows_the_compiler_s_message(tmp_path):
    source = project(tmp_path, "return missing;")
    with pytest.raises(RuntimeError, match="missing"):
        cpp_build.build("plain", source, tmp_path)


def test_modes_are_the_usual_ones_unless_the_source_names_some():
    assert cpp_build.modes_of("int main() {}") == ["plain", "asan", "tsan"]
    assert cpp_build.modes_of("// A test\n// modes: plain asan\n") == ["plain", "asan"]
    with pytest.raises(ValueError, match="must begin a line of its own"):
        cpp_build.modes_of("// A test. modes: plain asan\n")
    with pytest.raises(ValueError, match="plain, asan, tsan, explore"):
        cpp_build.modes_of("// modes: msan")
