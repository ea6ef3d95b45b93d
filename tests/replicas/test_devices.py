"""DeviceManager: replicas run at the same time, each in its thread, on its device and stream."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from occl import _C
from tests.support.threads import thread_names
from torch_occl.replicas import DeviceManager, ReplicaError


def test_devices_and_streams():
    with DeviceManager() as everything:
        assert len(everything) == torch.dev.device_count()
        assert everything.devices == tuple(torch.device("dev", i) for i in range(len(everything)))
    with DeviceManager(["dev:3", 1, torch.device("dev:0")]) as manager:
        assert [device.index for device in manager.devices] == [3, 1, 0]
        assert [stream.device_index for stream in manager.streams] == [3, 1, 0]
        assert all(stream.stream_id != 0 for stream in manager.streams)
        assert repr(manager) == "DeviceManager(dev:3, dev:1, dev:0)"


def make_replicas(rank, n, device):
    assert not any("autograd" in name for name in thread_names())
    with DeviceManager([0, 1]):
        assert any("autograd" in name for name in thread_names())


def test_replicas_of_a_forked_process_find_autograds_engine(pool):
    with pool.fresh(1) as team:
        team.run(make_replicas)


def test_replicas_meet():
    """Each waits for all others: that ends only if they run side by side."""
    barrier = threading.Barrier(3)
    with DeviceManager([0, 1, 2]) as manager:
        assert sorted(manager.run(lambda i: barrier.wait(timeout=60))) == [0, 1, 2]


def test_a_replica_has_its_device_and_stream_every_time():
    def look(i, word):
        return word, torch.dev.current_device(), torch.dev.current_stream().stream_id, threading.get_ident()

    with DeviceManager([2, 5]) as manager:
        first, second = manager.run(look, ["a", "b"]), manager.run(look, ["a", "b"])
        assert first == second
        assert [result[:2] for result in first] == [("a", 2), ("b", 5)]
        assert [result[2] for result in first] == [stream.stream_id for stream in manager.streams]
        assert len({result[3] for result in first} | {threading.get_ident()}) == 3
    assert torch.dev.current_device() == 0


def test_what_a_replica_has_queued_is_done_when_run_returns():
    done = []

    def queue(i):
        stream = torch.dev.current_stream()
        _C._device_enqueue(stream, lambda: time.sleep(0.05))
        _C._device_enqueue(stream, lambda: done.append(i))

    def queue_a_failure(i):
        _C._device_enqueue(torch.dev.current_stream(), lambda: [][i])

    with DeviceManager([0, 1]) as manager:
        manager.run(queue)
        assert sorted(done) == [0, 1]
        with pytest.raises(ReplicaError, match=r"replica 0 .* raised IndexError"):
            manager.run(queue_a_failure)
        assert manager.run(lambda i: i) == [0, 1]


def test_settings_of_the_calling_thread_hold_in_the_replicas():
    def settings(i):
        return torch.is_grad_enabled(), torch.is_autocast_enabled("dev"), torch.get_autocast_dtype("dev")

    with DeviceManager([0, 1]) as manager:
        assert {enabled for enabled, *_ in manager.run(settings)} == {True}
        with torch.no_grad(), torch.autocast("dev", torch.float16):
            assert manager.run(settings) == [(False, True, torch.float16)] * 2


def test_the_number_of_threads_is_that_of_the_calling_thread_every_time():
    with DeviceManager([0, 1]) as manager:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            assert manager.run(lambda i: torch.get_num_threads()) == [threads] * 2


def test_a_replica_that_would_wait_for_itself_is_told_so():
    with DeviceManager([0, 1]) as manager, DeviceManager([1, 2]) as other:
        for nested in (manager.run, manager.subset([1, 0]).run):
            with pytest.raises(ReplicaError, match=r"RuntimeError: .* this is one of its replicas"):
                manager.run(lambda i: nested(lambda j: j))  # noqa: B023
        with pytest.raises(ReplicaError, match="this is one of its replicas"):
            manager.run(lambda i: other.run(lambda j: manager.run(lambda k: k)))
        assert manager.run(lambda i: other.run(lambda j: j)) == [[0, 1]] * 2
        assert manager.run(lambda i: i) == [0, 1]


def test_threads_end_with_the_last_reference():
    manager = DeviceManager([0, 1])
    part, threads = manager.subset([1]), manager.run(lambda i: threading.current_thread())
    del manager
    assert part.run(lambda i: i) == [0] and threads[1].is_alive()
    del part
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_the_first_error_is_raised_and_everybody_has_ended():
    ended = []

    def fail(i):
        if i:
            raise KeyError(f"of {i}")
        ended.append(i)

    with DeviceManager([0, 4, 6]) as manager:
        with pytest.raises(ReplicaError, match=r"replica 1 \(on dev:4\) raised KeyError: 'of 1'") as info:
            manager.run(fail)
        assert isinstance(info.value.__cause__, KeyError) and ended == [0]
        assert manager.run(lambda i: i) == [0, 1, 2]  # usable afterwards


def test_a_subset_shares_threads_and_streams():
    with DeviceManager([0, 1, 2]) as manager:
        part = manager.subset([2, "dev:0"])
        assert [device.index for device in part.devices] == [2, 0]
        assert part.streams[0].stream_id == manager.streams[2].stream_id
        assert part.run(lambda i: threading.get_ident()) == manager.run(lambda i: threading.get_ident())[::-2]
        part.close()  # leaves the threads to the manager
        assert manager.run(lambda i: i) == [0, 1, 2]
        manager.synchronize()


def test_bad_lists_of_devices():
    with pytest.raises(ValueError, match="the list of devices is empty"):
        DeviceManager([])
    with pytest.raises(ValueError, match="dev:1 is in the list of devices more than once"):
        DeviceManager([1, "dev:1"])
    with pytest.raises(ValueError, match="expected a dev device, got cpu"):
        DeviceManager(["cpu"])
    with pytest.raises(RuntimeError):
        DeviceManager([torch.dev.device_count()])
    with DeviceManager([0, 1]) as manager:
        with pytest.raises(ValueError, match="this manager has no dev:2; it has dev:0, dev:1"):
            manager.subset([0, 2])
        with pytest.raises(ValueError, match="argument 1 has 3 elements for 2 devices"):
            manager.run(lambda i, a, b: None, [1, 2], [1, 2, 3])
    with pytest.raises(RuntimeError, match="shutdown"):
        manager.run(lambda i: None)
