"""The suite for vendors, `occl.conformance`: what it says of good, bad and broken backends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from occl.conformance import capabilities, catalog, inputs, rules
from occl.conformance.capabilities import DECLARED, VERDICTS, parse
from occl.conformance.rank_api import why_unclear
from occl.conformance.tensors import MOVABLE, REDUCIBLE, guards_broken, place
from occl.testing.outcomes import WrongUse
from tests.support.cpp_build import ROOT
from tests.support.interpreter import PACKAGE

BACKEND_PAGE = ROOT / "docs/backend.md"

NO_RULE = {
    "clone": "only C++ calls it, for the options of a part that is split off",
    "getBoundDeviceId": "PyTorch's own serves every backend",
    "getError": "only the bindings of Gloo and NCCL have it",
    "getMemAllocator": "its result is a type of C++ that Python has no counterpart of",
    "isInitialized": "only C++ calls it",
    "setBoundDeviceId": "as getBoundDeviceId",
}
"""Methods of any supported version of PyTorch that the suite does not call, and why."""


def suite(*options: str, folder: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The suite, run by a pytest of its own."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "pytest",
        "-p",
        "pytest_torch_occl",
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run(
        [*command, "-q", "--pyargs", "occl.conformance", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PACKAGE)} | (env or {}),
        capture_output=True,
        text=True,
        timeout=550,
    )


def verdicts(folder: Path, *options: str, status: int) -> dict[str, dict]:
    """The entries of the report by the names of the cases; the run must end with this status.

    On a busy machine a case may take longer than the 20 s that it has by default.
    """
    path = folder / "report.json"
    done = suite("--case-limit=100", *options, f"--report={path}", folder=folder)
    assert done.returncode == status, done.stdout[-4000:] + done.stderr
    return {entry["name"]: entry for entry in json.loads(path.read_text())["cases"]}


# ---- the catalog ---------------------------------------------------------------------------------------


def test_each_rule_names_a_place_in_the_installed_pytorch():
    assert rules and len(catalog.RULES) > 150
    for rule in catalog.RULES.values():
        assert rule.statement.endswith(".") and len(rule.statement) > 20, rule
        assert not rule.applies or rule.source.line > 0


def test_a_place_that_pytorch_does_not_have_is_an_error():
    with pytest.raises(LookupError, match="has no line with 'def no_such_function"):
        catalog.python("no_such_function").line  # noqa: B018


def test_every_method_of_a_backend_has_a_rule():
    """Of every version of PyTorch: tests/test_documented.py compares the table with the one that runs."""
    table = set(re.findall(r"^\| `(\w+)` \| (?:[\d.]+ \| )?(?:yes|no) \|", BACKEND_PAGE.read_text(), re.M))
    covered = {method for rule in catalog.RULES.values() for method in rule.methods}
    assert covered <= table and table - covered == set(NO_RULE)


def test_a_rule_of_methods_that_pytorch_does_not_have_has_no_cases(monkeypatch):
    def named() -> set[str]:
        return {case.rule.name for case in catalog.cases("cpu", 4) if case.rule.operation == "memory"}

    everything = catalog.virtual_methods()
    assert "allocate" in named()
    monkeypatch.setattr(catalog, "virtual_methods", lambda: everything - {"supportsTensorAlloc"})
    assert "allocate" in named()
    monkeypatch.setattr(
        catalog, "virtual_methods", lambda: everything - {"supportsTensorAlloc", "allocateTensor"}
    )
    assert named() and "allocate" not in named()


def test_quick_runs_leave_out_no_rule_and_no_value():
    whole, quick = catalog.cases("dev", 4), catalog.cases("dev", 4, quick=True)
    assert {case.name for case in quick} < {case.name for case in whole}
    pairs = [
        {(case.rule.statement, case.rule.operation, value) for case in cases for value in case.values}
        for cases in (whole, quick)
    ]
    assert pairs[0] == pairs[1]
    of = [{(case.rule.operation, case.rule.name) for case in cases} for cases in (whole, quick)]
    assert of[0] == of[1] == {name for name, rule in catalog.RULES.items() if rule.applies}


def test_cases_of_streams_and_of_many_ranks_are_for_those_that_have_them():
    def of(device: str, ranks: int) -> set[tuple[bool, bool]]:
        found = catalog.cases(device, ranks)
        return {(bool(case.rule.accelerator), case.rule.ranks > 2) for case in found}

    assert {accelerator for accelerator, _ in of("dev", 4)} == {True, False}
    assert {accelerator for accelerator, _ in of("cpu", 4)} == {False}
    assert {many for _, many in of("cpu", 4)} == {True, False}
    assert {many for _, many in of("cpu", 2)} == {False}


# ---- the values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4, 7, 16, 64])
def test_sums_are_the_same_in_every_order_and_type(size):
    """Rounded after each step, from either end: no type may round."""
    for dtype in REDUCIBLE:
        if dtype == "bool":
            continue
        for reduction in set(inputs.reductions_of(dtype)) & {"SUM", "PRODUCT", "AVG"}:
            given = [inputs.contribution(dtype, reduction, 300, rank, size) for rank in range(size)]
            exact = (
                torch.complex128 if "complex" in dtype else torch.float64 if "float" in dtype else torch.int64
            )
            for order in (given, given[::-1]):
                total = order[0]
                for x in order[1:]:
                    a, b = total.to(exact), x.to(exact)
                    total = (a * b if reduction == "PRODUCT" else a + b).to(total.dtype)
                if reduction == "AVG":
                    parts = total.to(exact)
                    total = (parts // size if exact == torch.int64 else parts / size).to(total.dtype)
                assert torch.equal(
                    total.view(torch.uint8), inputs.reduced(given, dtype, reduction).view(torch.uint8)
                ), (dtype, reduction)
            if (
                reduction != "AVG" or size < 16
            ):  # the mean of many is not a whole number of the smallest types
                assert len(set(given[0].to(exact).tolist())) > 1, (dtype, reduction)


@pytest.mark.parametrize("dtype", MOVABLE)
def test_ranks_and_blocks_contribute_different_bits(dtype):
    made = [inputs.contribution(dtype, "", 64, rank, 4, block) for rank in range(4) for block in range(4)]
    assert len({bytes(x.view(torch.uint8).tolist()) for x in made}) == 16


@pytest.mark.parametrize(("offset", "step"), [(0, 1), (3, 1), (0, 2), (3, 2)])
def test_bytes_around_a_tensor_and_between_its_elements_are_watched(offset, step):
    content = torch.arange(4, dtype=torch.int16)
    made = place(content, "cpu", offset, step)
    assert torch.equal(made, content) and made.stride() == (step,) and guards_broken(made) == ""
    beside = made.as_strided((1,), (1,), made.storage_offset() + 3 * step + 1)
    beside.zero_()
    assert "was written" in guards_broken(made)
    if step == 2:
        between = place(content, "cpu", offset, step)
        between.as_strided((1,), (1,), between.storage_offset() + 1).zero_()
        assert "was written" in guards_broken(between)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("my_backend does not support gather"), ""),
        (NotImplementedError("no such reduction here"), ""),
        (KeyError("gather"), "KeyError is not a"),
        (AssertionError("this must not be: gather"), "AssertionError is not a"),
        (RuntimeError(" no\n"), "it has no text"),
        (
            RuntimeError("x INTERNAL ASSERT FAILED at y"),
            "contains 'INTERNAL ASSERT FAILED'",
        ),
        (TypeError("Unable to cast Python instance"), "contains 'Unable to cast'"),
    ],
)
def test_a_refusal_is_clear_if_it_says_something_to_the_user(error, words):
    found = why_unclear(error)
    assert words in found and bool(words) == bool(found)


# ---- declarations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(DECLARED.glob("*.toml")), ids=lambda path: path.stem)
def test_what_this_package_declares_is_of_cases_that_there_are(path, monkeypatch):
    """With some version of PyTorch."""
    some = frozenset(method for rule in catalog.RULES.values() for method in rule.methods)
    monkeypatch.setattr(catalog, "virtual_methods", lambda: some)
    found = capabilities.load(None, path.stem)
    cases = catalog.cases("dev", 4)
    for pattern in (*found.not_supported, *(known.cases for known in found.known)):
        assert any(pattern.matches(case) for case in cases), pattern


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('imports = ["x"]', "there is no key 'imports' (did you mean 'import'?)"),
        ('not_supported = "AVG"', "not_supported must be a list, not 'AVG'"),
        ("not_supported = [3]", "not_supported must be a list of strings, and has 3"),
        ('not_supported = ["all_reduce AVGE"]', "the word 'AVGE', which no case has (did you mean 'AVG'?)"),
        ('start = "thread"', 'start must be "fork" or "spawn", not \'thread\''),
        ('[[known]]\ncases = "AVG"', "each [[known]] needs cases, verdict and reason"),
        (
            '[[known]]\ncases = "AVG"\nverdict = "slow"\nreason = "r"',
            "one of works, refuses, wrong, hangs, crashes, untested, error, not 'slow'",
        ),
    ],
)
def test_a_declaration_that_is_wrong_is_refused_with_what_to_write(text, words):
    with pytest.raises(WrongUse, match=re.escape(words)):
        parse(text)


def test_patterns_combine_words():
    found = parse('not_supported = ["!send_recv|all_reduce int16|int8", "AVG integer", "device=tpu barrier"]')
    refused = {case.name for case in catalog.cases("cpu", 4) if not found.supports(case)}
    assert {"broadcast:result[int8]", "reduce:result[int16-SUM]", "all_reduce:result[int64-AVG]"} <= refused
    assert (
        not {"send_recv:result[int8]", "all_reduce:result[int16-SUM]", "barrier:waits[synchronous]"} & refused
    )
    assert "barrier:waits[synchronous]" in {
        case.name for case in catalog.cases("tpu", 4) if not found.supports(case)
    }


# ---- runs ----------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backend=gluu"], r"There is no backend 'gluu'; there are gloo.*import = \[\"package\"\]"),
        (["--backend=gloo", "--world-size=four"], r"--world-size must be a number .*, not 'four'"),
        ([], r"The conformance suite needs the name of a backend: --backend gloo"),
        (["--backend=gloo", "--device=warp"], r"There is no device 'warp' .*import = \[\"package\"\]"),
        (["--backend=gloo", "--world-size=1"], r"--world-size must be a number of .* 2 to 256, not '1'"),
        (["--backend=gloo", "--case-limit=-1"], r"--case-limit must be a number .* above 0, not '-1'"),
        (["--backend=gloo", "--report=no/such/file"], r"--report no/such/file: there is no folder"),
        (["--backend=gloo", "--capabilities=none.toml"], r"none.toml: the file cannot be read"),
        (["--backend=gloo", "--capabilities=bad.toml"], r"bad.toml: there is no key 'x'"),
        (["--backend=x", "--capabilities=import.toml"], r"nonesuch cannot be imported: .*PYTHONPATH"),
    ],
)  # fmt: skip
def test_bad_options_end_the_run_with_one_sentence(tmp_path, options, words):
    (tmp_path / "bad.toml").write_text("x = 1")
    (tmp_path / "import.toml").write_text('import = ["nonesuch"]')
    done = suite(*options, folder=tmp_path)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 4 and re.search(words, text) and "Traceback" not in text, text


def test_the_options_are_only_there_where_the_suite_is_asked_for(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    pytester.makeconftest(
        "def pytest_addoption(parser): parser.addoption('--backend'), parser.addoption('--device')"
    )
    pytester.makepyfile("def test_x(pytestconfig): assert pytestconfig.getoption('--backend') == 'mine'")
    command = [sys.executable, "-m", "pytest", "-p", "pytest_torch_occl", "--backend=mine"]
    pytester.run(*command, timeout=100).assert_outcomes(passed=1)


@pytest.mark.full
def test_the_suite_makes_no_device_of_its_own(tmp_path):
    """Another vendor's has the only place for a PrivateUse1 device: neither in pytest nor in the ranks."""
    (tmp_path / "vendor.py").write_text(
        "import sys, torch\n"
        "assert 'torch_occl' not in sys.modules\n"
        "torch.utils.rename_privateuse1_backend('vendor')\n"
    )
    (tmp_path / "vendor.toml").write_text('import = ["vendor"]')
    (tmp_path / "run.py").write_text(
        "import sys, pytest\n"
        "status = pytest.main(sys.argv[1:])\n"
        "assert 'torch_occl' not in sys.modules\n"
        "sys.exit(status)\n"
    )
    options = ["--backend=gloo", "--capabilities=vendor.toml", "--world-size=2", "-k", "identity"]
    plugin = ["-p", "pytest_torch_occl", "--pyargs", "occl.conformance"]
    done = subprocess.run(
        [sys.executable, "run.py", *plugin, *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{PACKAGE}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


BROKEN = {
    "all_reduce:result[float32-SUM]": ("works", ""),
    "all_reduce:result[float64-SUM]": (
        "wrong",
        r"rank 1: output 0 is wrong: 1 of 257 elements differ.*\[256\]",
    ),
    "all_gather:asynchronous": (
        "hangs",
        r"rank 1 did not finish.*broken_backend.py\", line \d+ in allgather",
    ),
    "gather:asynchronous": (
        "crashes",
        r"rank 1: killed by SIGSEGV\nSegmentation fault.*broken_backend.py\", line \d+ in gather",
    ),
    "all_to_all:in_flight": ("untested", r"rank 0: nothing was pending: every call returned when it had"),
    "reduce:asynchronous": ("refuses", r"NotImplementedError: the backend 'broken' has no reduce"),
    "scatter:asynchronous": ("wrong", r"refused unclearly, because KeyError"),
    "reduce_scatter:asynchronous": ("hangs", r"ranks? 1"),
    "bad_arguments:refused[root_negative]": ("wrong", r"a call with root negative is accepted silently"),
    "death:noticed[all_reduce]": ("refuses", ""),
    "mismatch:refused[reduction]": ("wrong", r"accepted silently"),
    "suspend": ("refuses", ""),
}
"""Cases of the broken backend, with the verdict and what its text says."""


@pytest.mark.full
def test_each_defect_of_a_broken_backend_gets_its_verdict(tmp_path):
    (tmp_path / "broken.toml").write_text(
        'import = ["tests.support.broken_backend"]\nnot_supported = ["reduce", "all_reduce float32"]\n'
        '[[known]]\ncases = "scatter"\nverdict = "wrong"\nreason = "a test"\n'
        '[[known]]\ncases = "mismatch"\nverdict = "crashes"\nreason = "another test"\n'
    )
    names = [name for name in BROKEN if ":" in name]
    path = tmp_path / "report.json"
    done = suite(
        "--backend=broken", "--world-size=2", "--case-limit=5",
        "--capabilities=broken.toml", f"--report={path}",
        "-k", " or ".join(f"({' and '.join(re.findall(r'[a-z_0-9]+', name.lower()))})" for name in names),
        folder=tmp_path,
    )  # fmt: skip
    report = json.loads(path.read_text())
    assert report["backend_class"] == "tests.support.broken_backend.Broken"
    assert "The backend is tests.support.broken_backend.Broken" in done.stdout
    assert report["device_defects"] == []
    found = {entry["name"]: entry for entry in report["cases"]}
    for name in names:
        verdict, words = BROKEN[name]
        assert found[name]["verdict"] == verdict, found[name]
        assert re.search(words, found[name]["text"], re.S), found[name]
        assert found[name]["source"] and found[name]["statement"]
    assert {found[name]["verdict"] for name in names} == set(VERDICTS) - {"error"}  # tests/foreign has one
    assert done.returncode == 1
    said = done.stdout
    assert "declare it as not supported, and it works: remove the entry" in said
    assert re.search(
        r"The capabilities know it as crashes \(another test\), and the verdict is 'wrong'", said
    )
    failed = set(re.findall(r"^FAILED ::(\S+) ", said, re.M))
    assert not {
        "reduce:asynchronous", "scatter:asynchronous", "death:noticed[all_reduce]", "all_to_all:in_flight"
    } & failed  # fmt: skip
    assert {"all_gather:asynchronous", "gather:asynchronous", "all_reduce:result[float32-SUM]"} <= failed


COMPLETE_AT_ONCE = {"all_gather_coalesced:in_flight", "all_reduce_coalesced:in_flight"}
"""They return futures, and those of `dev` are complete at once: the streams order what uses the value."""


def everything_as_declared(found: dict[str, dict], device: str) -> None:
    untested = {name for name, e in found.items() if e["verdict"] == "untested"}
    assert untested == (COMPLETE_AT_ONCE & set(found) if device == "dev" else set())
    unlike = {name: e["text"] for name, e in found.items() if e["verdict"] != e["expected"]}
    assert {name: text for name, text in unlike.items() if name not in untested} == {}


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.full), "dev"])
def test_occl_conforms(tmp_path, device):
    """A part in each run; the whole is in the test below."""
    some = "result and all_reduce or stream or edge or bad_arguments or coalescing or objects or works"
    found = verdicts(
        tmp_path, "--backend=occl", f"--device={device}", "--world-size=2", "--quick", "-k", some, status=0
    )
    everything_as_declared(found, device)
    assert len(found) > 150


@pytest.mark.full
@pytest.mark.parametrize(
    ("device", "world_size"),
    [
        pytest.param(device, size, marks=[pytest.mark.matrix] * ((device, size) != ("dev", 4)))
        for device in ("cpu", "dev")
        for size in (2, 3, 4)
    ],
)
def test_occl_conforms_in_everything(tmp_path, device, world_size):
    options = ["--backend=occl", f"--device={device}", f"--world-size={world_size}"]
    found = verdicts(tmp_path, *options, status=0)
    everything_as_declared(found, device)
    assert {
        e["operation"] for e in found.values() if e["verdict"] == "refuses" and "suspend" not in e["rule"]
    } == {rule.operation for rule in catalog.RULES.values() if rule.refuses and rule.applies}


@pytest.mark.full
def test_gloo_has_the_gaps_that_are_declared(tmp_path):
    found = verdicts(tmp_path, "--backend=gloo", "--case-limit=8", status=0)  # what hangs takes that long
    assert {e["verdict"] for e in found.values()} >= {"works", "refuses", "wrong", "hangs", "crashes"}
    assert all(e["known"] for e in found.values() if e["verdict"] != e["expected"])


@pytest.mark.matrix
@pytest.mark.full
def test_the_fake_backend_is_found_wrong(tmp_path):
    """It moves nothing, and only says that it has: with more than one element, no result can be right.
    Its works have no result() to ask for."""
    found = verdicts(tmp_path, "--backend=fake", "--world-size=2", "--quick", status=1)
    assert found["works:result"]["verdict"] == "refuses"
    del found["works:result"]
    results = [e for e in found.values() if e["rule"] in ("result", "root", "in_flight", "tags", "batch")]
    assert len(results) > 300 and {e["verdict"] for e in results} == {"wrong"}
