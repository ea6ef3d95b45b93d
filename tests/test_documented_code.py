"""Blocks of code of the docs: all can be parsed, and those with a comment `<!-- run: ... -->` run.

The options of the comment are `ranks=N` (1), `device=dev` (cpu), and `backend=occl`, which makes a group
before. A block runs in new ranks, as under torchrun, and finds the names of PRELUDE, so that it need not
repeat the page's imports. With `with=pytest`, all such blocks of a page are a module of tests.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap

import pytest

from tests.support import markdown

PYTHON = list(markdown.blocks("python", "py"))
SHELL = list(markdown.blocks("sh", "bash", "shell"))
PRELUDE = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
import occl, torch_occl
from torch.nn.parallel import DistributedDataParallel

model = torch.nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.randint(3, (8,))
batches = [batch]
loss_of = F.cross_entropy
"""
MARKED = [block for block in PYTHON if block.options is not None]
TO_RUN = [block for block in MARKED if "with" not in block.options]
TESTS = [block for block in MARKED if block.options == {"with": "pytest"}]


def test_blocks_of_python_can_be_compiled():
    assert len(PYTHON) > 20
    wrong = []
    for block in PYTHON:
        try:
            ast.parse(textwrap.dedent(block.text))
        except SyntaxError as error:
            wrong.append(f"{block}: {error}")
    assert not wrong, "\n".join(wrong)


def test_blocks_of_shell_can_be_parsed():
    assert len(SHELL) > 20
    # One shell for all of them: each is the body of a function, so that it is parsed and not run.
    script = "".join(f"block_{i}() {{ :\n{block.text}\n}}\n" for i, block in enumerate(SHELL))
    ended = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    if ended.returncode:
        alone = [
            (block, subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True))
            for block in SHELL
        ]
        pytest.fail(
            "\n".join(f"{block}: {run.stderr}" for block, run in alone if run.returncode) or ended.stderr
        )


def test_blocks_of_json_toml_and_yaml_can_be_read():
    yaml = pytest.importorskip("yaml")
    for block in markdown.blocks("yaml", "yml", "json"):
        list(yaml.safe_load_all(block.text))


@pytest.fixture
def meeting_point():
    """A store that a block's init_process_group finds, as torchrun's agent gives it to its ranks."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port


def run_as_a_script(rank: int, code: str, place: str, port: int) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    names = {"__name__": "__main__"}
    exec(PRELUDE, names)
    exec(compile(code, place, "exec"), names)


@pytest.mark.parametrize("number", range(len(TO_RUN)), ids=map(str, TO_RUN))
def test_the_block_runs(number, run_ranks, meeting_point):
    block = TO_RUN[number]
    options = dict(block.options)
    code = "\n" * block.line + block.text  # so that tracebacks have the lines of the page
    run_ranks(
        run_as_a_script,
        world_size=int(options.pop("ranks", 1)),
        device=options.pop("device", "cpu"),
        backend=options.get("backend"),
        group=options.pop("backend", None) is not None,
        params={"code": code, "place": block.page, "port": meeting_point},
    )
    assert not options, f"{block} has an unknown option"


@pytest.mark.full
@pytest.mark.parametrize("page", sorted({block.page for block in TESTS}))
def test_tests_on_a_page_pass(page, tmp_path):
    tests = [block.text for block in TESTS if block.page == page]
    (tmp_path / "test_of_the_page.py").write_text("\n\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_of_the_page.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert f"{len(tests)} passed" in ended.stdout, ended.stdout


def test_every_marked_block_is_run():
    assert len(TO_RUN) + len(TESTS) == len(MARKED)
