"""The command ``occl`` and its other spellings."""

import re
import subprocess
import sys

import pytest

from occl import versions
from occl.cli import COMMANDS, main
from tests.support.thinning import first

SPELLINGS = {
    "doctor": [["torch_occl", "doctor"]],
    "bench": [["occl.bench"], ["torch_occl.bench"]],
    "conformance": [["occl.conformance"], ["torch_occl.conformance"]],
}


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


def printed(*arguments: str) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_its_help_names_every_command_and_imports_no_pytorch(arguments):
    code = (
        "import sys; from occl.cli import main; from contextlib import suppress\n"
        f"with suppress(SystemExit): main({arguments})\n"
        "assert not {'torch', 'torch_occl', 'occl._C'} & {*sys.modules}"
    )
    shown = printed("-c", code)
    assert "usage: occl" in shown
    assert re.findall(r"^    (\w+)", shown, re.M) == [*COMMANDS]


def test_its_version_has_the_commits_that_it_was_built_from(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(versions, "EXTENSIONS", tmp_path)

    def said() -> str:
        with pytest.raises(SystemExit) as ended:
            main(["--version"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert said() == f"torch_occl {versions.VERSION}, built from an unknown commit\n"
    for folder, commit in (("torch_2_13", "1234+"), ("torch_2_14", "1234+"), ("torch_2_15", "abcd")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "_C.so").touch()
        (tmp_path / folder / "commit").write_text(f"{commit}\n")
    assert said() == f"torch_occl {versions.VERSION}, built from commit 1234+ and abcd\n"


@pytest.mark.parametrize("name", first(SPELLINGS))
def test_every_spelling_of_a_command_has_the_same_help(name):
    shown = printed("-m", "occl", name, "--help")
    assert f"usage: occl {name} " in shown
    for spelling in SPELLINGS[name]:
        assert printed("-m", *spelling, "--help") == shown


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["doctor", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["docter"], "there is no command 'docter'; did you mean 'doctor'?"),
        (["conformence"], "did you mean 'conformance'?"),
        (["xyz"], "there are doctor, top, report, bench, conformance"),
        (["conformance"], "usage: occl conformance "),
        (["conformance"], "error: name the reports, or ask for --words"),
    ],
)
def test_wrong_arguments_are_refused(wrong, text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bench", "conformance"])
def test_without_pytorch_it_says_what_works(name, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is broken')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += f"from occl.cli import main; sys.exit(main([{name!r}]))"
    done = run("-c", code)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"occl {name} cannot run: libtorch.so is broken. Run occl doctor, which needs no PyTorch.\n"
    )


def test_the_words_of_declarations_are_listed(capsys):
    assert main(["conformance", "--words"]) == 0
    assert "all_reduce" in capsys.readouterr().out.splitlines()


def test_a_report_that_cannot_be_read_is_named(capsys, tmp_path):
    assert main(["conformance", str(tmp_path / "none.json")]) == 1
    assert "A report cannot be read: " in capsys.readouterr().err
