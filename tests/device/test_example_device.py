"""What the tests of PyTorch's example of an outside device (torch_openreg) assert, where it makes sense for
`dev` and no other file here looks at it. `docs/pytorch.md` has the rest, each with its reason.
"""

import io
import pickle
import types
import unittest.mock
import warnings
from multiprocessing.reduction import ForkingPickler

import numpy
import pytest
import torch
from torch.testing._internal.common_device_type import (
    instantiate_device_type_tests,
    onlyCPU,
    onlyNativeDeviceTypes,
    onlyPRIVATEUSE1,
    skipPRIVATEUSE1If,
)
from torch.testing._internal.common_utils import TestCase
from torch.utils import backend_registration

from tests.support.running import PYTORCH

# ---- autocast ------------------------------------------------------------------------------------------


def test_autocast_has_the_dtypes_and_lists_of_other_accelerators():
    x, y = torch.randn(2, 3, device="dev"), torch.randn(3, 3, device="dev")
    assert torch.get_autocast_dtype("dev") == torch.float16
    with torch.autocast("dev"):
        assert torch.is_autocast_enabled("dev")
        assert torch.mm(x, y).dtype == torch.float16
        half = torch.ones(2, dtype=torch.float16, device="dev")
        assert torch.dot(half, half).dtype == torch.float16  # in no list: computed as it comes
        assert torch.exp(half).dtype == torch.float32
        assert torch.cat([half, half.float()]).dtype == torch.float32
    with torch.autocast("dev", dtype=torch.bfloat16):
        assert torch.nn.functional.linear(x, y).dtype == torch.bfloat16
    assert torch.mm(x, y).dtype == torch.float32 and not torch.is_autocast_enabled("dev")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
def test_autocast_to_a_type_that_it_does_not_have_warns_and_is_off(dtype):
    with (
        pytest.warns(UserWarning, match="In dev autocast, but the target dtype is not supported"),
        torch.autocast("dev", dtype=dtype),
    ):
        assert not torch.is_autocast_enabled("dev")


# ---- devices and memory --------------------------------------------------------------------------------


def test_what_the_accelerator_tells():
    zero, one = (torch.accelerator.get_device_capability(f"dev:{i}") for i in (0, 1))
    assert zero["supported_dtypes"] == one["supported_dtypes"]
    free, total = torch.accelerator.get_memory_info("dev:1")
    assert 0 < free <= total == torch.dev.mem_get_info(1)[1]
    x = torch.empty(1000, device="dev:1")
    assert torch.accelerator.memory_allocated(1) >= x.nbytes
    with pytest.raises(RuntimeError, match="invalid device index 99"):
        torch.accelerator.get_memory_info(99)


def test_an_error_leaves_the_device_as_it_is():
    with torch.accelerator.device_index(1):
        with pytest.raises(RuntimeError):
            torch.matmul(torch.randn(5, 5, device="dev"), torch.randn(3, 3, device="dev"))
        assert torch.accelerator.current_device_index() == 1
        assert (torch.ones(2, device="dev") + 1).device.index == 1


# ---- storages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [2, 8])
def test_a_storage_can_begin_anywhere_in_another(start):
    whole = torch.arange(40, dtype=torch.uint8, device="dev:1")
    rest = whole.untyped_storage()[start:]
    part = torch.tensor((), dtype=torch.uint8, device="dev:1").set_(rest, 0, (5,), (1,))
    assert part.tolist() == list(range(start, start + 5)) and part.device == whole.device
    assert part.data_ptr() == whole.data_ptr() + start
    pinned = torch.randn(10).pin_memory()
    again = torch.tensor(()).set_(pinned.untyped_storage()[start:], 0, (5,), (1,))
    assert again.is_pinned() and again.data_ptr() == pinned.data_ptr() + start


def test_offsets_and_strides_into_a_storage_survive():
    base = torch.arange(10.0, device="dev:1")
    view = torch.tensor((), device="dev:1").set_(base.untyped_storage(), 3, (3,), (2,))
    assert view.storage_offset() == 3 and view.tolist() == [3, 5, 7]
    assert view.untyped_storage().data_ptr() == base.data_ptr()
    file = io.BytesIO()
    torch.save(view, file)
    file.seek(0)
    copies = [
        torch.load(file),
        pickle.loads(pickle.dumps(view)),
        pickle.loads(ForkingPickler.dumps(view)),  # as another process gets it
        torch.as_strided(base, (3,), (2,), 3),
    ]
    for copy in copies:
        assert (copy.storage_offset(), copy.stride(), copy.tolist()) == (3, (2,), [3, 5, 7])
        assert copy.device == torch.device("dev:1") and copy.untyped_storage().nbytes() == 40
    typed = torch.empty(3, 4, device="dev")
    typed.set_(base.to("dev:0").storage(), 2, (2, 4))
    assert typed.tolist() == [[2, 3, 4, 5], [6, 7, 8, 9]]
    assert base.storage().size() == 10 and base.storage().device.type == "dev"


def test_tensors_take_the_data_of_another_device():
    for kinds in (("cpu", "dev"), ("dev", "cpu"), ("dev:0", "dev:1")):
        x, y = (torch.randn(4, 4, device=kind) for kind in kinds)
        assert torch._has_compatible_shallow_copy_type(x, y)
        x.data = y
        assert torch.equal(x, y) and x.data_ptr() == y.data_ptr() and x.device == y.device


def test_saving_goes_without_storages():
    """As PyTorch saves what has none: by way of the CPU; and what NumPy carried in older files."""
    x = torch.randn(2, 3)
    with unittest.mock.patch.object(torch._C, "_has_storage", return_value=False):
        rebuild = x.dev()._reduce_ex_internal(2)[0]
        assert rebuild is torch._utils._rebuild_device_tensor_from_cpu_tensor
        file = io.BytesIO()
        torch.save({"x": x.dev()}, file)
        with (
            torch.serialization.skip_data(),
            pytest.raises(RuntimeError, match="Cannot serialize tensors on backends with no storage"),
        ):
            torch.save({"x": x.dev()}, io.BytesIO())
    for place, device in ((None, "dev:0"), ("cpu", "cpu"), ("dev:2", "dev:2")):
        file.seek(0)
        loaded = torch.load(file, weights_only=True, map_location=place)["x"]
        assert loaded.device == torch.device(device) and torch.equal(loaded.cpu(), x)
    old = torch._utils._rebuild_device_tensor_from_numpy(
        numpy.array([[1, 2], [3, 4]], numpy.float32), torch.float32, "dev:1", False
    )
    assert old.device == torch.device("dev:1") and old.tolist() == [[1, 2], [3, 4]]


# ---- names ---------------------------------------------------------------------------------------------


def test_what_is_registered_is_registered_once():
    torch.utils.rename_privateuse1_backend("dev")
    with pytest.raises(RuntimeError, match="has already been set"):
        torch.utils.rename_privateuse1_backend("other")
    with pytest.raises(RuntimeError, match="Expected one of cpu"):
        torch._register_device_module("other", types.ModuleType("other"))
    with pytest.raises(RuntimeError, match="The runtime module of"):
        torch._register_device_module("dev", types.ModuleType("other"))
    with pytest.raises(RuntimeError, match="The custom device module of"):
        torch.utils.generate_methods_for_privateuse1_backend()
    with pytest.raises(RuntimeError, match=r"Try to call torch.dev.no_such"):
        backend_registration._get_custom_mod_func("no_such")
    assert backend_registration._get_custom_mod_func("device_count")() == torch.dev.device_count()


@pytest.mark.skipif(PYTORCH < (2, 13), reason="PyTorch 2.13 has it first")
def test_pytorchs_enumerations_know_the_name():
    from torch._C._autograd import DeviceType
    from torch._C._profiler import ProfilerActivity

    for kind in (DeviceType, ProfilerActivity):
        assert (
            kind.PrivateUse1 == kind.DEV
            and kind.DEV.name == "DEV"
            and str(kind.DEV) == f"{kind.__name__}.DEV"
        )


def test_methods_by_name():
    x = torch.empty(4, 4)
    packed = torch.nn.utils.rnn.PackedSequence(torch.rand(5, 3), torch.ones(5, dtype=torch.int64))
    for thing in (x, x.storage(), x.untyped_storage(), packed):
        assert not thing.is_dev and thing.dev().is_dev
    assert packed.dev().data.is_dev and torch.nn.Linear(2, 2).dev().weight.is_dev
    for place, index in ((torch.device("dev"), 0), (torch.device("dev:1"), 1), (2, 2), (None, 0)):
        assert x.dev(place).device == torch.device("dev", index)


def test_types_of_storages_by_name(monkeypatch):
    class FloatStorage:
        pass

    FloatStorage.__module__ = "torch.dev"
    storage = torch.ones(3, device="dev").storage()
    assert storage.type() == "torch.storage.TypedStorage"
    monkeypatch.setattr(torch.dev, "FloatStorage", FloatStorage, raising=False)
    assert storage.type() == "torch.dev.FloatStorage"
    assert torch.ones(3, dtype=torch.int32, device="dev").storage().type() == "torch.storage.TypedStorage"


# ---- streams, events, the profiler ---------------------------------------------------------------------


def test_streams_and_events_through_pytorchs_own_classes():
    assert torch.Stream(1).device == torch.device("dev:1")
    stream = torch.Stream(device="dev:1")
    assert "torch.Stream device_type=dev, device_index=1" in repr(stream) and stream.query()
    torch.Stream(device="dev:0").wait_stream(stream)
    with stream:
        assert torch.accelerator.current_stream() == stream
    event = stream.record_event()
    assert event.device.index == 1 and event.event_id != stream.record_event().event_id != 0
    untimed = [torch.Event(device="dev:1") for _ in range(2)]
    for event in untimed:
        stream.record_event(event)
    stream.synchronize()
    with pytest.raises(ValueError, match="Both events must be created with argument 'enable_timing=True'"):
        untimed[0].elapsed_time(untimed[1])
    here = [torch.Event("dev", enable_timing=True) for _ in range(2)]
    here[0].record(torch.Stream("dev"))
    here[0].synchronize()
    here[1].record()  # in the current stream
    here[1].synchronize()
    assert here[0].elapsed_time(here[1]) > 0


def test_the_profiler_by_the_name_of_the_device(tmp_path):
    with torch.autograd.profiler.profile(use_device="dev", record_shapes=True) as profile:
        x = torch.randn(10, 10, device="dev", requires_grad=True)
        with torch.profiler.record_function("mine"), torch.Stream(device="dev"):
            (x @ x).sum().backward()
    names = {event.name for event in profile.function_events}
    assert {"mine", "aten::mm"} <= names and any("Backward" in name for name in names)
    assert "aten::mm" in profile.key_averages(group_by_input_shape=True).table()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    assert (tmp_path / "trace.json").stat().st_size > 0
    with torch.autograd.profiler.profile(use_device="dev") as empty:
        pass
    assert isinstance(empty.function_events, list)


# ---- operators -----------------------------------------------------------------------------------------


def test_out_through_strides():
    x, out = torch.randn(2, 2, 3), torch.randn(2, 2, 6)
    x_dev, out_dev = x.dev(), out.dev()
    torch.abs(x, out=out[:, :, 0:6:2])
    torch.abs(x_dev, out=out_dev[:, :, 0:6:2])
    assert torch.equal(out, out_dev.cpu())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the view has the wrong size: resized, it covers more of the storage
        torch.abs(x, out=out[:, :, 0:6:3])
        torch.abs(x_dev, out=out_dev[:, :, 0:6:3])
    assert torch.equal(out, out_dev.cpu())


def test_factories_without_tensors():
    assert torch.equal(torch.triu_indices(3, 3, device="dev").cpu(), torch.triu_indices(3, 3))
    with torch._subclasses.FakeTensorMode():
        total = torch.empty(3, 3, device="dev") + torch.empty(3, 3, device="dev:0")
    assert total.device == torch.device("dev:0") and total.shape == (3, 3)


@pytest.mark.filterwarnings("ignore")
def test_graphs_change_devices_and_types():
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def leave(x):
        return (x + 1).cpu() * 2

    @torch.compile(backend="aot_eager", fullgraph=True)
    def multiply(x, y):
        with torch.autocast("dev", dtype=torch.float16):
            return torch.mm(x, y)

    x = torch.randn(3, 3, device="dev")
    assert torch.equal(leave(x), (x + 1).cpu() * 2) and multiply(x, x).dtype == torch.float16
    with torch.device("dev"):
        made = torch.compile(lambda x: x + torch.ones(3), backend="aot_eager", fullgraph=True)
        assert torch.equal(made(x), x + 1)
    torch._dynamo.reset()


# ---- PyTorch's framework for tests of devices ----------------------------------------------------------


class TestDevices(TestCase):
    def test_is_called_with_the_device(self, device):
        self.assertEqual(torch.device(device).type, "dev")
        self.assertEqual(torch.ones(2, device=device).cpu(), torch.ones(2))

    @onlyPRIVATEUSE1
    def test_for_outside_devices(self, device):
        self.assertEqual(torch.device(device).type, "dev")

    @onlyNativeDeviceTypes
    def test_for_native_devices(self, device):
        self.assertEqual(torch.device(device).type, "dev")

    @onlyCPU
    def test_of_the_cpu_is_skipped(self, device):
        raise AssertionError

    @skipPRIVATEUSE1If(True, "is skipped here")
    def test_that_is_skipped(self, device):
        raise AssertionError


instantiate_device_type_tests(TestDevices, globals(), only_for=("dev",))
