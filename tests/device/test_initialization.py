"""What uses a device: whatever initializes torch.cuda, function by function, and nothing else.

PyTorch takes a device that is in use as chosen: init_device_mesh leaves the process where it is, and fake
tensors lie where the process is. What is not in use may be forked.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

USES = {
    "can_device_access_peer": "m.can_device_access_peer(0, 1)",
    "current_device": "m.current_device()",
    "current_stream": "m.current_stream()",
    "default_stream": "m.default_stream(0)",
    "device": "m.device(0).__enter__()",
    "device_of": "m.device_of(on_device).__enter__()",
    "get_device_capability": "m.get_device_capability(0)",
    "get_device_name": "m.get_device_name(0)",
    "get_device_properties": "m.get_device_properties(0)",
    "get_per_process_memory_fraction": "m.get_per_process_memory_fraction(0)",
    "get_rng_state": "m.get_rng_state(0)",
    "get_rng_state_all": "m.get_rng_state_all()",
    "init": "m.init()",
    "initial_seed": "m.initial_seed()",
    "is_bf16_supported": "m.is_bf16_supported()",
    "is_tf32_supported": "m.is_tf32_supported()",
    "mem_get_info": "m.mem_get_info(0)",
    "memory_summary": "m.memory_summary()",
    "reset_accumulated_memory_stats": "m.reset_accumulated_memory_stats()",
    "reset_peak_memory_stats": "m.reset_peak_memory_stats()",
    "set_device": "m.set_device(1)",
    "set_per_process_memory_fraction": "m.set_per_process_memory_fraction(0.5, 0)",
    "set_stream": "m.set_stream(stream_of_ids)",
    "Stream": "m.Stream(0)",
    "stream": "m.stream(stream_of_ids).__enter__()",
    "StreamContext": "m.StreamContext(stream_of_ids).__enter__()",
    "synchronize": "m.synchronize(0)",
    "_exchange_device": "m._exchange_device(1)",
    "_maybe_exchange_device": "m._maybe_exchange_device(1)",
}

USES_NOT = {
    "default_generators": "m.default_generators",
    "device_count": "m.device_count()",
    "empty_cache": "m.empty_cache()",
    "Event": "m.Event(enable_timing=True)",
    "is_available": "m.is_available()",
    "is_current_stream_capturing": "m.is_current_stream_capturing()",
    "is_initialized": "m.is_initialized()",
    "manual_seed": "m.manual_seed(1)",
    "manual_seed_all": "m.manual_seed_all(1)",
    "max_memory_allocated": "m.max_memory_allocated()",
    "max_memory_reserved": "m.max_memory_reserved()",
    "memory_allocated": "m.memory_allocated()",
    "memory_reserved": "m.memory_reserved()",
    "memory_snapshot": "m.memory_snapshot()",
    "memory_stats": "m.memory_stats()",
    "memory_stats_as_nested_dict": "m.memory_stats_as_nested_dict()",
    "seed": "m.seed()",
    "seed_all": "m.seed_all()",
    "set_rng_state": "m.set_rng_state(state, 0)",
    "set_rng_state_all": "m.set_rng_state_all([state])",
}

NOT_A_USE_WITH_THESE_ARGUMENTS = [
    "m.set_device(-1)",
    "m.device(-1).__enter__()",
    "m._exchange_device(-1)",
    "m._maybe_exchange_device(-1)",
]

# Has no counterpart in torch.cuda: a class, a question about names, and tensors that exist already.
NEITHER = {"DeviceProperties", "OutOfMemoryError", "as_cpu", "from_cpu", "get_amp_supported_dtype"}

# Through PyTorch's own functions.
ELSEWHERE_USES = [
    "torch.accelerator.set_device_index(1)",
    "torch.accelerator.current_device_index()",
    "torch.accelerator.device_index(1).__enter__()",
    "torch.accelerator.current_stream()",
    "torch.accelerator.set_stream(stream_of_ids)",
    "torch.accelerator.synchronize()",
    "torch.accelerator.get_memory_info()",
    "torch._C._accelerator_exchangeDevice(1)",
    "torch._C._accelerator_maybeExchangeDevice(1)",
    "torch._C._accelerator_hooks_set_current_device(1)",
    "torch._C._accelerator_hooks_exchange_device(1)",
    "torch.empty(0, device='dev')",
    "torch.empty(1, device='dev:1')",
    "torch.ones(2).to('dev')",
    "torch.Stream(device='dev:1')",
    "m.from_cpu(torch.ones(2))",
    "torch.UntypedStorage(4, device='dev')",
]
ELSEWHERE_USES_NOT = [
    "torch.manual_seed(1)",
    "torch.seed()",
    "torch.accelerator.is_available()",
    "torch.accelerator.device_count()",
    "torch.accelerator.current_accelerator()",
    "torch.accelerator.memory_allocated()",
    "torch.accelerator.memory_stats()",
    "torch.accelerator.empty_cache()",
    "torch.Event(device='dev')",
    "torch.device('dev:1')",
    "torch.get_device_module('dev')",
    "torch.random.fork_rng(enabled=False, device_type='dev').__enter__()",
    "torch.ones(2, requires_grad=True).sum().backward()",  # starts a thread of autograd for each device
    "torch.ones(2, device='meta')",
]

IN_CHILDREN = """
    import json, os, sys, torch, torch_occl

    def uses(code):
        m, state = torch.dev, torch.zeros(16, dtype=torch.uint8)
        on_device = __import__("types").SimpleNamespace(device=torch.device("dev", 0))
        stream_of_ids = m.Stream(stream_id=0, device_index=1, device_type=PRIVATEUSE1)
        assert not m.is_initialized()
        eval(code, {"m": m, "torch": torch, **locals()})
        return m.is_initialized()

    PRIVATEUSE1 = 20
    results = {}
    for code in json.loads(sys.argv[1]):
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(10 + uses(code))
            except BaseException as error:
                print(code, repr(error), file=sys.stderr, flush=True)
                os._exit(1)
        results[code] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps({code: {10: False, 11: True}.get(result, "failed") for code, result in results.items()}))
"""


def test_every_function_of_torch_dev_is_compared():
    compared = {*USES, *USES_NOT, *NEITHER}
    assert set(torch.dev.__all__) == {name for name in compared if not name.startswith("_")}
    assert all(hasattr(torch.cuda, name) for name in {*USES, *USES_NOT})


@pytest.mark.full
def test_the_same_functions_use_a_device_as_initialize_cuda(run_python):
    """Each in a process that has used no device before."""
    expected = {
        **dict.fromkeys([*USES.values(), *ELSEWHERE_USES], True),
        **dict.fromkeys([*USES_NOT.values(), *NOT_A_USE_WITH_THESE_ARGUMENTS, *ELSEWHERE_USES_NOT], False),
    }
    found = json.loads(run_python(IN_CHILDREN, arguments=[json.dumps(list(expected))]))
    assert {code: use for code, use in found.items() if use != expected[code]} == {}


class Initializes(Exception):
    pass


@pytest.mark.parametrize("code", [*USES.values(), *USES_NOT.values(), *NOT_A_USE_WITH_THESE_ARGUMENTS])
def test_the_table_says_what_torch_cuda_does(code, monkeypatch):
    """torch.cuda with its initialization replaced, and with it what a build for the CPU lacks."""

    def initializes(*args, **kwargs):
        raise Initializes

    m = torch.cuda
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        monkeypatch.setattr(module, "_lazy_init", initializes)
    monkeypatch.setattr(m, "is_available", lambda: True)
    monkeypatch.setattr(m.random, "device_count", lambda: 2)
    for name in ("_exchange_device", "_maybe_exchange_device"):
        monkeypatch.setattr(m, name, lambda index: -1 if index < 0 else initializes())
    monkeypatch.setattr(torch._C, "_cuda_setDevice", initializes, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_setStream", initializes, raising=False)  # makes a device current
    monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", lambda _: {"segments": []}, raising=False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(m.graphs, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    scope = {
        "m": m,
        "torch": torch,
        "state": torch.zeros(16, dtype=torch.uint8),
        "on_device": SimpleNamespace(is_cuda=True, get_device=lambda: 0),
        "stream_of_ids": SimpleNamespace(stream_id=0, device_index=1, device_type=1),
    }
    if code in ("m.Event(enable_timing=True)",):
        pytest.skip("made by C++ that a build for the CPU lacks: it asks for no device")
    if code in USES.values():
        with pytest.raises(Initializes):
            eval(code, scope)
    else:
        eval(code, scope)


def test_the_device_that_the_process_chose_stays(run_python):
    run_python(
        """
        import torch, torch_occl
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        torch.dev.set_device(3)
        assert torch.dev.is_initialized()
        with torch._subclasses.FakeTensorMode():
            assert torch.empty(2, device="dev").device == torch.device("dev:3")
        dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
        init_device_mesh("dev", (1,))
        assert torch.dev.current_device() == 3
        dist.destroy_process_group()
        """
    )


def test_a_mesh_chooses_the_device_where_the_process_has_not(run_python):
    run_python(
        """
        import torch, torch_occl
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        dist.init_process_group("occl", store=dist.HashStore(), rank=0, world_size=1)
        assert not torch.dev.is_initialized()
        init_device_mesh("dev", (1,))
        assert torch.dev.is_initialized() and torch.dev.current_device() == 0
        dist.destroy_process_group()
        """
    )


def test_a_device_that_does_not_exist_is_not_exchanged_for():
    torch.dev.set_device(2)
    maybe, certain = torch.dev._maybe_exchange_device, torch.dev._exchange_device
    for index in (100, torch.dev.device_count()):
        for exchange in (maybe, torch._C._accelerator_hooks_maybe_exchange_device):
            assert exchange(index) == 2 and torch.dev.current_device() == 2
        torch._C._accelerator_maybeExchangeDevice(index)
        assert torch.dev.current_device() == 2
        for exchange in (certain, torch._C._accelerator_exchangeDevice):
            with pytest.raises(RuntimeError, match=f"invalid device index {index}"):
                exchange(index)
    assert maybe(-1) == certain(-1) == -1 and torch.dev.current_device() == 2
    assert maybe(5) == 2 and torch.dev.current_device() == 5
    assert certain(0) == 5 and torch.dev.current_device() == 0
