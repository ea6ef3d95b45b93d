"""Training in which a rank is killed and replaced, while the others run on."""

import re
from pathlib import Path

import pytest

from tests.support.running import PYTORCH
from tests.test_example_digits import run

EXAMPLE = str(Path(__file__).parents[1] / "examples" / "replaced_digits.py")
pytestmark = pytest.mark.skipif(PYTORCH < (2, 14), reason="PyTorch 2.14 has it first")


def loss(output: str) -> float:
    return float(re.search(r"^3 ranks, test loss ([\d.]+)$", output, re.MULTILINE)[1])


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 1])
def test_a_replaced_rank_changes_nothing_but_the_rounding(victim):
    undisturbed = run([EXAMPLE, "--ranks", "3", "--steps", "400"])
    shown = run([EXAMPLE, "--ranks", "3", "--steps", "400", "--kill", f"{victim}:50"])
    assert re.search(
        rf"^rank {victim} has died$.*^2 ranks go on with step 5[01]$.*^3 ranks go on with step \d+$",
        shown,
        re.MULTILINE | re.DOTALL,
    ), shown
    assert loss(shown) == pytest.approx(loss(undisturbed), rel=1e-3)
