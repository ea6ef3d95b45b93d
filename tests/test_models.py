"""Checks small models of the protocol with spin: no interleaving of a few threads loses a wake-up, or uses a
place again too early. Each model has variants that are broken on purpose, and spin must see that."""

import re
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.thinning import first

MODELS = Path(__file__).parent / "models"

BROKEN = {
    "bell": ["NO_FENCE", "LOOK_FIRST", "SEEN_LATE"],
    "posts": ["POSTS=1", "SKIP_WAIT"],
    "slots": ["NO_ALTERNATION", "NO_TICK", "SLOTS=1"],
    "ring": ["PUBLISH_FIRST", "RELEASE_FIRST", "TOO_MUCH_ROOM", "NO_CLEAR", "CLEAR_UNREAD", "NO_BELL"],
    "two_ends": ["LOOK_FIRST", "NO_REST", "ANY_JOB", "FRESH_BACK"],
    "hand_over": [
        "NO_HAND_OVER",
        "NO_RING_ON_HAND_OVER",
        "LOOK_BEFORE_SUBMIT",
        "PARK_BLINDLY",
        "NO_RING_ON_LEAVE",
        "PARK_FROM_DOZE",
        "COUNT_LATE",
    ],
}

MEMORY = 3 << 30
"""Bytes that spin, the compiler and the search may take: a model without end fails, and nothing else."""

pytestmark = pytest.mark.skipif(
    not shutil.which("spin"), reason="spin is not installed: apt-get install spin"
)


def check(model: str, define: str | None, folder: Path) -> tuple[int, int]:
    """Searches all states of a model, with a variant switched on or as it is.

    Returns:
        How many errors were found (the search ends at the first), and how many states it saw.
    """

    def run(*command: str) -> str:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("spin", *([f"-D{define}"] if define else []), "-a", str(MODELS / f"{model}.pml"))
    run("cc", "-O2", "-DSAFETY", "-DVECTORSZ=4096", "-DMEMLIM=2048", "-w", "-o", "pan", "pan.c")
    output = run("./pan", "-m1000000")
    assert "max search depth too small" not in output and "out of memory" not in output, output
    errors, states = re.search(r"errors: (\d+)", output), re.search(r"([\d.e+]+) states, stored", output)
    assert errors and states, output
    assert int(errors[1]) or "Search not completed" not in output, output
    return int(errors[1]), int(float(states[1]))


@pytest.mark.parametrize("model", first(BROKEN, stay=2))
def test_a_model_holds_in_every_state(model, tmp_path):
    errors, states = check(model, None, tmp_path)
    print(f"{model}: {states} states")
    assert errors == 0
    assert states > 500


@pytest.mark.parametrize(
    ("model", "variant"),
    [
        pytest.param(model, variant, marks=[pytest.mark.full] * ((model, variant) != ("posts", "SKIP_WAIT")))
        for model, variants in BROKEN.items()
        for variant in variants
    ],
)
def test_a_broken_variant_is_caught(model, variant, tmp_path):
    text = (MODELS / f"{model}.pml").read_text()
    assert re.search(rf"#ifn?def {variant.split('=')[0]}\b", text), "the model does not know this variant"
    assert check(model, variant, tmp_path)[0] == 1


def test_every_model_is_checked_and_says_how_it_may_break():
    assert {path.stem for path in MODELS.glob("*.pml")} == set(BROKEN)
    for model, variants in BROKEN.items():
        text = (MODELS / f"{model}.pml").read_text()
        assert [v for v in variants if f"-D{v}" not in text] == []
