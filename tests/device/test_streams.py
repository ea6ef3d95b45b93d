"""Streams and events: the default stream is synchronous, side streams are queues."""

import threading
import time

import pytest
import torch

from occl import _C
from tests.support.gates import open_when_the_caller_sleeps


@pytest.fixture
def gate():
    """A task that blocks its stream until `set`."""
    event = threading.Event()
    yield event
    event.set()
    torch.dev.synchronize()


def hold(stream, gate):
    _C._device_enqueue(stream, gate.wait)


def test_default_stream_runs_at_once():
    done = []
    _C._device_enqueue(torch.dev.default_stream(), lambda: done.append(threading.get_ident()))
    assert done == [threading.get_ident()]
    assert torch.dev.default_stream().query()


def test_side_stream_is_a_queue_in_order(gate):
    stream = torch.dev.Stream()
    done = []
    hold(stream, gate)
    for i in range(100):
        _C._device_enqueue(stream, lambda i=i: done.append(i))
    assert not stream.query() and done == []
    gate.set()
    stream.synchronize()
    assert stream.query() and done == list(range(100))


def test_tasks_run_without_gradients_on_the_device_of_their_stream():
    seen, stream = [], torch.dev.Stream("dev:1")
    _C._device_enqueue(stream, lambda: seen.append((torch.is_grad_enabled(), torch.dev.current_device())))
    stream.synchronize()
    assert seen == [(False, 1)]


def test_query_is_true_only_when_the_last_task_has_finished(gate):
    stream = torch.dev.Stream()
    started = threading.Event()
    _C._device_enqueue(stream, lambda: (started.set(), gate.wait()))
    started.wait()
    assert not stream.query()  # taken from the queue, and still running
    gate.set()
    stream.synchronize()
    assert stream.query()


def test_streams_do_not_wait_for_each_other(gate):
    a, b = torch.dev.Stream(), torch.dev.Stream()
    hold(a, gate)
    done = []
    _C._device_enqueue(b, lambda: done.append(1))
    b.synchronize()
    assert done == [1] and not a.query()


@pytest.mark.parametrize("changed", ["source", "target"])
def test_non_blocking_copy_is_of_what_the_tensors_were(gate, changed):
    """A tensor may be given other data, of another size, before the stream gets to the copy."""
    stream = torch.dev.Stream()
    with torch.dev.stream(stream):
        source, target = torch.arange(4.0, device="dev"), torch.zeros(4).pin_memory()
        before = target[:]
        hold(stream, gate)
        target.copy_(source, non_blocking=True)
    if changed == "source":
        source.data = torch.ones(7, device="dev")
    else:
        target.data = torch.ones(7)
    gate.set()
    stream.synchronize()
    assert before.tolist() == [0, 1, 2, 3]


def test_non_blocking_copy_goes_on_without_the_host(gate):
    stream = torch.dev.Stream()
    x, y = torch.zeros(4, device="dev"), torch.ones(4).pin_memory()
    hold(stream, gate)
    with torch.dev.stream(stream):
        x.copy_(y, non_blocking=True)
        assert not stream.query()
    assert x.sum().item() == 0  # this is the default stream: it does not wait
    gate.set()
    stream.synchronize()
    assert x.sum().item() == 4


def compiled(x):
    """What inductor makes of ``x + 0``."""
    return _C._device_run_compiled(lambda inputs: [inputs[0] + 0], [x], 0)[0]


HOST = {
    "computation": lambda x: x + 0,
    "in place": lambda x: x.add_(0),
    "item": lambda x: torch.full((1000,), x[0].item()),
    "copy to the CPU": lambda x: x.cpu(),
    "compiled": compiled,
    "resize": lambda x: x.resize_(500),
    "resize its storage": lambda x: (x.untyped_storage().resize_(4000), x)[1],
    "move its storage": lambda x: (_C._device_move_storage(x, torch.empty(1000)), x)[1],
    "on the CPU": torch.dev.as_cpu,
}


@pytest.mark.parametrize("use", HOST)
def test_what_the_host_does_on_a_side_stream_waits_for_what_is_queued(gate, use):
    stream = torch.dev.Stream()
    x, sevens = torch.zeros(1000, device="dev"), torch.full((1000,), 7.0, device="dev")
    hold(stream, gate)
    with torch.dev.stream(stream):
        x.copy_(sevens, non_blocking=True)
        open_when_the_caller_sleeps(gate)
        result = HOST[use](x)
        assert gate.is_set()
    assert result.tolist() == [7] * len(result)


def fail(text):
    raise ValueError(text)


def test_an_event_carries_the_error_of_its_stream():
    """Into the stream that waits for it, and to the caller where the host waits."""
    a, b, default = torch.dev.Stream(), torch.dev.Stream(), torch.dev.default_stream()
    _C._device_enqueue(a, lambda: fail("of a"))
    event = a.record_event()
    b.wait_event(event)
    with pytest.raises(ValueError, match="of a"):
        default.wait_event(event)
    a.synchronize()  # has been told
    with pytest.raises(ValueError, match="of a"):
        b.synchronize()
    b.synchronize()
    default.wait_event(a.record_event())


WAITS = {
    "stream": lambda stream, event: stream.synchronize(),
    "device": lambda stream, event: torch.dev.synchronize(),
    "accelerator": lambda stream, event: torch.accelerator.synchronize(),
    "event": lambda stream, event: event.synchronize(),
    "default stream": lambda stream, event: torch.dev.default_stream().wait_event(event),
    "wait_stream": lambda stream, event: torch.dev.default_stream().wait_stream(stream),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_of_the_host_ends_when_the_stream_has_come_there(gate, wait):
    stream, done = torch.dev.Stream(), []
    hold(stream, gate)
    _C._device_enqueue(stream, lambda: done.append(1))
    event = stream.record_event()
    assert not event.query() and not stream.query()
    open_when_the_caller_sleeps(gate)
    WAITS[wait](stream, event)
    assert gate.is_set() and done == [1] and event.query()


@pytest.mark.parametrize("source", ["ordinary", "pinned"])
def test_a_blocking_copy_on_a_side_stream_comes_after_what_is_queued(gate, source):
    stream = torch.dev.Stream()
    x, first, second = torch.zeros(4, device="dev"), torch.ones(4, device="dev"), torch.full((4,), 2.0)
    second = second.pin_memory() if source == "pinned" else second
    hold(stream, gate)
    with torch.dev.stream(stream):
        x.copy_(first, non_blocking=True)
        open_when_the_caller_sleeps(gate)
        x.copy_(second)
        assert gate.is_set()
    stream.synchronize()
    assert x.tolist() == [2] * 4


def test_non_blocking_copy_of_ordinary_memory_is_done_at_the_return(gate):
    """A program that does not pin may write into the source again, as with CUDA."""
    stream = torch.dev.Stream()
    x, y = torch.zeros(4, device="dev"), torch.ones(4)
    hold(stream, gate)
    open_when_the_caller_sleeps(gate)
    with torch.dev.stream(stream):
        x.copy_(y, non_blocking=True)
    assert gate.is_set()
    y.zero_()
    assert x.sum().item() == 4


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("held", ["dev:0", "dev:1"])
def test_a_copy_between_devices_waits_for_the_streams_of_both(gate, held, non_blocking):
    streams = {name: torch.dev.Stream(name) for name in ("dev:0", "dev:1")}
    x, y = torch.zeros(4, device="dev:1"), torch.ones(4, device="dev:0")
    sevens, eights = torch.full((4,), 7.0, device="dev:1"), torch.full((4,), 8.0, device="dev:0")
    hold(streams[held], gate)
    with torch.dev.stream(streams["dev:1"]), torch.dev.stream(streams["dev:0"]):
        x.copy_(sevens, non_blocking=True)
        y.copy_(eights, non_blocking=True)
        open_when_the_caller_sleeps(gate)
        y.copy_(x, non_blocking=non_blocking)
        assert gate.is_set()
        assert y.tolist() == [7.0] * 4


def test_a_non_blocking_copy_of_a_wrong_shape_raises_at_once(gate):
    stream = torch.dev.Stream()
    x, y = torch.ones(3, device="dev"), torch.ones(4, device="dev")
    hold(stream, gate)
    with torch.dev.stream(stream), pytest.raises(RuntimeError, match=r"expanded size|must match"):
        x.copy_(y, non_blocking=True)


def test_memory_of_a_queued_copy_outlives_its_tensors(gate):
    stream = torch.dev.Stream()
    x, y = torch.zeros(1000, device="dev"), torch.full((1000,), 3.0, device="dev")
    hold(stream, gate)
    with torch.dev.stream(stream):
        x.copy_(y, non_blocking=True)
    del y
    torch.full((1000,), 9.0, device="dev")
    gate.set()
    stream.synchronize()
    assert bool((x == 3).all())


def test_event_orders_two_streams(gate):
    a, b = torch.dev.Stream(), torch.dev.Stream()
    done = []
    hold(a, gate)
    _C._device_enqueue(a, lambda: done.append("a"))
    event = a.record_event()
    b.wait_event(event)
    _C._device_enqueue(b, lambda: done.append("b"))
    assert not event.query() and not b.query()
    gate.set()
    b.synchronize()
    assert done == ["a", "b"] and event.query()


@pytest.mark.parametrize("how", ["wait_event", "wait_stream"])
def test_a_stream_that_waits_for_another_is_busy_until_that_one_has_come_there(gate, how):
    a, b = torch.dev.Stream(), torch.dev.Stream()
    hold(a, gate)
    if how == "wait_event":
        b.wait_event(a.record_event())
    else:
        b.wait_stream(a)
    assert not b.query()
    gate.set()
    b.synchronize()
    assert b.query()


def test_a_stream_waits_for_the_recording_it_saw(gate):
    """The event is recorded again, behind a gate, while the waiter has not come to its wait."""
    a, b, waiter = (torch.dev.Stream() for _ in range(3))
    first, event = threading.Event(), torch.dev.Event()
    hold(a, first)
    event.record(a)
    hold(waiter, first)
    waiter.wait_event(event)
    hold(b, gate)
    event.record(b)
    passed = threading.Event()
    _C._device_enqueue(waiter, passed.set)
    first.set()
    assert passed.wait(10) and not event.query()


def test_event_recorded_again_concerns_only_later_waiters(gate):
    a, b = torch.dev.Stream(), torch.dev.Stream()
    event = torch.dev.Event()
    event.record(b)
    b.synchronize()
    waiter = torch.dev.Stream()
    waiter.wait_event(event)
    hold(a, gate)
    event.record(a)
    waiter.synchronize()  # waits for the first recording
    assert not event.query()


def test_event_identity_and_state():
    event = torch.Event("dev")
    assert event.event_id == 0 and event.query()
    event.record()
    first = event.event_id
    other = torch.Event("dev")
    other.record()
    assert first != 0 and other.event_id not in (0, first)
    assert event.device == torch.device("dev:0")
    event.synchronize()


def test_elapsed_time(gate):
    start, end = torch.dev.Event(enable_timing=True), torch.dev.Event(enable_timing=True)
    stream = torch.dev.Stream()
    start.record(stream)
    _C._device_enqueue(stream, lambda: time.sleep(0.02))
    end.record(stream)
    with pytest.raises(RuntimeError, match="completed"):
        start.elapsed_time(end)
    end.synchronize()
    assert 15 < start.elapsed_time(end) < 2000
    plain = torch.dev.Event()
    plain.record()
    with pytest.raises(ValueError, match="enable_timing"):
        plain.elapsed_time(end)
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(torch.dev.Event(enable_timing=True))


def failing():
    raise ValueError("from a task")


@pytest.mark.parametrize("how", ["stream", "device", "event", "computation"])
def test_exception_of_a_task_is_raised_at_the_next_synchronisation_and_once(how):
    stream = torch.dev.Stream()
    done = []
    _C._device_enqueue(stream, failing)
    _C._device_enqueue(stream, lambda: done.append(1))
    event = stream.record_event()
    with pytest.raises(ValueError, match="from a task"):
        if how == "stream":
            stream.synchronize()
        elif how == "device":
            torch.dev.synchronize()
        elif how == "event":
            event.synchronize()
        else:
            with torch.dev.stream(stream):
                torch.ones(1, device="dev").add_(1)
    stream.synchronize()
    assert done == [1]


def test_current_stream_is_per_thread_and_device():
    stream = torch.dev.Stream("dev:1", priority=-1)
    seen = []
    with torch.dev.stream(stream):
        assert torch.dev.current_device() == 1
        assert torch.dev.current_stream() == stream
        assert torch.dev.current_stream(0) == torch.dev.default_stream(0)
        thread = threading.Thread(target=lambda: seen.append(torch.dev.current_stream(1).stream_id))
        thread.start()
        thread.join()
        with torch.dev.stream(None):
            assert torch.dev.current_stream() == stream
    assert seen == [0] and torch.dev.current_device() == 0
    assert torch.dev.current_stream(1) == torch.dev.default_stream(1)


def test_contexts_nest_and_survive_exceptions():
    a, b = torch.dev.Stream(), torch.Stream("dev:1")
    with pytest.raises(KeyError), torch.dev.stream(a), b:
        assert torch.accelerator.current_stream() == b
        raise KeyError
    assert torch.accelerator.current_stream().stream_id == 0
    with torch.Stream("dev"):
        assert torch.dev.current_stream().stream_id != 0


def test_a_context_can_be_entered_again():
    outer = torch.dev.stream(torch.dev.Stream("dev:1"))
    with outer, torch.dev.stream(torch.dev.Stream("dev:2")):
        with outer:
            assert torch.dev.current_stream() == outer.stream
        assert torch.dev.current_device() == 2 and torch.dev.current_stream().stream_id != 0
    assert all(torch.dev.current_stream(i).stream_id == 0 for i in range(3))


def test_streams_are_distinct_and_accept_priorities():
    ids = {torch.dev.Stream(priority=p).stream_id for p in (-1, 0, -5, 3, 0, 0)}
    assert len(ids) == 6
    with pytest.raises(RuntimeError):
        torch.dev.Stream("dev:99")
    with pytest.raises((RuntimeError, ValueError)):
        torch.dev.Stream("cpu")
    with pytest.raises(NotImplementedError):
        torch.dev.Event(interprocess=True)
    assert "id=" in repr(torch.dev.Stream())


def test_event_of_another_device_is_refused():
    event = torch.dev.Event(device="dev:1")
    assert isinstance(event, torch.dev.Event) and not isinstance(3, torch.dev.Event)
    event.record(torch.dev.default_stream(1))
    with pytest.raises(RuntimeError, match="device"):
        event.record(torch.dev.default_stream(0))


def test_worker_threads_end_when_idle():
    before = threading.active_count()
    streams = [torch.dev.Stream() for _ in range(8)]
    for s in streams:
        _C._device_enqueue(s, lambda: None)
        s.synchronize()
    assert threading.active_count() - before <= 8


def test_process_ends_with_work_in_flight(run_python):
    out = run_python(
        """
        import time, torch, torch_occl
        from occl import _C
        stream = torch.dev.Stream()
        x = torch.zeros(1 << 20, device="dev")
        with torch.dev.stream(stream):
            for _ in range(50):
                x.copy_(torch.ones(1 << 20).pin_memory(), non_blocking=True)
        print("end")
        """
    )
    assert out == "end\n"
