"""The pytest plugin `occl.testing` with pytest's options, other plugins and ways of importing."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from tests.support.interpreter import PACKAGE, install

TWO = """
import os, pytest

@pytest.mark.ranks(2)
def test_two(rank):
    print("first line of", rank)
    assert os.environ.get("FAIL") != str(rank)
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs pytest in a process of its own, with the plugin."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")]))
    pytester.makeini("[pytest]\nranks_preload =\n")

    def run_pytest(*arguments: str, stdin: bytes = b""):
        command = [sys.executable, "-m", "pytest", "-p", "pytest_torch_occl", "-p", "no:cacheprovider"]
        return pytester.run(*command, *arguments, stdin=stdin, timeout=200)

    return run_pytest


@pytest.mark.full
def test_an_installed_plugin_imports_no_torch_and_makes_no_device(pytester, monkeypatch, tmp_path):
    """Neither for tests without the mark, nor for the process of pytest where tests have it."""
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path / "installed")))
    pytester.makeini("[pytest]\nranks_preload =\n")
    pytester.makepyfile(
        test_plain="""
        import sys

        def test_plain():
            assert "occl.testing.plugin" in sys.modules
            assert "torch" not in sys.modules and "torch_occl" not in sys.modules
        """
    )
    command = [sys.executable, "-m", "pytest", "--strict-markers", "-W", "error"]
    pytester.run(*command).assert_outcomes(passed=1)
    pytester.makepyfile(
        test_plain="",
        test_marked="""
        import sys, pytest, torch
        from occl.testing import assert_same_on_all_ranks

        @pytest.mark.ranks(2, device="dev")
        def test_marked(rank, device):
            assert torch.accelerator.current_accelerator().type == "dev"
            assert_same_on_all_ranks(torch.ones(2, device=device))

        def test_process_of_pytest():
            assert "torch_occl" not in sys.modules and not torch.accelerator.is_available()

        def test_the_package_has_its_module_afterwards():
            import torch_occl.testing
            assert torch_occl.testing.assert_same_on_all_ranks is assert_same_on_all_ranks
            assert torch.accelerator.is_available()
        """,
    )
    pytester.run(*command).assert_outcomes(passed=3)


@pytest.mark.full
def test_output_is_shown_live_with_the_rank_before_it(run, pytester):
    pytester.makepyfile(
        """
        import time, pytest

        @pytest.mark.ranks(2)
        def test_live(rank, tmp_path):
            print("begins")
            seen = tmp_path.parent.parent / "seen"
            while rank == 1 and not seen.exists():
                time.sleep(0.01)
            print("ends", end="")
        """
    )
    command = [sys.executable, "-m", "pytest", "-p", "pytest_torch_occl", "-s", "--basetemp=temporary"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "[rank 1] begins\n" in line:  # while the rank still runs
                (pytester.path / "seen").touch()
    assert process.returncode == 0, lines
    assert [line for line in lines if "[rank 0]" in line][-1] == "[rank 0] ends\n"
    assert "[rank 1] ends\n" in lines


@pytest.mark.full
@pytest.mark.parametrize("option", ["", "--capture=sys"])
def test_a_passed_test_keeps_its_output_for_those_who_ask(run, pytester, option):
    pytester.makepyfile(TWO)
    result = run("-rP", *option.split())
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines(
        ["-* Captured output of rank 1 call -*", "first line of 1"], consecutive=True
    )


@pytest.mark.full
def test_selection_and_stopping_work_as_always(run, pytester, monkeypatch):
    monkeypatch.setenv("FAIL", "1")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("value", [1, 2])
        @pytest.mark.ranks([1, 2])
        def test_it(rank, value):
            assert value == 1 or rank == 0
        """
    )
    run("-k", "1ranks").assert_outcomes(passed=2, deselected=2)
    result = run("-x", "-k", "2ranks")
    result.assert_outcomes(passed=1, failed=1, deselected=2)
    result.stdout.fnmatch_lines(["*test_it?2ranks-2?*", "rank 1 raised AssertionError*"])


@pytest.mark.full
def test_xdist_runs_ranks_in_each_of_its_processes(run, pytester):
    pytester.makepyfile(test_a=TWO, test_b=TWO)
    run("-n", "2", "--dist=loadfile").assert_outcomes(passed=2)
    result = run("-n", "2", "--ranks-pdb=0")
    result.stderr.fnmatch_lines(["ERROR: --ranks-pdb needs the terminal*add -n0"])


@pytest.mark.full
def test_coverage_counts_what_only_ranks_run(run, pytester):
    pytest.importorskip("pytest_cov")
    pytester.makepyfile(
        code="""
        def chosen(rank):
            if rank == 0:
                return "zero"
            if rank == 1:
                return "one"
            return "never"
        """,
        test_code="""
        import pytest, code_under_test

        @pytest.mark.ranks(2)
        def test_both(rank):
            assert code_under_test.chosen(rank) in ("zero", "one")
        """,
    )
    (pytester.path / "code.py").rename(pytester.path / "code_under_test.py")
    result = run("--cov=code_under_test", "--cov-branch", "--cov-report=term-missing")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r"code_under_test.py +6 +1 +4 +1 +80% +6"])


BREAKPOINT = """
import pytest

@pytest.mark.ranks(3, limit=1)
def test_stops(rank):
    secret = 41 + rank
    breakpoint()
    assert rank != 1
"""


@pytest.mark.full
def test_one_rank_gets_the_terminal(run, pytester):
    """At its breakpoint, and where it fails; the others pass by, and the limit does not count."""
    pytester.makepyfile(BREAKPOINT)
    commands = b"import time; time.sleep(1.5)\np 'seen', secret\nc\np 'failed', rank\nq\n"
    result = run("--ranks-pdb=1", stdin=commands)
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines([r".*rank 1 has the terminal", r".*\('seen', 42\)", r".*\('failed', 1\)"])
    result.stdout.fnmatch_lines(["rank 1 raised AssertionError: assert 1 != 1*"])


@pytest.mark.full
def test_pdb_of_pytest_says_which_option_is_meant(run, pytester, monkeypatch):
    monkeypatch.setenv("FAIL", "1")
    pytester.makepyfile(TWO)
    run("--pdb", stdin=b"q\n").stdout.fnmatch_lines(["*use --ranks-pdb=RANK*"])


@pytest.mark.full
def test_modules_are_imported_as_pytest_imports_them(run, pytester):
    """Two of one name, each with a conftest.py, in folders that are no packages."""
    for folder in ("a", "b"):
        (pytester.path / folder).mkdir()
        (pytester.path / folder / "conftest.py").write_text(
            f"import os, pytest\n\nclass Kind:\n    where = {folder!r}\n\n"
            f"os.environ['LAST_CONFTEST'] = {folder!r}\n\n"
            "@pytest.fixture\ndef kind():\n    return Kind()\n"
        )
        (pytester.path / folder / "test_same.py").write_text(
            "import pytest\n\n@pytest.mark.ranks(2)\ndef test_it(rank, kind):\n"
            f"    assert kind.where == {folder!r} and __file__.endswith('{folder}/test_same.py')\n"
        )
    run("--import-mode=importlib").assert_outcomes(passed=2)


@pytest.mark.full
def test_tests_in_a_package_import_relatively(run, pytester):
    package = pytester.path / "pack" / "tests"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("VALUE = 3\n")
    (package / "test_it.py").write_text(
        "import pytest\nfrom .helper import VALUE\n\n@pytest.mark.ranks(2)\ndef test_it(rank):\n"
        "    assert (VALUE, __name__) == (3, 'pack.tests.test_it')\n"
    )
    run().assert_outcomes(passed=1)
    run("--assert=plain").assert_outcomes(passed=1)


@pytest.mark.full
def test_the_limit_and_the_modules_to_preload_are_in_the_configuration(run, pytester):
    pytester.makeini("[pytest]\nranks_limit = 1.5\nranks_preload = colorsys\n")
    pytester.makepyfile(
        """
        import sys, time, pytest

        @pytest.mark.ranks(2, group=False)
        def test_late(rank):
            assert "colorsys" in sys.modules
            time.sleep(99 * rank)
        """
    )
    run().stdout.fnmatch_lines(["rank 1 did not finish in 1.5 s (of 2 ranks)"])
    pytester.makeini("[pytest]\nranks_limit = soon\n")
    run().stderr.fnmatch_lines(["ERROR: ranks_limit must be a number of seconds above 0, not 'soon'"])


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.full), signal.SIGKILL])
def test_ranks_end_with_pytest_however_it_ends(run, pytester, number):
    pytester.makepyfile(
        """
        import os, time, pytest
        from pathlib import Path

        @pytest.mark.ranks(2, group=False)
        def test_waits(rank):
            Path(f"part{rank}").write_text(str(os.getpid()))
            Path(f"part{rank}").rename(f"pid{rank}")
            time.sleep(99)
        """
    )
    # A shell's background jobs, which this test may run in, inherit an ignored SIGINT.
    code = (
        "import pytest, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "sys.exit(pytest.main(['-p', 'pytest_torch_occl']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    files = [pytester.path / f"pid{rank}" for rank in range(2)]
    while not all(file.exists() for file in files):
        assert process.poll() is None
        time.sleep(0.01)
    ranks = [os.pidfd_open(int(file.read_text())) for file in files]
    process.send_signal(number)
    assert process.wait() == (2 if number == signal.SIGINT else -number)
    for rank in ranks:
        assert select.select([rank], [], [], 60)[0]
        os.close(rank)
    assert bool(re.search(b"KeyboardInterrupt", process.stdout.read())) == (number == signal.SIGINT)
    process.stdout.close()
