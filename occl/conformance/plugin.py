"""The pytest plugin of the suite: ``pytest --pyargs occl.conformance --backend NAME``.

``occl.testing.plugin`` registers it only where the suite is asked for: its options have common names.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from occl.conformance import capabilities, catalog, report
from occl.conformance.catalog import Case
from occl.conformance.report import About
from occl.conformance.runner import Asked, Ended, Runner
from occl.testing.options import MOST_RANKS
from occl.testing.outcomes import WrongUse

HERE = Path(__file__).parent
LIMIT = 20.0
"""Seconds that a case may take."""

_asked = pytest.StashKey[Asked]()
_runner = pytest.StashKey[Runner]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "whether a backend does what PyTorch says (occl.conformance)")
    group.addoption("--backend", metavar="NAME", help="the backend, as init_process_group takes it")
    group.addoption("--device", default="cpu", metavar="DEVICE", help="the type of the device (cpu)")
    group.addoption("--world-size", default="4", metavar="N", help="the number of ranks (4)")
    group.addoption("--capabilities", metavar="FILE", help="what the vendor declares, in TOML")
    group.addoption("--report", metavar="FILE", help="write the verdicts to this file, in JSON")
    group.addoption("--case-limit", default=str(LIMIT), metavar="S", help=f"seconds of a case ({LIMIT:g})")
    group.addoption("--quick", action="store_true", help="of each rule, as few cases as have every value")


def pytest_configure(config: pytest.Config) -> None:
    importlib.import_module("occl.conformance.rules")
    try:
        config.stash[_asked] = asked(config)
    except WrongUse as error:
        raise pytest.UsageError(str(error)) from None
    config.pluginmanager.register(Verdicts(config))


def asked(config: pytest.Config) -> Asked:
    """What the options say.

    Raises:
        WrongUse: an option is missing or wrong; the text says what to write.
    """
    backend = config.getoption("backend")
    if not backend:
        raise WrongUse("The conformance suite needs the name of a backend: --backend gloo")
    size = config.getoption("world_size")
    if not size.isdecimal() or not 2 <= int(size) <= MOST_RANKS:
        raise WrongUse(f"--world-size must be a number of ranks from 2 to {MOST_RANKS}, not {size!r}")
    try:
        limit = float(config.getoption("case_limit"))
    except ValueError:
        limit = -1.0
    if not limit > 0:
        raise WrongUse(
            f"--case-limit must be a number of seconds above 0, not {config.getoption('case_limit')!r}"
        )
    path = config.getoption("report")
    if path and not Path(path).absolute().parent.is_dir():
        raise WrongUse(f"--report {path}: there is no folder {Path(path).absolute().parent}")
    declared = config.getoption("capabilities")
    found = capabilities.load(Path(declared) if declared else None, backend)
    return Asked(backend, config.getoption("device"), int(size), limit, found)


# ---- collection ------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The cases come from a table, and not from files of tests."""
    return Suite.from_parent(parent, path=path) if path == HERE else None


class Suite(pytest.Directory):
    """All cases for the device and the number of ranks, operation by operation."""

    def collect(self) -> Iterator[pytest.Item]:
        asked = self.config.stash[_asked]
        device = asked.device.partition(":")[0]
        cases = catalog.cases(device, asked.size, self.config.getoption("quick"))
        order = {case.rule.operation: at for at, case in reversed(list(enumerate(cases)))}
        for case in sorted(cases, key=lambda case: (case.rule.own, order[case.rule.operation])):
            yield CaseItem.from_parent(self, name=case.name, case=case)


class Unfulfilled(Exception):
    """A case that has not ended as it must."""


class CaseItem(pytest.Item):
    """One case."""

    def __init__(self, *, case: Case, **options: Any) -> None:
        super().__init__(**options)
        self.case = case

    def runtest(self) -> None:
        asked = self.config.stash[_asked]
        expected = asked.capabilities.expected(self.case)
        known = asked.capabilities.known_of(self.case)
        if self.config.stash.get(_runner, None) is None:
            self.config.stash[_runner] = Runner(asked)
        try:
            ended = self.config.stash[_runner].run(self.case, expected)
        except WrongUse:
            self.session.shouldstop = "no case can run without its ranks"
            raise
        reason = known.reason if known else ""
        runner = self.config.stash[_runner]
        self.user_properties.append(("conformance", report.entry(self.case, expected, reason, ended)))
        about = [runner.backend_class, runner.device_defects]  # as pytest-xdist can send it
        self.user_properties.append(("conformance_about", about))
        if known is not None and ended.verdict in known.verdicts:
            pytest.xfail(known.reason)
        if known is not None:
            listed = "|".join(sorted(known.verdicts))
            raise Unfulfilled(
                f"{self._what()}\nThe capabilities know it as {listed} ({known.reason}), and the "
                f"verdict is {ended.verdict!r}: correct or remove the entry.\n{ended.text}"
            )
        if ended.verdict == "untested":
            pytest.skip(f"untested: {ended.text}")
        if ended.verdict != expected:
            raise Unfulfilled(f"{self._what()}\n{_explained(self.case, asked, expected, ended)}")

    def _what(self) -> str:
        rule = self.case.rule
        return f"{self.case.name}: {rule.statement} ({rule.source})"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Unfulfilled | WrongUse):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, None, self.case.name


def _explained(case: Case, asked: Asked, expected: str, ended: Ended) -> str:
    """What happened, and what that means for the declaration."""
    if ended.verdict == "error":
        wanted = "the case says nothing of the backend: the suite or the device has failed"
    elif case.rule.refuses or expected == "works":
        wanted = "the call must be refused" if case.rule.refuses else "the case must work"
    elif ended.verdict == "works":
        wanted = "the capabilities declare it as not supported, and it works: remove the entry"
    else:
        wanted = "the capabilities declare it as not supported, so it must be refused"
    return f"Verdict {ended.verdict!r} where {wanted}.\n{ended.text}"


# ---- the run ---------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Makes the warm process before the first case, so that a wrong name ends the run with one sentence."""
    if (
        session.config.option.collectonly
        or not session.items
        or session.config.getoption("dist", "no") != "no"
    ):
        return
    try:
        session.config.stash[_runner] = Runner(session.config.stash[_asked])
    except WrongUse as error:
        raise pytest.UsageError(str(error)) from None


class Verdicts:
    """Collects the entries of the report, which pytest-xdist's processes send too."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.entries: list[report.Entry] = []
        self.about = About("", [])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            found: list[Any] = [value for name, value in report.user_properties if name == "conformance"]
            self.entries += found
            about: list[Any] = [v for name, v in report.user_properties if name == "conformance_about"]
            for backend_class, defects in about:
                self.about = About(backend_class, defects)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.entries:
            return
        asked = self.config.stash[_asked]
        about = self.about
        terminalreporter.section(f"conformance of {asked.backend} on {asked.device}, {asked.size} ranks")
        terminalreporter.line(f"The backend is {about.backend_class}")
        for defect in about.device_defects:
            terminalreporter.line(f"The device has a defect, whatever the backend does: {defect}")
        for line in report.table(self.entries):
            terminalreporter.line(line)
        if path := self.config.getoption("report"):
            report.write(Path(path), asked, about, self.entries)
            terminalreporter.line(f"The verdicts are in {path}")


def pytest_unconfigure(config: pytest.Config) -> None:
    runner = config.stash.get(_runner, None)
    if runner is not None:
        runner.close()
