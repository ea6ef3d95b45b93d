"""The one allocator in front of PyTorch's CPU allocator, beside those of another package."""

from __future__ import annotations

import pytest

from tests.support.cpp_build import build_library

OTHERS = r"""
#include <c10/core/CPUAllocator.h>

struct Wrapper final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    ++requests;
    return behind->allocate(n);
  }
  c10::DeleterFnPtr raw_deleter() const override { return behind->raw_deleter(); }
  bool is_simple_data_ptr(const c10::DataPtr& p) const override { return behind->is_simple_data_ptr(p); }
  void copy_data(void* to, const void* from, size_t n) const override { behind->copy_data(to, from, n); }
  c10::Allocator* behind = nullptr;
  int requests = 0;
};
Wrapper wrappers[2];

extern "C" {
void wrap(int i, int priority) {
  wrappers[i].behind = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&wrappers[i], priority);
}
int requests(int i) { return wrappers[i].requests; }
int in_front() {
  c10::Allocator* const front = c10::GetCPUAllocator();
  if (front == c10::GetDefaultCPUAllocator()) return 2;
  return front == &wrappers[0] ? 0 : front == &wrappers[1] ? 1 : 3;
}
int uses_every_function(size_t n) {
  c10::Allocator& front = *c10::GetCPUAllocator();
  void* raw = front.raw_allocate(n);
  c10::DataPtr copy = front.clone(raw, n);
  front.raw_deallocate(raw);
  return front.is_simple_data_ptr(copy);
}
}
"""
BEGIN = """
import ctypes, torch
others = ctypes.CDLL({library!r})
W0, W1, PYTORCH, OURS = range(4)
def small():  # how often each wrapper is asked for one small tensor
    before = [others.requests(i) for i in range(2)]
    torch.empty(10)
    return [others.requests(i) - before[i] for i in range(2)]
def shared():  # bytes, by one large tensor
    t = torch.zeros(1 << 20)
    return occl.shared_cpu_memory_stats()["allocated_bytes.all.current"]
def works():
    for size in (8, 1 << 20):
        assert others.uses_every_function(ctypes.c_size_t(size))
    assert shared() == 4 << 20
"""


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> str:
    """A library with two wrappers of the CPU allocator."""
    return str(build_library(OTHERS, tmp_path_factory.mktemp("others") / "others.so"))


@pytest.fixture
def run(scripts, others):
    """``device``: "" if ``import torch_occl`` makes it, "0" if there is none."""

    def run(script: str, device: str) -> None:
        scripts.run(BEGIN.format(library=others) + script, OCCL_DEVICE=device, OCCL_SHARE_CPU="")

    return run


BETWEEN_TWO = """
others.wrap(W0, 0)
import torch_occl as occl
others.wrap(W1, 0)
occl.share_cpu_memory()
assert others.in_front() == OURS
works()
assert small() == [1, 1]
"""


@pytest.mark.parametrize("device", ["", "0"])
def test_wrappers_before_and_after_it_get_what_it_does_not_serve(run, device):
    run(BETWEEN_TWO, device)


WRAPPED_AGAIN = """
others.wrap(W0, 0)
import torch_occl as occl
occl.share_cpu_memory()
others.wrap(W0, 0)  # what is behind it is ours now, and what is behind ours is this wrapper
assert others.in_front() == W0
works()
assert small() == [2, 0]  # in front of ours and behind it
occl.share_cpu_memory()
assert others.in_front() == OURS
works()
assert small() == [1, 0]
others.wrap(W1, 0)
occl.share_cpu_memory()
works()
assert small() == [1, 1]
"""


@pytest.mark.parametrize("device", ["", "0"])
def test_a_wrapper_on_both_sides_makes_no_loop(run, device):
    run(WRAPPED_AGAIN, device)


RESTORED = """
others.wrap(W0, {priority})
import torch_occl as occl
for _ in range(2):
    with occl.share_cpu_memory():
        assert others.in_front() == OURS
        works()
    assert others.in_front() == W0
    assert shared() == 0 and small() == [1, 0]
with occl.share_cpu_memory():
    others.wrap(W1, {priority})
assert others.in_front() == W1  # it came later, so it stays
assert shared() == 0 and small() == [1, 1]
with occl.share_cpu_memory():
    works()
assert others.in_front() == W1
"""


@pytest.mark.parametrize(
    ("device", "priority"),
    [pytest.param("0", 0, id="without dev"), pytest.param("", 3, id="of a higher priority")],
)
def test_the_end_of_sharing_puts_back_what_was_in_front(run, device, priority):
    run(RESTORED.format(priority=priority), device)


KEPT = """
import occl
if {shared_first}:
    occl.share_cpu_memory()
import torch_occl
assert others.in_front() == OURS
with occl.share_cpu_memory():
    works()
occl.share_cpu_memory(None)
assert shared() == 0
assert others.in_front() == OURS
"""


@pytest.mark.parametrize("shared_first", [False, True])
def test_it_stays_where_the_device_needs_it(run, shared_first):
    run(KEPT.format(shared_first=shared_first), "")
