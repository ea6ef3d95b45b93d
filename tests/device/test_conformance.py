"""What PyTorch's code and its users take for granted of an accelerator, where no other file looks at it."""

import inspect
import types

import pytest
import torch
from torch import nn

from tests.support.running import PYTORCH

NAMES = [
    "is_available",
    "is_initialized",
    "init",
    "device_count",
    "current_device",
    "set_device",
    "device",
    "device_of",
    "Stream",
    "Event",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    "synchronize",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "initial_seed",
    "get_rng_state",
    "get_rng_state_all",
    "set_rng_state",
    "set_rng_state_all",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_stats",
    "memory_summary",
    "memory_snapshot",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
    "mem_get_info",
    "empty_cache",
    "set_per_process_memory_fraction",
    "get_per_process_memory_fraction",
    "get_device_properties",
    "get_device_name",
    "get_device_capability",
    "is_bf16_supported",
    "get_amp_supported_dtype",
    "default_generators",
]


def test_torch_dev_offers_what_torch_cuda_offers_and_this_device_has():
    assert set(NAMES) <= set(torch.dev.__all__)
    in_cuda = [name for name in NAMES if not hasattr(torch.cuda, name)]
    assert in_cuda == ["get_amp_supported_dtype"]
    assert not hasattr(torch.dev, "ExternalStream")
    assert callable(torch.dev._is_in_bad_fork) and callable(torch.dev._lazy_init)


@pytest.mark.parametrize("name", torch.dev.__all__)
def test_every_public_function_is_typed_and_documented(name):
    value = getattr(torch.dev, name)
    if name == "default_generators":
        return
    assert value.__doc__
    if isinstance(value, types.FunctionType):
        signature = inspect.signature(value)
        assert signature.return_annotation is not inspect.Signature.empty
        for parameter in signature.parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, parameter.name


def test_set_stream_makes_the_device_of_the_stream_current():
    stream = torch.dev.Stream("dev:2")
    torch.dev.set_stream(stream)
    try:
        assert torch.dev.current_device() == 2 and torch.dev.current_stream() == stream
        torch.dev.set_stream(None)
        assert torch.dev.current_stream() == stream
    finally:
        torch.dev.set_stream(torch.dev.default_stream(2))
        torch.dev.set_device(0)


def test_events_that_were_not_recorded_have_neither_id_nor_device():
    for event in (torch.Event("dev"), torch.Event("dev:1"), torch.Event(), torch.dev.Event()):
        assert event.device.type == "dev" and event.device.index is None and event.event_id == 0
        assert event.query()


def test_events_know_the_device_of_their_stream():
    stream = torch.Stream("dev:1")
    first, second = stream.record_event(), stream.record_event()
    assert first.device == second.device == torch.device("dev:1")
    assert 0 not in (first.event_id, second.event_id) and first.event_id != second.event_id


def test_streams_by_number_and_by_their_parts():
    stream = torch.Stream(1)
    assert stream.device == torch.device("dev:1")
    same = torch.Stream(
        stream_id=stream.stream_id, device_type=stream.device_type, device_index=stream.device_index
    )
    assert same == stream and hash(same) == hash(stream)
    assert "device_type=dev, device_index=1" in repr(stream)


def test_any_dense_tensor_can_take_the_data_of_any_other():
    for here, there in (("cpu", "dev"), ("dev", "cpu"), ("dev:0", "dev:1")):
        x, y = torch.randn(4, 4, device=here), torch.randn(3, device=there)
        assert torch._has_compatible_shallow_copy_type(x, y)
        x.data = y
        assert x.data_ptr() == y.data_ptr() and x.device == y.device and torch.equal(x, y)
    sparse = torch.eye(3, device="dev").to_sparse()
    assert not torch._has_compatible_shallow_copy_type(torch.ones(3), sparse)


def test_location_tags_and_restoring_by_them():
    assert torch.serialization.location_tag(torch.UntypedStorage(4, device="dev")) == "dev:0"
    assert torch.serialization.location_tag(torch.UntypedStorage(4, device="dev:1")) == "dev:1"
    storage = torch.ones(4).untyped_storage()
    for tag, index in (("dev", 0), ("dev:0", 0), ("dev:1", 1)):
        restored = torch.serialization.default_restore_location(storage, tag)
        assert restored.is_dev and restored.device.index == index


def test_the_name_is_taken_once():
    torch.utils.rename_privateuse1_backend("dev")  # the same again is fine
    with pytest.raises(RuntimeError, match="has already been set"):
        torch.utils.rename_privateuse1_backend("other")
    with pytest.raises(RuntimeError, match="has already been registered"):
        torch._register_device_module("dev", types.ModuleType("other"))
    if PYTORCH >= (2, 13):  # before, the enumerations do not take the name
        assert torch._C._autograd.DeviceType.PrivateUse1 == torch._C._autograd.DeviceType.DEV
        assert torch._C._profiler.ProfilerActivity.PrivateUse1 == torch._C._profiler.ProfilerActivity.DEV


def test_types_by_name():
    assert torch.randn(2).type("torch.dev.DoubleTensor").dtype == torch.float64
    for dtype, name in ((torch.bool, "Bool"), (torch.half, "Half"), (torch.int64, "Long")):
        assert torch.empty(1, dtype=dtype, device="dev").type() == f"torch.dev.{name}Tensor"


def test_a_default_device():
    torch.set_default_device("dev:1")
    try:
        made = [torch.ones(2), torch.tensor([1]), nn.Linear(1, 1).weight, torch.randn(2), torch.arange(3)]
    finally:
        torch.set_default_device(None)
    assert {x.device for x in made} == {torch.device("dev:1")}


def test_models_over_several_devices():
    parts = nn.ModuleList([nn.Linear(2, 2).to("dev:0"), nn.Linear(2, 2).to("dev:1")])
    parts[1](parts[0](torch.ones(1, 2, device="dev:0")).to("dev:1")).sum().backward()
    norm = nn.utils.clip_grad_norm_(parts.parameters(), 0.1)
    assert norm.item() > 0.1
    total = sum(p.grad.pow(2).sum().item() for p in parts.parameters())
    assert total == pytest.approx(0.01, rel=1e-3)
    for fused in (False, True):
        torch.optim.AdamW(parts.parameters(), fused=fused).step()


def test_huge_pages_are_asked_for():
    x = torch.ones(1 << 20, device="dev")
    with open("/proc/self/smaps") as maps:
        lines = iter(maps)
        for line in lines:
            if "memfd:occl-dev" in line:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                if start <= x.data_ptr() < end:
                    break
        else:
            raise AssertionError("no map of device memory")
        flags = next(line for line in lines if line.startswith("VmFlags:"))
    assert " hg" in flags


@pytest.mark.full
def test_dtensor_finds_the_generator_it_expects(run_python):
    run_python(
        """
        import torch, torch_occl
        import torch.distributed as dist
        from torch.distributed.tensor import Shard, init_device_mesh, randn
        from torch.distributed.tensor import _random
        dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
        mesh = init_device_mesh("dev", (1,))
        torch.manual_seed(1)
        first, second = (randn(4, 4, device_mesh=mesh, placements=[Shard(0)]) for _ in range(2))
        assert isinstance(_random._rng_tracker, _random.OffsetBasedRNGTracker)
        assert first.device.type == "dev" and not torch.equal(first.full_tensor(), second.full_tensor())
        assert torch.dev.get_rng_state().view(torch.int64)[1] > 0
        dist.destroy_process_group()
        """
    )
