"""Processes show each other the Python stacks of their main threads."""

from __future__ import annotations

import os
import re
import resource
import socket
import threading
import time
from unittest import mock

import pytest

from occl import stacks
from occl.tools.top import stuck
from tests.support.processes import in_forked_child
from tests.support.ranks import Ranks

IN_A_CALL = "runs in a call outside Python that keeps the interpreter's lock; "


def shown(listener: socket.socket | None) -> list[str]:
    """What this process shows to one of its user."""
    assert listener is not None
    return stacks.of(os.getpid(), stacks.started("self"))


@pytest.fixture
def answers():
    stacks.answer(lambda: 60.0)
    return stacks._listener


def test_the_innermost_frames_of_the_main_thread_come_first(answers):
    found: list[list[str]] = []
    asking = threading.Thread(target=lambda: found.append(shown(answers)))
    asking.start()
    asking.join()
    (frames,) = found
    waits = [re.fullmatch(r"\w+ \(threading\.py:\d+\)", frame) is not None for frame in frames]
    here = next(i for i, frame in enumerate(frames) if frame.startswith("test_the_innermost_frames"))
    assert len(frames) == stacks.FRAMES and waits[:here] == [True] * here and here > 0, frames


def test_one_name_has_one_thread(answers):
    stacks.answer(lambda: 60.0)
    assert stacks._listener is answers
    assert [thread.name for thread in threading.enumerate()].count("torch_occl stacks") == 1


def test_a_process_that_shows_nothing_has_no_frames():
    assert stacks.of(1, "0") == []


def test_a_forked_child_does_not_keep_the_name_of_its_parent(answers):
    def asks() -> str:
        stacks.answer(lambda: 60.0)
        return f"{stacks._listener is not None} {bool(stacks.of(os.getpid(), stacks.started('self')))}"

    assert in_forked_child(asks) == "True True"
    assert shown(answers)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which can become another user")
def test_another_user_is_shown_nothing(answers):
    pid, started = os.getpid(), stacks.started("self")

    def asks() -> str:
        os.setuid(65534)
        return str(stacks.of(pid, started))

    assert in_forked_child(asks) == "[]"


def test_a_lock_that_is_kept_is_no_answer():
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(stacks._address(os.getpid(), "silent"))
        silent.listen()
        with pytest.raises(stacks.NoAnswer):
            stacks.of(os.getpid(), "silent")


def test_without_descriptors_it_does_not_answer_and_nothing_fails():
    def asks() -> str:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        stacks.answer(lambda: 60.0)
        return str(stacks._listener)

    assert in_forked_child(asks) == "None"


def test_few_processes_are_waited_for_in_vain():
    """Each of 63 ranks that keep the lock would hold up the picture."""
    rank = mock.Mock(state="R", call=None)
    rank.process.doing.return_value = "runs"
    rank.process.stack.side_effect = stacks.NoAnswer
    silent: list[int] = []
    texts = [stuck._does(rank, silent)[0] for _ in range(63)]
    assert rank.process.stack.call_count == len(silent) == stuck.MOST_SILENT
    assert [IN_A_CALL in text for text in texts] == [True] * stuck.MOST_SILENT + [False] * (
        63 - stuck.MOST_SILENT
    )


def shows_its_stack(rank: int, n: int, device: str) -> tuple[int, str]:
    stacks.answer(lambda: 60.0)
    return os.getpid(), stacks.started("self")


def test_a_rank_that_has_returned_from_a_test_says_so(warm):
    """Other ranks that wait for it show where it is."""
    with Ranks(warm.clone()) as pool, pool.fresh(1) as team:
        ((pid, start),) = team.run(shows_its_stack)
        end = time.monotonic() + 60
        while not (frames := stacks.of(pid, start))[0].startswith("has_returned_and_waits_for_its_next_call"):
            assert time.monotonic() < end, frames  # it was still on its way there
