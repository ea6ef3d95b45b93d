"""The pytest plugin: the mark ``ranks``, the fixtures, and the options. It imports no PyTorch."""

from __future__ import annotations

import difflib
import inspect
import random
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from occl.testing import options
from occl.testing.faults import Fault, Faults
from occl.testing.options import DEFAULT_LIMIT, Options
from occl.testing.outcomes import WrongUse
from occl.testing.run_ranks import RunRanks
from occl.testing.serialize import OfEachRank
from occl.testing.session import PRELOAD, Ended, Session, Showing
from occl.tools.text import ranks

MARK = (
    "ranks(n, *, device='cpu', backend=None, group=True, limit=60, timeout=None, start='fork', keep=False): "
    "runs the test in n processes, which are the ranks of a process group. A list of numbers parametrizes "
    "the test. keep=True leaves the processes and their group to the module's next test."
)

OURS = ("rank", "world_size", "device")
"""The fixtures that stand for what each rank has of its own."""

_session = pytest.StashKey[Session]()
_seed = pytest.StashKey[int]()
_planned = pytest.StashKey[list[Fault]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ranks", "tests of several ranks (occl.testing)")
    group.addoption(
        "--ranks-pdb",
        type=int,
        metavar="RANK",
        help="give the terminal to this rank of each test: breakpoint() stops there, and so does a failure",
    )
    group.addoption(
        "--faults-seed",
        type=int,
        metavar="SEED",
        help="draw the faults of faults.random from this number, which the report of a failing test shows",
    )
    parser.addini(
        "ranks_limit", f"seconds that a test of several ranks may take ({DEFAULT_LIMIT:g})", default=""
    )
    parser.addini(
        "ranks_preload",
        f"modules that the warm process imports, from which ranks are forked ({' '.join(PRELOAD)})",
        type="args",
        default=list(PRELOAD),
    )


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Registers the conformance suite where it is asked for: its options have names that others use too."""
    args[:] = ["occl.conformance" if arg == "torch_occl.conformance" else arg for arg in args]
    suite = Path(__file__).parents[1] / "conformance"
    if any(arg == "occl.conformance" or Path(arg).absolute() == suite for arg in args):
        early_config.pluginmanager.import_plugin("occl.conformance.plugin")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    seed = config.getoption("faults_seed")
    config.stash[_seed] = random.SystemRandom().randrange(10**9) if seed is None else seed
    rank = config.getoption("ranks_pdb")
    if rank is not None and (config.getoption("dist", "no") != "no" or hasattr(config, "workerinput")):
        raise pytest.UsageError(
            "--ranks-pdb needs the terminal, which pytest-xdist's processes lack: add -n0"
        )
    try:
        _limit(config)
    except WrongUse as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_session] = Session(
        config.getini("ranks_preload"),
        Showing(
            style=config.getoption("tbstyle", "auto"),
            locals=bool(config.getoption("showlocals", False)),
            live=config.getoption("capture", "fd") == "no",
            debugged=rank,
        ),
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    if _session in config.stash:
        config.stash[_session].close()


def _limit(config: pytest.Config) -> float:
    text = config.getini("ranks_limit") or str(DEFAULT_LIMIT)
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not limit > 0:
        raise WrongUse(f"ranks_limit must be a number of seconds above 0, not {text!r}")
    return limit


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("ranks")
    if mark and len(mark.args) == 1 and isinstance(mark.args[0], list | tuple) and mark.args[0]:
        if "world_size" not in metafunc.fixturenames:
            metafunc.fixturenames.append("world_size")
        sizes = mark.args[0]
        metafunc.parametrize("world_size", sizes, ids=[f"{size}ranks" for size in sizes])


# ---- fixtures ------------------------------------------------------------------------------------------


def _mark(request: pytest.FixtureRequest, name: str) -> pytest.Mark:
    mark: pytest.Mark | None = request.node.get_closest_marker("ranks")
    if mark is None:
        pytest.fail(
            f"The fixture {name!r} is for tests with the mark ranks. Add @pytest.mark.ranks(2), or use the "
            "fixture run_ranks.",
            pytrace=False,
        )
    return mark


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> object:
    """The number of the rank that runs the test. A fixture can pass it on, and only the ranks know it."""
    _mark(request, "rank")
    return OfEachRank("rank")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> object:
    """The `torch.device` of the rank that runs the test. A fixture can pass it on."""
    _mark(request, "device")
    return OfEachRank("device")


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks that run the test."""
    mark = _mark(request, "world_size")
    size: int = mark.args[0] if mark.args else mark.kwargs.get("world_size", 0)
    return size


@pytest.fixture
def run_ranks(request: pytest.FixtureRequest) -> RunRanks:
    """Runs a function in ranks: ``run_ranks(function, world_size=3)`` returns the results in rank order."""
    config = request.config

    def run(module: ModuleType, name: str, arguments: Any, wanted: Any, asked: Options, check: bool) -> Ended:
        ended = _run_session(request.node, module, name, arguments, wanted, asked)
        if check:
            _skip_if_all_do(ended)
        return ended

    return RunRanks(run, _limit(config))


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Iterator[Faults]:
    """Plans faults: ``faults.kill(rank=1, at="all_reduce#3")``, on every rank or before ``run_ranks``."""
    planned: list[Fault] = []
    request.node.stash[_planned] = planned
    yield Faults(request.config.stash[_seed], request.node.name, planned.append)
    if planned:
        pytest.fail(
            f"{planned[0]} never came to pass: no ranks ran after it was planned. Plan it before run_ranks.",
            pytrace=False,
        )


# ---- tests with the mark -------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Says what is wrong with a marked test, before pytest looks for its fixtures."""
    mark = item.get_closest_marker("ranks")
    if mark is not None and (problem := _problem(item, mark)) is not None:
        pytest.fail(f"@pytest.mark.ranks of {item.name}: {problem}.", pytrace=False)


def _problem(item: pytest.Item, mark: pytest.Mark) -> str | None:
    if not isinstance(item, pytest.Function) or (item.cls and issubclass(item.cls, unittest.TestCase)):
        return "the mark is for functions and for methods of plain classes; make this test one of them"
    if inspect.iscoroutinefunction(item.function) or inspect.isasyncgenfunction(item.function):
        return "the test is asynchronous; make it a plain function that calls asyncio.run"
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "rank" in parameters:
        return "the test is parametrized with rank, which is the number of the process; choose another name"
    for name in ("device", "backend", "world_size"):
        if name in parameters and (name in mark.kwargs or (name == "world_size" and _has_one_size(mark))):
            return f"{name} is in the mark and in the test's parameters; leave it out of the mark"
    for name in item._fixtureinfo.argnames:
        if name not in item._fixtureinfo.name2fixturedefs and name not in parameters and name != "request":
            known = [*OURS, *item._fixtureinfo.name2fixturedefs, *parameters]
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the mark gives {', '.join(OURS)}"
            return f"the test has an argument {name!r}, and there is no such fixture; {hint.rstrip('?')}"
    try:
        _options(item, mark, {"world_size": 1} if _of_project(item, "world_size") else {})
    except WrongUse as error:
        return str(error)
    return None


def _has_one_size(mark: pytest.Mark) -> bool:
    return bool(mark.args) and not isinstance(mark.args[0], list | tuple)


def _of_project(item: pytest.Function, name: str) -> bool:
    """Whether the test's own project has a fixture of a name that this plugin has too."""
    definitions = item._fixtureinfo.name2fixturedefs.get(name, ())
    return bool(definitions) and definitions[-1].func.__module__ != __name__


def _options(item: pytest.Function, mark: pytest.Mark, found: dict[str, Any]) -> Options:
    """Of a marked test. ``found``: values of its project's fixtures."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    of_test = found | {
        name: parameters[name] for name in ("device", "backend", "world_size") if name in parameters
    }
    if "device" in of_test:
        of_test["device"] = str(of_test["device"])
    args = mark.args if not options.sizes(mark.args) or _has_one_size(mark) else ()
    return options.from_mark(args, mark.kwargs, of_test, _limit(item.config))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    mark = pyfuncitem.get_closest_marker("ranks")
    if mark is None:
        return None
    try:
        _run(pyfuncitem, mark)
    except WrongUse as error:
        pytest.fail(f"@pytest.mark.ranks of {pyfuncitem.name}: {error}", pytrace=False)
    return True


def _run(item: pytest.Function, mark: pytest.Mark) -> None:
    project = ("device", "backend", "world_size")
    found = {n: item.funcargs[n] for n in project if n in item.funcargs and _of_project(item, n)}
    asked = _options(item, mark, found)
    names = item._fixtureinfo.argnames
    wanted = [name for name in ("rank", "world_size") if name in names]
    arguments = {name: item.funcargs[name] for name in names if name not in wanted}
    name = item.originalname
    if item.cls is not None:
        name = f"{item.cls.__qualname__}.{name}"
        arguments["self"] = item.instance
    ended = _run_session(item, item.module, name, arguments, wanted, asked)
    _skip_if_all_do(ended)
    if ended.report:
        _fail(item.config, ended.report)


def _run_session(
    item: pytest.Item, module: ModuleType, name: str, arguments: Any, wanted: Any, asked: Options
) -> Ended:
    planned = item.stash.get(_planned, [])
    faults = tuple(planned)
    planned.clear()
    with _terminal(item.config):
        session = item.config.stash[_session]
        ended = session.run(module, name, arguments, wanted, asked, _conftests(item), faults)
    _add_sections(item, ended)
    if ended.left:
        item.warn(
            pytest.PytestWarning(
                f"{item.name} has not left its kept ranks as it found them, so the next test gets new ones. "
                f"{ended.left}"
            )
        )
    return ended


def _fail(config: pytest.Config, text: str) -> None:
    if config.getoption("usepdb", False) and config.getoption("ranks_pdb") is None:
        text += "\n\n--pdb is in the pytest process, not in a rank: use --ranks-pdb=RANK"
    pytest.fail(text, pytrace=False)


def _skip_if_all_do(ended: Ended) -> None:
    """Skips the test if all ranks have; says that they disagree if only some have."""
    for verb, call in (("skipped", _skip), ("xfailed", pytest.xfail)):
        reasons = {o.rank: getattr(o, verb) for o in ended.outcomes if getattr(o, verb) is not None}
        if reasons and len(reasons) == len(ended.outcomes):
            call(next(iter(reasons.values())))
        elif reasons and not any(o.failed for o in ended.outcomes if o.rank not in reasons):
            others = ranks(o.rank for o in ended.outcomes if o.rank not in reasons)
            ended.report = (
                f"{ranks(reasons)} {verb} the test and {others} did not: let all ranks decide alike\n"
                + ended.report
            )


def _skip(reason: str) -> NoReturn:
    raise pytest.skip.Exception(reason, _use_item_location=True)  # the place of the test, and not this one


def _add_sections(item: pytest.Item, ended: Ended) -> None:
    for number, text in ended.printed.items():
        if text:
            item.add_report_section("call", f"output of rank {number}", text)
    if ended.course.planned:
        item.add_report_section("call", "faults", ended.course.described())


def _conftests(item: pytest.Item) -> list[ModuleType]:
    """The ``conftest.py`` of the folders that the test lies in, from the outermost."""
    modules = (p for p in item.config.pluginmanager.get_plugins() if isinstance(p, ModuleType))
    files = {Path(file): m for m in modules if (file := getattr(m, "__file__", None))}
    ours = [f for f in files if f.name == "conftest.py" and item.path.is_relative_to(f.parent)]
    return [files[file] for file in sorted(ours, key=lambda file: len(file.parts))]


@contextmanager
def _terminal(config: pytest.Config) -> Iterator[None]:
    """Nothing is captured while a rank has the terminal."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if config.getoption("ranks_pdb") is None or capture is None:
        yield
        return
    capture.suspend(in_=True)
    try:
        yield
    finally:
        capture.resume()
