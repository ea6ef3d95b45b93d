"""Training that goes on when a rank is killed: by shrinking the group, and by torchrun's restarts."""

import re
import signal
from pathlib import Path

import pytest

from tests.test_example_digits import run

EXAMPLE = str(Path(__file__).parents[1] / "examples" / "elastic_digits.py")


def accuracy(output: str, ranks: int) -> float:
    """Percent, as rank 0 prints it at the end."""
    return float(re.search(rf"^{ranks} ranks, test accuracy ([\d.]+)%$", output, re.MULTILINE)[1])


@pytest.mark.full
def test_three_of_four_ranks_shrink_and_reach_the_accuracy_without_a_checkpoint():
    shown = run([EXAMPLE, "--ranks", "4", "--kill", "2:60", "--steps", "200"])
    # A rank that has the sum of the gradients of a step when rank 2 dies has made that step.
    assert re.search(r"^lost rank \[2\]; 3 ranks go on with step 6[01]$", shown, re.MULTILINE), shown
    assert accuracy(shown, 3) >= 95


@pytest.mark.full
def test_rank_0_is_nobody_special():
    shown = run([EXAMPLE, "--ranks", "3", "--kill", "0:20", "--steps", "30"])
    assert re.search(r"^lost rank \[0\]; 2 ranks go on with step 2[01]$", shown, re.MULTILINE), shown


@pytest.mark.full
def test_torchrun_starts_all_ranks_again_and_they_continue_from_the_checkpoint(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    options = ["--checkpoint", str(tmp_path / "checkpoint.pt"), "--kill", "1:50", "--steps", "200"]
    shown = run([*torchrun, EXAMPLE, *options])
    assert f"exitcode: -{signal.SIGKILL}" in shown, shown
    assert len(re.findall(r"^rank [01] starts again from step 40$", shown, re.MULTILINE)) == 2, shown
    assert accuracy(shown, 2) >= 95
