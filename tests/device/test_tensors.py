"""Tensors: factories, views, copies, operations, errors. Everything is compared with the CPU."""

import copy
import io
import pickle

import numpy
import pytest
import torch


def same(on_dev: torch.Tensor, on_cpu: torch.Tensor) -> None:
    assert on_dev.device.type == "dev"
    assert on_dev.dtype == on_cpu.dtype and on_dev.stride() == on_cpu.stride()
    torch.testing.assert_close(on_dev.cpu(), on_cpu, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.uint16,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
)
def test_round_trip_is_exact(shape, dtype):
    source = (
        torch.randint(0, 2, shape).to(dtype) if not dtype.is_floating_point else torch.randn(shape).to(dtype)
    )
    there = source.to("dev")
    assert there.device == torch.device("dev:0") and there.is_dev
    assert torch.equal(
        there.cpu().view(torch.uint8) if shape else there.cpu().reshape(1).view(torch.uint8),
        source.view(torch.uint8) if shape else source.reshape(1).view(torch.uint8),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(3, 4, device=d),
        lambda d: torch.ones(3, device=d, dtype=torch.int32),
        lambda d: torch.full((2, 2), 7.5, device=d),
        lambda d: torch.arange(10, device=d),
        lambda d: torch.arange(0, 1, 0.1, device=d),
        lambda d: torch.linspace(0, 1, 7, device=d),
        lambda d: torch.logspace(0, 1, 7, device=d),
        lambda d: torch.eye(4, device=d),
        lambda d: torch.tril_indices(3, 4, device=d),
        lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
        lambda d: torch.tensor(5.0, device=d),
        lambda d: torch.scalar_tensor(3, device=d),
        lambda d: torch.hann_window(8, device=d),
        lambda d: torch.zeros(2, 3, device=d).new_full((2,), 3),
        lambda d: torch.empty_strided((2, 3), (1, 2), device=d).fill_(3),
        lambda d: torch.empty(2, 3, 4, 5, memory_format=torch.channels_last, device=d).fill_(1),
        lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
        lambda d: torch.zeros(0, device=d),
    ],
)
def test_factories(make):
    same(make("dev"), make("cpu"))


def test_factories_follow_the_current_device():
    with torch.dev.device(3):
        assert torch.ones(1, device="dev").device.index == 3
        assert torch.arange(3, device="dev").device.index == 3
    with torch.device("dev:2"):
        assert torch.randn(1).device == torch.device("dev:2")
    assert (torch.ones(2, device="dev:5") + 1).device.index == 5
    assert torch.ones(2, device="dev:5").dev().device.index == 0


VIEWS = [
    lambda x: x.t(),
    lambda x: x[1:, ::2],
    lambda x: x[0],
    lambda x: x.view(-1),
    lambda x: x.reshape(2, 12),
    lambda x: x.unsqueeze(0),
    lambda x: x.expand(3, 4, 6),
    lambda x: x.diagonal(),
    lambda x: x.as_strided((2, 2), (1, 3), 1),
    lambda x: x.unfold(1, 2, 2),
    lambda x: x.split(2)[1],
    lambda x: x.chunk(3, 1)[2],
    lambda x: x.unbind(1)[1],
    lambda x: x.narrow(0, 1, 2),
    lambda x: x.select(1, 3),
    lambda x: x.permute(1, 0),
    lambda x: x.view(torch.int32),
    lambda x: x.detach(),
    lambda x: x.squeeze(),
    lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    lambda x: x.movedim(0, 1),
    lambda x: x.swapaxes(0, 1),
    lambda x: x.hsplit(2)[1],
    lambda x: x.flatten(),
    lambda x: x.unflatten(1, (2, 3)),
]


@pytest.mark.parametrize("view", VIEWS)
def test_views_share_memory(view):
    cpu = torch.arange(24.0).view(4, 6)
    dev = cpu.to("dev")
    seen = view(dev)
    same(seen, view(cpu.clone()))
    assert seen.untyped_storage().data_ptr() == dev.untyped_storage().data_ptr()
    assert seen.untyped_storage()._cdata == dev.untyped_storage()._cdata
    assert not seen.is_inference()
    version = dev._version
    seen.zero_()
    expected = cpu.clone()
    view(expected).zero_()
    same(dev, expected)
    assert dev._version == version + 1 or not seen._is_view()


def test_views_of_views_made_inside_kernels_stay_views():
    x = torch.randn(6, 4, device="dev")
    parts = torch.ops.aten.split_with_sizes(x, [2, 4])
    parts[1].fill_(3)
    assert bool((x[2:] == 3).all())


def test_in_place_returns_the_same_tensor():
    x = torch.ones(3, device="dev")
    assert x.add_(1) is x
    assert x.resize_(5) is x
    assert torch.neg(x, out=x) is x


@pytest.mark.parametrize("function", [torch.add, torch.mul, torch.atan2])
def test_out_is_resized(function):
    a, b = torch.randn(4, 5), torch.randn(4, 5)
    out = torch.empty(0, device="dev")
    storage = out.untyped_storage()
    result = function(a.dev(), b.dev(), out=out)
    assert result is out
    same(out, function(a, b))
    assert out.untyped_storage()._cdata == storage._cdata
    assert out.untyped_storage().device == torch.device("dev:0")
    assert torch.dev.memory_allocated() >= 80


def test_out_with_more_than_one_result():
    x = torch.randn(5, 6)
    values, indices = torch.empty(0, device="dev"), torch.empty(0, dtype=torch.long, device="dev")
    torch.max(x.dev(), 1, out=(values, indices))
    expected = x.max(1)
    same(values, expected.values)
    same(indices, expected.indices)


def test_out_into_a_view():
    base = torch.zeros(4, 4, device="dev")
    torch.add(torch.ones(4, device="dev"), 1, out=base[1])
    assert base.sum().item() == 8


def test_resize_keeps_what_fits():
    for d in ("cpu", "dev"):
        x = torch.arange(6.0, device=d)
        view = x[2:]
        x.resize_(100)
        assert x[:6].tolist() == [0, 1, 2, 3, 4, 5] and view.tolist() == [2, 3, 4, 5]
    y = torch.ones(4, device="dev:1")
    y.resize_(1000)
    assert y.untyped_storage().device == torch.device("dev:1") and y.untyped_storage().nbytes() == 4000


def test_storage_resize():
    x = torch.arange(8.0, device="dev:2")
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0 and x.untyped_storage().device == torch.device("dev:2")
    x.untyped_storage().resize_(32)
    x.fill_(2)
    assert x.sum().item() == 16 and x.untyped_storage().device == torch.device("dev:2")


def test_set_and_data():
    x, y = torch.zeros(3, device="dev"), torch.ones(5, device="dev")
    x.set_(y)
    assert x.data_ptr() == y.data_ptr() and x.shape == (5,)
    x.set_(y.untyped_storage(), 1, (2, 2), (2, 1))
    assert x.sum().item() == 4 and x.storage_offset() == 1
    x.set_()
    assert x.numel() == 0 and x.device.type == "dev"
    p = torch.nn.Parameter(torch.zeros(2, device="dev"))
    p.data = torch.ones(3, device="dev")
    assert p.sum().item() == 3


def test_metadata_changed_in_place():
    for d in ("cpu", "dev"):
        x = torch.arange(6.0, device=d).view(1, 2, 3)
        x.transpose_(1, 2).squeeze_(0).unsqueeze_(1)
        assert x.shape == (3, 1, 2) and x.flatten().tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_between_devices_and_dtypes(non_blocking):
    x = torch.randn(3, 4)
    y = torch.empty(4, 3, dtype=torch.float64, device="dev:1").t()
    assert y.copy_(x, non_blocking=non_blocking) is y
    torch.testing.assert_close(y.cpu(), x.double())
    z = y.to("dev:0", non_blocking=non_blocking)
    assert z.device.index == 0 and z.data_ptr() != y.data_ptr()
    back = torch.empty(3, 4, dtype=torch.float64)
    back.copy_(z, non_blocking=non_blocking)
    torch.testing.assert_close(back, x.double())
    row = torch.randn(4)
    y.copy_(row)  # broadcast
    torch.testing.assert_close(y.cpu(), row.double().expand(3, 4))
    with pytest.raises(RuntimeError, match="must match the size"):
        y.copy_(torch.zeros(5))
    with pytest.raises(NotImplementedError, match="meta"):
        y.copy_(torch.zeros(3, 4, device="meta"))


MOVED = sorted(
    {
        d
        for name, d in vars(torch).items()
        if isinstance(d, torch.dtype)
        and (d.itemsize == 1 or name == "bits16")
        and "qint" not in name
        and "quint" not in name
    },
    key=str,
)
"""Every dtype with elements of a byte, or without arithmetic, but for quantized ones."""


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_dtypes_without_arithmetic_are_copied_byte_by_byte_in_every_layout(dtype):
    octets = torch.randint(0, 2 if dtype == torch.bool else 256, (6, 4 * dtype.itemsize), dtype=torch.uint8)
    whole = octets.view(dtype)

    def bytes_of(t):
        word = torch.uint8 if dtype.itemsize == 1 else torch.int16
        return t.view(word).cpu().tolist()

    for source in (whole, whole.t(), whole[::2, 1:3], whole[:0], whole[0]):
        expected = bytes_of(source)
        on_dev = source.to("dev")
        assert on_dev.dtype == dtype and bytes_of(on_dev) == expected
        turned = torch.empty(source.shape[::-1], dtype=dtype, device="dev:1").permute(
            *range(source.dim())[::-1]
        )
        side = torch.Stream("dev:0")
        with side:
            later = torch.empty_like(on_dev).copy_(on_dev, non_blocking=True)
        side.synchronize()
        there = torch.empty(source.shape[::-1], dtype=dtype).permute(*range(source.dim())[::-1])
        copies = [
            on_dev.clone(),
            on_dev.contiguous(),
            turned.copy_(on_dev),
            later,
            on_dev.cpu(),
            there.copy_(on_dev),
        ]
        assert all(bytes_of(t) == expected for t in copies)
        if source.dim() == 2 and len(source) > 1:
            assert bytes_of(on_dev.clone().copy_(on_dev[0])) == [expected[0]] * len(source)  # broadcast


def test_conjugate_and_negative_views():
    x = torch.randn(3, dtype=torch.complex64)
    same(x.dev().conj().resolve_conj(), x.conj().resolve_conj())
    same(x.dev().conj().imag.resolve_neg(), x.conj().imag.resolve_neg())
    same(x.dev().conj() * 2, x.conj() * 2)
    target = torch.zeros(3, dtype=torch.complex64, device="dev")
    target.copy_(x.conj())
    same(target, x.conj().resolve_conj())


def test_scalars_from_the_cpu_are_welcome_and_nothing_else():
    x = torch.ones(3, device="dev")
    same(x + torch.tensor(2.0), torch.full((3,), 3.0))
    same(torch.tensor(2.0) * x, torch.full((3,), 2.0))
    same(torch.where(x > 0, x, torch.tensor(0.0)), torch.ones(3))
    x[torch.tensor([0, 2])] = 5  # indices may be on the CPU
    assert x.tolist() == [5, 1, 5]
    message = "Expected all tensors to be on the same device, but found at least two devices, dev:0 and "
    for bad in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(3) + x,
        lambda: x.add_(torch.ones(3)),
        lambda: torch.mm(torch.ones(3, 3, device="dev"), torch.ones(3, 3)),
        lambda: torch.cat([x, torch.ones(3)]),
        lambda: torch.add(x, 1, out=torch.empty(3)),
        lambda: torch.tensor(1.0).add_(x.sum()),
        lambda: torch.nn.functional.linear(torch.ones(1, 3, device="dev"), torch.ones(2, 3)),
    ):
        with pytest.raises(RuntimeError, match=message + "cpu"):
            bad()
    with pytest.raises(RuntimeError, match=message + "dev:1"):
        x + torch.ones(3, device="dev:1")


def test_errors_of_kernels_arrive():
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ones(3, device="dev") + torch.ones(4, device="dev")
    with pytest.raises(IndexError):
        torch.ones(3, device="dev")[5]
    with pytest.raises(RuntimeError, match="invalid device index 99|index 99"):  # noqa: RUF043
        torch.ones(3, device="dev:99")


def test_lists_of_tensors():
    parts = [torch.randn(2, 3) for _ in range(3)]
    there = [p.dev() for p in parts]
    same(torch.cat(there), torch.cat(parts))
    same(torch.stack(there, 1), torch.stack(parts, 1))
    for a, b in zip(torch._foreach_add(there, 1), parts, strict=False):
        same(a, b + 1)
    torch._foreach_mul_(there, 2)
    for a, b in zip(there, parts, strict=False):
        same(a, b * 2)
    same(torch.einsum("ij,kj->ik", there[0], there[1]), torch.einsum("ij,kj->ik", parts[0] * 2, parts[1] * 2))
    for a, b in zip(
        torch.meshgrid(there[0][0], there[1][0], indexing="ij"),
        torch.meshgrid(parts[0][0] * 2, parts[1][0] * 2, indexing="ij"),
        strict=False,
    ):
        same(a, b)


def test_foreach_operations_take_tensors_of_several_devices():
    parts = [torch.ones(3, device=f"dev:{i}", requires_grad=True) for i in (1, 0, 1)]
    doubled = torch._foreach_mul(parts, 2)
    assert [t.device.index for t in doubled] == [1, 0, 1]
    torch._foreach_add(doubled, parts)[2].sum().backward()
    same(parts[2].grad, torch.full((3,), 3.0))
    with torch.no_grad():
        torch._foreach_addcmul_(parts, parts, doubled, [1.0, 2.0, 3.0])
        norms = torch._foreach_norm(parts)
    for t, norm, number in zip(parts, norms, (3.0, 5.0, 7.0), strict=True):
        same(t.detach(), torch.full((3,), number))
        same(norm, torch.full((3,), number).norm())
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch._foreach_add(parts, [parts[1].detach()] * 3)


def test_index_put_with_duplicates():
    for accumulate in (False, True):
        a, b = torch.zeros(5), torch.zeros(5, device="dev")
        index, values = torch.tensor([1, 1, 3, 1]), torch.tensor([1.0, 1.0, 4.0, 1.0])
        a.index_put_((index,), values, accumulate=accumulate)
        b.index_put_((index.dev(),), values.dev(), accumulate=accumulate)
        same(b, a)


def test_printing_iteration_and_conversion():
    x = torch.arange(4.0, device="dev:1")
    assert repr(x) == "tensor([0., 1., 2., 3.], device='dev:1')"
    assert [v.item() for v in x] == [0, 1, 2, 3]
    assert bool(x.sum() == 6) and float(x[1]) == 1.0 and x.tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="can't convert dev:1 device type tensor to numpy"):
        x.numpy()
    assert numpy.array_equal(x.cpu().numpy(), numpy.arange(4.0, dtype="float32"))


def test_save_and_load(tmp_path):
    x = torch.randn(4, device="dev:1")
    path = tmp_path / "x.pt"
    torch.save({"x": x, "view": x[1:]}, path)
    loaded = torch.load(path)
    assert loaded["x"].device == torch.device("dev:1")
    same(loaded["x"], x.cpu())
    assert loaded["view"].untyped_storage()._cdata == loaded["x"].untyped_storage()._cdata
    assert torch.load(path, map_location="cpu")["x"].device.type == "cpu"
    assert torch.load(path, map_location="dev:3")["x"].device.index == 3
    assert torch.load(path, map_location={"dev:1": "dev:2"})["x"].device.index == 2
    cpu = tmp_path / "cpu.pt"
    torch.save(x.cpu(), cpu)
    same(torch.load(cpu, map_location="dev"), x.cpu())
    assert b"dev:1" in path.read_bytes()
    assert torch.serialization.location_tag(x.untyped_storage()) == "dev:1"


def test_a_checkpoint_for_a_device_that_is_not_there(tmp_path, run_python):
    path = tmp_path / "x.pt"
    torch.save(torch.ones(2, device="dev:7"), path)
    run_python(
        f"""
        import torch, torch_occl
        try:
            torch.load({str(path)!r})
        except RuntimeError as error:
            assert "dev" in str(error) and "7" in str(error) and "map_location" in str(error), error
        else:
            raise AssertionError
        assert torch.load({str(path)!r}, map_location="cpu").sum() == 2
        """,
        OCCL_DEVICE_COUNT="2",
    )


def test_deepcopy_and_pickle():
    x = torch.randn(3, device="dev:2", requires_grad=True)
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.device == x.device and y.requires_grad and y.data_ptr() != x.data_ptr()
        same(y.detach(), x.detach().cpu())
    buffer = io.BytesIO()
    torch.save(torch.nn.Linear(2, 2).dev(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False).weight.device.type == "dev"


def test_quantities_that_ask_for_the_device():
    x = torch.ones(3, device="dev:1")
    assert x.get_device() == 1 and x.type() == "torch.dev.FloatTensor"
    assert x.is_shared() in (True, False)
    assert x.new_empty(2).device == x.device and torch.empty_like(x).device == x.device
    assert x.to("cpu").device.type == "cpu" and x.to(torch.float64).device == x.device
    assert not x.is_cpu and not x.is_cuda and not x.is_pinned()
