"""60 random faults. `python -m tests.faults` makes more of them."""

from __future__ import annotations

import pytest

from occl.testing import RanksFailed
from tests.support.thinning import first

from . import runner

FIRST = 20_261_121


@pytest.fixture(scope="module")
def tally(request):
    """Shown at the end of the run."""
    tally = runner.Tally()
    yield tally
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(tally.lines()))


@pytest.mark.parametrize("seed", first(range(FIRST, FIRST + 60), stay=15))
def test_survivors_get_the_error_that_names_the_rank_and_work_on(pool, tally, seed):
    runner.Trial(pool, runner.Fault.of(seed), tally).run()


def test_every_kind_of_fault_is_among_them():
    kinds = {runner.Fault.of(seed).kind for seed in range(FIRST, FIRST + 60)}
    assert kinds == set(runner.KINDS)


def wrong_result(rank, n, device, **_):
    raise AssertionError("wrong data")


def test_a_trial_fails_where_a_rank_gets_wrong_data_or_the_wrong_error(pool, monkeypatch):
    fault = runner.Fault(1, 3, 1, "kill", 0.001, "cpu")
    trial = runner.Trial(pool, fault, runner.Tally())
    with pytest.raises(AssertionError, match="4712"):
        trial._judge(4711, {0: ("rank 1 (pid 4712, host a) exited during barrier()", 0, 0)}, 0)
    with monkeypatch.context() as patch:
        patch.setattr(runner.body, "live", wrong_result)
        with pytest.raises(RanksFailed, match="wrong data"):
            trial.run()
