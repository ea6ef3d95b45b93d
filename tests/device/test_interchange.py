"""Tensors on `dev` used from outside: the CPU, NumPy, other processes, profilers, compilers, transforms."""

import copy

import numpy
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


def test_as_cpu_and_back_share_memory():
    x = torch.arange(6.0, device="dev:1").view(2, 3).t()
    y = torch.dev.as_cpu(x)
    assert y.device.type == "cpu" and y.data_ptr() == x.data_ptr() and y.stride() == x.stride()
    y[0, 0] = 9
    assert x[0, 0].item() == 9
    del x
    assert y.sum().item() == 24  # the memory lives on
    z = torch.dev.from_cpu(y, 2)
    assert z.device == torch.device("dev:2") and z.data_ptr() == y.data_ptr()
    z.mul_(2)
    assert y.sum().item() == 48
    assert (z + 1).device == z.device and z.untyped_storage().device == z.device
    with pytest.raises(RuntimeError, match="not resizable"):
        z.resize_(100)
    with pytest.raises(ValueError):
        torch.dev.as_cpu(y)
    with pytest.raises(ValueError):
        torch.dev.from_cpu(z)
    p = nn.Parameter(torch.ones(2, device="dev"))
    assert not torch.dev.as_cpu(p).requires_grad


def test_dlpack_and_numpy_without_a_copy():
    x = torch.arange(4.0, device="dev")
    array = numpy.from_dlpack(x)
    assert array.ctypes.data == x.data_ptr() and array.tolist() == [0, 1, 2, 3]
    x.add_(1)
    assert array.tolist() == [1, 2, 3, 4]
    t = torch.from_dlpack(x)
    assert t.device.type == "cpu" and t.data_ptr() == x.data_ptr()
    back = torch.dev.from_cpu(torch.from_dlpack(numpy.ones(3, dtype="float32")))
    assert back.device.type == "dev" and back.sum().item() == 3
    with pytest.raises(BufferError, match="require gradient"):
        x.requires_grad_().__dlpack__()
    assert torch.from_dlpack(torch.ones(2)).tolist() == [1, 1]  # the CPU as before
    assert torch.from_numpy(numpy.ones(2)).dev().device.type == "dev"


def test_copy_on_write():
    for d in ("cpu", "dev"):
        x = torch.ones(3, device=d)
        y = torch._lazy_clone(x)
        assert y.add(1).tolist() == [2, 2, 2]
        y.add_(x)
        assert x.tolist() == [1, 1, 1] and y.tolist() == [2, 2, 2]
        z = torch._lazy_clone(x)
        torch.add(z, z, out=z)
        assert x.tolist() == [1, 1, 1] and z.tolist() == [2, 2, 2]


def test_parameters_keep_their_identity_when_they_move():
    model = nn.Linear(2, 2)
    weight = model.weight
    weight.grad = torch.ones(2, 2)
    model.to("dev")
    assert model.weight is weight and weight.device.type == "dev" and weight.grad.device.type == "dev"
    model.cpu()
    assert model.weight is weight and weight.device.type == "cpu"
    a, b = torch.ones(3, device="dev"), torch.zeros(2)
    torch.utils.swap_tensors(a, b)
    assert a.device.type == "cpu" and b.device.type == "dev"


def test_nested_tensors():
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    for layout in (torch.strided, torch.jagged):
        x = torch.nested.nested_tensor([p.dev() for p in parts], layout=layout)
        assert x.device.type == "dev"
        for a, b in zip((x * 2).unbind(), parts, strict=False):
            assert torch.equal(a.cpu(), b * 2)
        if layout == torch.strided:
            assert torch.equal(x.to_padded_tensor(0.0)[1].cpu(), parts[1])


def test_function_transforms():
    def f(w, x):
        return (x @ w).tanh().sum()

    w, x = torch.randn(3, 4), torch.randn(5, 3)
    per_sample = torch.func.vmap(torch.func.grad(f), in_dims=(None, 0))
    torch.testing.assert_close(per_sample(w.dev(), x.dev()).cpu(), per_sample(w, x))
    v = torch.randn(3)
    torch.testing.assert_close(
        torch.func.hessian(lambda t: (t**3).sum())(v.dev()).cpu(),
        torch.func.hessian(lambda t: (t**3).sum())(v),
    )
    primal, tangent = torch.func.jvp(torch.sin, (v.dev(),), (v.dev(),))
    torch.testing.assert_close(tangent.cpu(), v.cos() * v)
    assert primal.device.type == "dev"


def test_export_and_trace():
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).dev(), torch.randn(2, 3, device="dev")
    exported = torch.export.export(model, (x,))
    assert torch.equal(exported.module()(x), model(x))
    assert torch.equal(torch.jit.trace(model, x)(x), model(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1)).dev()
    compiled = torch.compile(copy.deepcopy(model), backend=backend)
    x = torch.randn(4, 3, device="dev")
    out, expected = compiled(x), model(x)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    expected.sum().backward()
    for a, b in zip(compiled.parameters(), model.parameters(), strict=False):
        torch.testing.assert_close(a.grad, b.grad)


def test_dynamo_knows_the_device():
    from torch._dynamo.device_interface import get_interface_for_device, get_registered_device_interfaces

    interface = get_interface_for_device("dev")
    assert interface is get_interface_for_device(torch.device("dev:1")) and "dev" in dict(
        get_registered_device_interfaces()
    )
    assert interface.device_count() == torch.dev.device_count() and interface.current_device() == 0
    assert interface.Worker.current_device() == 0 and interface.is_bf16_supported()
    with interface.device(1):
        assert interface.current_device() == 1
    assert interface.get_raw_stream(0) == 0 and interface.is_dtype_supported(torch.float64)
    interface.synchronize()


def test_questions_about_the_device_are_compiled_without_a_break():
    side = [torch.dev.Stream(f"dev:{index}") for index in range(2)]

    def f(x, side):
        first = torch.dev.current_stream()
        side.wait_stream(first)
        with torch.dev.stream(side), torch.dev.stream(None):
            y = x + torch.dev.current_device()
        first.wait_stream(side)
        torch.dev.synchronize()
        return y + torch.dev.device_count()

    compiled, x = torch.compile(f, backend="aot_eager", fullgraph=True), torch.ones(2, device="dev")
    for index in (0, 1, 0):  # the answer is no constant
        with torch.dev.device(index):
            assert compiled(x, side[index]).tolist() == [1 + index + torch.dev.device_count()] * 2


@pytest.mark.parametrize("enter", [torch.dev.stream, lambda _: torch.dev.device(1)], ids=["stream", "device"])
def test_what_makes_another_device_current_breaks_the_graph(enter):
    other = torch.dev.Stream("dev:1")

    def f(x):
        with enter(other):
            return x + torch.dev.current_device(), torch.zeros(2, device="dev")

    x = torch.ones(2, device="dev")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(f, backend="aot_eager", fullgraph=True)(x)
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="aot_eager")
    for _ in range(2):
        y, z = compiled(x)
        assert y.tolist() == [2, 2] and z.device == torch.device("dev:1")
        assert torch.dev.current_device() == 0 and torch.dev.current_stream(1).stream_id == 0


def test_dynamo_sets_a_stream_by_its_number():
    from torch._dynamo.device_interface import get_interface_for_device

    stream = torch.dev.Stream()
    get_interface_for_device("dev")._set_stream_by_id(stream.stream_id, 0, stream.device_type)
    assert torch.dev.current_stream() == stream
    torch.dev.set_stream(torch.dev.default_stream())


def test_fake_tensors():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.empty(3, 4, device="dev:1")
        assert (x @ x.t()).device == torch.device("dev:1")
        assert nn.functional.conv2d(
            torch.empty(1, 1, 5, 5, device="dev"), torch.empty(2, 1, 3, 3, device="dev")
        ).shape == (1, 2, 3, 3)
    assert mode.from_tensor(torch.ones(2, device="dev")).device.type == "dev"


def test_profiler_shows_operations_and_memory():
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities, profile_memory=True) as p:
        x = torch.ones(64, 64, device="dev")
        y = x @ x
        del x, y
    names = {e.key for e in p.key_averages()}
    assert {"aten::ones", "aten::mm"} <= names
    assert any(e.device_memory_usage >= 64 * 64 * 4 for e in p.key_averages())
    with torch.autograd.profiler.profile(use_device="dev") as p:
        torch.ones(64, 64, device="dev") @ torch.ones(64, 64, device="dev")
    (mm,) = [e for e in p.key_averages() if e.key == "aten::mm"]
    assert 0 < mm.device_time_total < 1e6


def test_shared_with_another_process(run_python, tmp_path):
    script = tmp_path / "share.py"
    script.write_text(
        """
import torch
import torch.multiprocessing as mp
import torch_occl


def work(queue, back, model):
    x, view, empty = queue.get()
    assert x.device == torch.device("dev:1") and view.device == x.device and empty.numel() == 0
    x.add_(1)
    assert view.tolist() == [2.0, 3.0]
    view.zero_()
    back.put(x)  # passed on, it is still the same memory
    queue.get()
    assert x.tolist() == [11.0, 10.0, 10.0, 14.0]
    with torch.no_grad():
        model.weight.fill_(5)
    back.put(torch.full((2,), 7.0, device="dev"))
    queue.get()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    model = torch.nn.Linear(2, 2).dev().share_memory()
    x = torch.arange(4.0, device="dev:1")
    process = context.Process(target=work, args=(queue, back, model))
    process.start()
    queue.put((x, x[1:3], torch.empty(0, device="dev")))
    returned = back.get(timeout=30)
    x.add_(10)
    queue.put(None)
    reply = back.get(timeout=30)
    assert returned.device == x.device and returned.tolist() == x.tolist() == [11, 10, 10, 14]
    assert reply.device.type == "dev" and reply.tolist() == [7, 7]
    assert model.weight.sum().item() == 20
    queue.put(None)
    process.join()
    assert process.exitcode == 0
    assert x.sum().item() == returned.sum().item() == 45
"""
    )
    run_python(
        f"import runpy, sys; sys.argv = [{str(script)!r}]; runpy.run_path({str(script)!r}, run_name='__main__')"  # noqa: E501
    )


def test_packed_sequences():
    x = torch.randn(4, 3, 5)
    packed = nn.utils.rnn.pack_padded_sequence(x.dev(), torch.tensor([4, 3, 2]))
    assert packed.is_dev and packed.batch_sizes.device.type == "cpu"
    lstm = nn.LSTM(5, 6).dev()
    out, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])
    expected, _ = nn.utils.rnn.pad_packed_sequence(lstm.cpu()(packed.cpu())[0])
    torch.testing.assert_close(out.cpu(), expected)


def test_conjugate_bit_survives_serialization(tmp_path):
    x = torch.randn(3, dtype=torch.complex64, device="dev").conj()
    torch.save(x, tmp_path / "x")
    y = torch.load(tmp_path / "x")
    assert y.is_conj() and torch.equal(y.resolve_conj(), x.resolve_conj())


def test_custom_operators():
    with torch.library._scoped_library("occl_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")  # no kernel for dev: the fallback runs this one
        x = torch.ones(3, device="dev")
        y = torch.ops.occl_test.twice(x)
        assert y.device.type == "dev" and y.tolist() == [2, 2, 2]

        library.define("first_half(Tensor(a) x) -> Tensor(a)")
        library.impl("first_half", lambda x: x[: len(x) // 2], "CPU")
        x = torch.ones(6, device="dev:1")
        half = torch.ops.occl_test.first_half(x)  # a view that a kernel made
        assert half.untyped_storage()._cdata == x.untyped_storage()._cdata
        half.zero_()
        assert x.sum().item() == 3 and half.untyped_storage().device == torch.device("dev:1")

        library.define("grow(Tensor(a!) x) -> ()")
        library.impl("grow", lambda x: [x.resize_(20).fill_(2)][1:] or None, "CPU")
        torch.ops.occl_test.grow(x)  # resized by a kernel
        assert (
            x.shape == (20,) and x.sum().item() == 40 and x.untyped_storage().device == torch.device("dev:1")
        )


def test_operator_that_nobody_has():
    with pytest.raises(NotImplementedError, match="has no kernel for CPU"):
        torch.ops.aten._cudnn_rnn_flatten_weight(
            [torch.ones(2, device="dev")], 1, 1, 1, 1, 1, 1, False, False
        )
