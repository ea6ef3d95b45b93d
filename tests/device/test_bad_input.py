"""Mistakes: each is one of PyTorch's usual exceptions, and the process goes on."""

import gc
import io
import threading

import pytest
import torch
from torch import nn

from occl import _C

MISSING = 8

USES = {
    "empty": lambda i: torch.empty(1, device=f"dev:{i}"),
    "arange": lambda i: torch.arange(3, device=f"dev:{i}"),
    "to": lambda i: torch.ones(1).to(f"dev:{i}"),
    "method": lambda i: torch.ones(1).dev(i),
    "module": lambda i: nn.Linear(1, 1).dev(i),
    "storage": lambda i: torch.ones(1).untyped_storage().dev(i),
    "default": lambda i: torch.ones(1, device=torch.device("dev", i)),
    "set_device": lambda i: torch.dev.set_device(i),
    "set_device_name": lambda i: torch.dev.set_device(f"dev:{i}"),
    "device": lambda i: torch.dev.device(i).__enter__(),
    "current_stream": lambda i: torch.dev.current_stream(i),
    "default_stream": lambda i: torch.dev.default_stream(i),
    "stream": lambda i: torch.dev.Stream(i),
    "torch.Stream": lambda i: torch.Stream(f"dev:{i}"),
    "event": lambda i: torch.dev.Event(device=i),
    "synchronize": lambda i: torch.dev.synchronize(i),
    "generator": lambda i: torch.Generator(f"dev:{i}"),
    "get_rng_state": lambda i: torch.dev.get_rng_state(i),
    "set_rng_state": lambda i: torch.dev.set_rng_state(torch.zeros(16, dtype=torch.uint8), i),
    "memory_allocated": lambda i: torch.dev.memory_allocated(i),
    "memory_stats": lambda i: torch.dev.memory_stats(i),
    "memory_snapshot": lambda i: torch.dev.memory_snapshot(i),
    "memory_summary": lambda i: torch.dev.memory_summary(i),
    "mem_get_info": lambda i: torch.dev.mem_get_info(i),
    "reset_peak": lambda i: torch.dev.reset_peak_memory_stats(i),
    "properties": lambda i: torch.dev.get_device_properties(i),
    "capability": lambda i: torch.dev.get_device_capability(i),
    "from_cpu": lambda i: torch.dev.from_cpu(torch.ones(1), i),
    "accelerator.set": lambda i: torch.accelerator.set_device_index(i),
    "accelerator.context": lambda i: torch.accelerator.device_index(i).__enter__(),
    "accelerator.synchronize": lambda i: torch.accelerator.synchronize(i),
    "accelerator.current_stream": lambda i: torch.accelerator.current_stream(i),
    "accelerator.memory": lambda i: torch.accelerator.get_memory_info(i),
    "accelerator.capability": lambda i: torch.accelerator.get_device_capability(f"dev:{i}"),
}


@pytest.mark.parametrize("use", USES)
def test_a_device_that_does_not_exist(use):
    with pytest.raises(RuntimeError, match="invalid device index 8: there are 8 devices, dev:0 to dev:7"):
        USES[use](MISSING)
    assert torch.dev.current_device() == 0


@pytest.mark.parametrize(
    "use",
    [
        torch.dev.set_device,
        lambda i: torch.dev.device(i).__enter__(),
        torch.dev.current_stream,
        torch.dev.Stream,
        lambda i: torch.dev.Event(device=i),
        torch.dev.synchronize,
        torch.dev.get_rng_state,
        torch.dev.memory_allocated,
        torch.dev.memory_snapshot,
        torch.dev.get_device_capability,
        lambda i: torch.dev.from_cpu(torch.ones(1), i),
    ],
)
def test_a_number_that_would_be_one_in_eight_bits(use):
    with pytest.raises(RuntimeError, match="invalid device index 257"):
        use(257)
    assert torch.dev.current_device() == 0


def test_a_device_of_another_type():
    for use in (torch.dev.set_device, torch.dev.synchronize, torch.dev.memory_allocated, torch.dev.Stream):
        with pytest.raises(ValueError, match="expected a dev device, got cpu"):
            use("cpu")


def unknown_streams() -> list[torch.Stream]:
    kind = torch.dev.current_stream().device_type
    return [
        torch.Stream(stream_id=number, device_index=index, device_type=kind)
        for number, index in ((999, 0), (-1, 0), (1, MISSING), (0, MISSING))
    ]


@pytest.mark.parametrize("stream", unknown_streams(), ids=["999", "-1", "of device 8", "default of device 8"])
def test_a_stream_that_does_not_exist(stream):
    x = torch.ones(3, device="dev")
    for use in (
        stream.query,
        stream.synchronize,
        stream.record_event,
        lambda: torch.dev.set_stream(stream),
        lambda: torch.accelerator.set_stream(stream),
        lambda: x.record_stream(stream),
        lambda: _C._device_enqueue(stream, lambda: None),
    ):
        with pytest.raises(RuntimeError, match=r"no stream with the id|invalid device index"):
            use()
    x = None  # what frees it looks for the streams that use it
    gc.collect()
    assert torch.ones(3, device="dev").sum().item() == 3


def test_a_stream_of_another_kind_of_device():
    cuda = torch.Stream(stream_id=1, device_index=0, device_type=1)
    x = torch.ones(3, device="dev")
    for use in (lambda: torch.dev.set_stream(cuda), lambda: x.record_stream(cuda)):
        with pytest.raises(RuntimeError, match=r"CUDA|cuda"):
            use()


def test_a_stream_of_another_device_delays_the_reuse_of_memory_as_well():
    gate, stream = threading.Event(), torch.dev.Stream("dev:1")
    x = torch.ones(1 << 20, device="dev:0")
    _C._device_enqueue(stream, gate.wait)
    x.record_stream(stream)
    address = x.data_ptr()
    del x
    assert torch.ones(1 << 20, device="dev:0").data_ptr() != address
    gate.set()
    stream.synchronize()
    assert torch.ones(1 << 20, device="dev:0").data_ptr() == address


def test_an_event_may_go_before_what_waits_for_it():
    gate = threading.Event()
    first, second = torch.dev.Stream(), torch.dev.Stream()
    _C._device_enqueue(first, gate.wait)
    event = first.record_event()
    second.wait_event(event)
    del event
    gc.collect()
    done = []
    _C._device_enqueue(second, lambda: done.append(1))
    assert not second.query()
    gate.set()
    second.synchronize()
    assert done == [1]


def test_an_event_that_was_never_recorded_is_passed():
    event, stream = torch.Event("dev"), torch.dev.Stream()
    stream.wait_event(event)
    event.wait(stream)
    event.synchronize()
    assert event.query() and stream.query()


def test_an_invalid_generator_state_changes_nothing():
    generator = torch.Generator("dev").manual_seed(5)
    before = generator.get_state()
    for state in (
        torch.zeros(15, dtype=torch.uint8),
        torch.zeros(16),
        torch.zeros(16, dtype=torch.uint8, device="dev"),
        torch.zeros(32, dtype=torch.uint8)[::2],
        torch.tensor([1, 7]).view(torch.uint8),  # no operation leaves such an offset
        "text",
    ):
        with pytest.raises((RuntimeError, TypeError)):
            generator.set_state(state)
    for offset in (7, -1):
        with pytest.raises(RuntimeError, match="multiple of 4"):
            generator.set_offset(offset)
    assert torch.equal(generator.get_state(), before)


def test_a_checkpoint_for_a_device_that_does_not_exist():
    file = io.BytesIO()
    torch.save(torch.ones(2, device="dev:7"), file)
    moved = file.getvalue().replace(b"dev:7", b"dev:9")
    with pytest.raises(RuntimeError, match=r"device 9 but torch.dev.device_count\(\) is 8.*map_location"):
        torch.load(io.BytesIO(moved))
    assert torch.load(io.BytesIO(moved), map_location="dev:1").device == torch.device("dev:1")


def test_a_stream_without_a_thread_is_an_error_and_works_later(run_python):
    run_python(
        """
        import resource, torch, torch_occl
        stream, x, y = torch.dev.Stream(), torch.zeros(4, device="dev"), torch.ones(4).pin_memory()
        x.add_(0)
        x.record_stream(stream)
        unlimited = resource.getrlimit(resource.RLIMIT_AS)
        now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 20), unlimited[1]))  # no room for a stack
        try:
            with torch.dev.stream(stream):
                x.copy_(y, non_blocking=True)
        except RuntimeError as error:
            assert "cannot start the thread of a stream" in str(error), error
        else:
            raise AssertionError
        assert stream.query()
        address = x.data_ptr()
        del x  # its stream is idle, and cannot be told
        assert torch.ones(4, device="dev").data_ptr() == address
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
        x = torch.zeros(4, device="dev")
        with torch.dev.stream(stream):
            x.copy_(y, non_blocking=True)
        stream.synchronize()
        assert x.sum().item() == 4
        """
    )
