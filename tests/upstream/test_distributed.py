"""PyTorch's ``DistributedTest``, every test of it, on CPU tensors and on ``dev`` (see `rewriting.py`).

A result is: passed on all ranks; skipped on all ranks, because it needs more ranks; or expected to fail, as
`exceptions.py` says. A test that is listed there and passes, or fails with other words or on other ranks, is
a failure here, so that the list stays true.

CI has four ranks run all of them on ``dev``, one of each family over two nodes, and one with occl in the
place of Gloo. The CPU, two and three ranks, the others over two nodes, and the others that Gloo passes are
marked ``matrix``.
"""

from __future__ import annotations

import pytest

from . import exceptions, rewriting, survey


def families() -> set[str]:
    """One test of each family: of those whose names begin with the same two words, and of those of DDP."""

    def family(name: str) -> str:
        words = name.split("_")[1:3]
        return "ddp" if words[0] in ("ddp", "DistributedDataParallel") else "_".join(words)

    names = [name for name in rewriting.test_names() if name not in exceptions.SLOW]
    return set({family(name): name for name in reversed(names)}.values())


def configurations():
    stay = families()
    for device in ("cpu", "dev"):
        for world_size in (4, 2, 3):
            for name in rewriting.test_names():
                rare = (device, world_size) != ("dev", 4) or name == exceptions.SLOWEST
                marks = [pytest.mark.full] * (rare or name not in stay) + [pytest.mark.matrix] * rare
                yield pytest.param(
                    device,
                    world_size,
                    name,
                    id=f"{device}-{world_size}-{name}",
                    marks=marks,
                )


@pytest.mark.parametrize(("device", "world_size", "name"), list(configurations()))
def test_of_pytorch(upstream, count, device, world_size, name):
    excepted = exceptions.find(name, device, world_size)
    ending = upstream(name, device, world_size, excepted.errors(device, world_size) if excepted else None)
    if ending.kind == "skipped" and "world size" in ending.reason:
        count(device, world_size, "skipped")
        pytest.skip(ending.reason)
    kind = "excepted" if excepted else "passed"
    count(device, world_size, kind if ending.kind == "passed" else "failed")
    assert ending.kind == "passed", ending.reason
    if excepted:
        pytest.xfail(excepted.reason)


def over_nodes():
    stay = families()
    for name in rewriting.test_names():
        marks = [pytest.mark.full] + [pytest.mark.matrix] * (name not in stay)
        yield pytest.param(name, id=name, marks=marks)


@pytest.mark.parametrize("name", list(over_nodes()))
def test_of_pytorch_over_two_nodes(upstream, count, name):
    """Four ranks on ``dev``, of which two and two share memory; between them Gloo carries the messages."""
    excepted = exceptions.find(name, "dev", 4)
    ending = upstream(name, "dev", 4, excepted.errors("dev", 4) if excepted else None, nodes="aabb")
    kind = "excepted" if excepted else "passed"
    count("dev over 2 nodes", 4, kind if ending.kind == "passed" else "failed")
    assert ending.kind == "passed", ending.reason
    if excepted:
        pytest.xfail(excepted.reason)


def passed_by_gloo():
    """By default one, in which PyTorch casts occl's backend to Gloo's (csrc/pg/compat/backend_base.h)."""
    for name, ending in survey.with_gloo().items():
        if ending == "passed":
            more = name != "test_ddp_logging_data_cpu"
            yield pytest.param(name, id=name, marks=[pytest.mark.full, pytest.mark.matrix] * more)


@pytest.mark.parametrize("name", list(passed_by_gloo()))
def test_what_gloo_passes_occl_passes_in_its_place(upstream, count, name):
    """The tests ask for "gloo", and nothing but `torch_occl.replace_gloo` says otherwise."""
    ending = upstream(name, "cpu", 4, in_place_of="gloo")
    count("gloo", 4, "passed" if ending.kind == "passed" else "failed")
    assert ending.kind == "passed", ending.reason
