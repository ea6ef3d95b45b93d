"""Backend metadata: names that a package sets on a `dev` tensor, and that torch.save takes along."""

import io
import pickle

import pytest
import torch
from torch._utils import get_tensor_metadata, set_tensor_metadata

MARKS = {"blocked_layout": True, "padded": True}


def marked(**options) -> torch.Tensor:
    x = torch.arange(6.0, device="dev:1").view(2, 3).to(**options)
    assert get_tensor_metadata(x) == {}
    set_tensor_metadata(x, MARKS)
    assert get_tensor_metadata(x) == MARKS
    return x


def saved(value) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_survives_saving_and_loading():
    x = marked()
    loaded = torch.load(saved({"x": x, "plain": torch.ones(2, device="dev")}))
    assert get_tensor_metadata(loaded["x"]) == MARKS and loaded["x"].device == x.device
    assert torch.equal(loaded["x"], x)
    assert get_tensor_metadata(loaded["plain"]) == {}
    assert get_tensor_metadata(torch.load(saved(x), map_location="dev:3")) == MARKS


def test_survives_pickling_and_a_state_dict():
    assert get_tensor_metadata(pickle.loads(pickle.dumps(marked()))) == MARKS
    module = torch.nn.Linear(2, 2).dev()
    set_tensor_metadata(module.weight, MARKS)
    loaded = torch.load(saved(module.state_dict()))
    assert get_tensor_metadata(loaded["weight"]) == MARKS and get_tensor_metadata(loaded["bias"]) == {}


def test_survives_torchscript():
    module = torch.nn.Linear(2, 2).dev()
    set_tensor_metadata(module.weight, MARKS)
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module), file)
    file.seek(0)
    assert get_tensor_metadata(torch.jit.load(file).weight) == MARKS


def test_is_dropped_on_the_cpu():
    assert get_tensor_metadata(torch.load(saved(marked()), map_location="cpu")) == {}
    assert get_tensor_metadata(marked().cpu()) == {}


def test_goes_along_with_the_tensor_and_not_with_results():
    x = marked()
    assert get_tensor_metadata(x.detach()) == MARKS
    assert get_tensor_metadata(torch.nn.Parameter(x)) == MARKS
    for derived in (x + 1, x.clone(), x[:1], x.t(), torch.empty_like(x), x.to("dev:0")):
        assert get_tensor_metadata(derived) == {}
    x.add_(1)
    assert get_tensor_metadata(x) == MARKS


def test_setting_replaces_and_nothing_clears():
    x = marked()
    alias = x.detach()
    set_tensor_metadata(x, {"other": False})
    assert get_tensor_metadata(x) == {"other": False} and get_tensor_metadata(alias) == MARKS
    set_tensor_metadata(x, {})
    assert get_tensor_metadata(x) == {} and get_tensor_metadata(alias) == MARKS


def test_stands_beside_what_pytorch_saves_itself():
    x = marked(dtype=torch.complex64).conj()
    set_tensor_metadata(x, MARKS)
    loaded = torch.load(saved(x))
    assert loaded.is_conj() and get_tensor_metadata(loaded) == {**MARKS, "conj": True}
    assert torch.equal(loaded.resolve_conj(), x.resolve_conj())
    assert get_tensor_metadata(torch.load(saved(x), map_location="cpu")) == {"conj": True}


def test_another_type_than_bool_is_refused():
    with pytest.raises((TypeError, RuntimeError)):
        set_tensor_metadata(torch.ones(1, device="dev"), {"name": "text"})
