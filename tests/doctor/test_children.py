"""Processes that the doctor starts."""

import errno
import os
import textwrap
from pathlib import Path

import pytest

from occl.tools.doctor import subprocesses
from occl.tools.doctor.subprocesses import Ended


def script(folder: Path, text: str) -> list[Ended]:
    file = folder / "script.py"
    file.write_text(textwrap.dedent(text))
    return subprocesses.run([[str(file), "argument"]], 60.0)


def test_a_process_that_does_not_end_is_killed_at_the_deadline_and_what_it_said_is_kept(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "script.py").write_text(f"open({str(fifo)!r})")  # waits for a writer
    ended = subprocesses.run([[str(tmp_path / "script.py")]], 0.0)[0]
    assert ended.status is None and ended.reason() == "it did not end in time, and was killed"
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):  # no process has it open
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


def test_objects_that_were_said_stay_said_when_the_process_fails(tmp_path):
    (ended,) = script(
        tmp_path, "import sys\nprint('{\"a\": 1}\\nno object\\n[2]')\nraise KeyError(sys.argv[1])"
    )
    assert (ended.status, ended.said) == (1, {"a": 1})
    assert ended.reason() == "KeyError: 'argument'"


@pytest.mark.parametrize(
    ("text", "exception"),
    [
        ("Traceback:\n  File\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("[rank0]:   File\n[rank0]: KeyError: 'a'\n[rank0]: b\n", "KeyError: 'a' b"),
        ("ValueError: x\nDuring handling\na.b.CError: two\nlines\n", "a.b.CError: two lines"),
        ("Fatal Python error\nlast words\n", "last words"),
        ("", ""),
    ],
)
def test_the_last_exception_is_the_reason(text, exception):
    assert subprocesses.exception_in(text) == exception


def test_a_long_reason_is_cut():
    assert subprocesses.exception_in(f"ValueError: {'x' * 1000}").endswith("x ...")
