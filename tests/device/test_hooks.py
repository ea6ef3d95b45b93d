"""The accelerator hooks, each through the function of PyTorch that asks for it."""

import pytest
import torch

HOOKS = """
#include <torch/extension.h>
#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

const at::AcceleratorHooksInterface& hooks() {
  return at::globalContext().getAcceleratorHooksInterface();
}
bool is_built() { return hooks().isBuilt(); }
bool is_available() { return hooks().isAvailable(); }
bool has_primary_context(int64_t index) { return hooks().hasPrimaryContext(index); }
int64_t device_count() { return hooks().deviceCount(); }
void init() { at::globalContext().lazyInitDevice(c10::DeviceType::PrivateUse1); }
at::Tensor around(int64_t address, int64_t n) {  // asks getDeviceFromPtr where the memory is
  return at::for_blob(reinterpret_cast<void*>(address), {n})
      .options(at::TensorOptions(c10::DeviceType::PrivateUse1)).make_tensor();
}
bool pinned_allocator_makes_pinned_memory() {
  auto memory = hooks().getPinnedMemoryAllocator()->allocate(100);
  char other;
  return hooks().isPinnedPtr(memory.get()) && !hooks().isPinnedPtr(&other);
}
at::Generator default_generator(int64_t index) {
  return at::globalContext().defaultGenerator(c10::Device(c10::DeviceType::PrivateUse1, index));
}
"""


@pytest.mark.full
def test_a_cpp_extension_finds_every_hook(pytorch_compiles, run_python, tmp_path):
    (tmp_path / "hooks.cpp").write_text(HOOKS)
    run_python(
        f"""
        import torch, torch_occl
        from torch.utils.cpp_extension import load_inline
        names = ["is_built", "is_available", "has_primary_context", "device_count", "init", "around",
                 "pinned_allocator_makes_pinned_memory", "default_generator"]
        hooks = load_inline("occl_test_hooks", open({str(tmp_path / "hooks.cpp")!r}).read(), functions=names,
                            build_directory={str(tmp_path)!r})
        assert hooks.is_built() and hooks.is_available() and hooks.device_count() == torch.dev.device_count()
        assert not torch.dev.is_initialized() and not hooks.has_primary_context(3)
        hooks.init()
        assert torch.dev.is_initialized() and not hooks.has_primary_context(3)
        x = torch.arange(6.0, device="dev:3")
        assert hooks.has_primary_context(3) and not hooks.has_primary_context(4)
        y = hooks.around(x.data_ptr(), 6)
        assert y.device == x.device and y.data_ptr() == x.data_ptr() and torch.equal(x, y)
        try:
            hooks.around(torch.ones(6).data_ptr(), 6)
        except RuntimeError as error:
            assert "does not lie in the memory of a dev device" in str(error)
        else:
            raise AssertionError
        assert hooks.pinned_allocator_makes_pinned_memory()
        torch.dev.default_generators[2].manual_seed(5)
        assert hooks.default_generator(2).initial_seed() == 5
        """,
        MAX_JOBS="1",
    )


def test_device_count_and_availability():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("dev")
    assert torch._C._accelerator_hooks_device_count() == torch.accelerator.device_count()


def test_set_get_exchange_and_maybe_exchange_the_device():
    torch._C._accelerator_hooks_set_current_device(3)
    assert torch._C._accelerator_hooks_get_current_device() == torch.accelerator.current_device_index() == 3
    assert torch._C._accelerator_hooks_exchange_device(5) == 3
    assert torch._C._accelerator_hooks_maybe_exchange_device(2) == 5
    assert torch._C._accelerator_exchangeDevice(1) == 2
    assert torch.dev.current_device() == 1
    torch._C._accelerator_maybeExchangeDevice(0)
    assert torch.dev.current_device() == 0


def test_default_generators_are_those_that_pytorch_seeds():
    @torch.jit.script
    def seed():
        torch.manual_seed(123)  # in C++: every default generator of every device

    torch.dev.manual_seed_all(1)
    seed()
    for generator in torch.dev.default_generators:
        assert generator.initial_seed() == 123


def test_new_generators_are_of_the_device_and_apart():
    a, b = torch.Generator("dev:2"), torch.Generator("dev:2")
    a.manual_seed(1)
    assert a.device == torch.device("dev:2") and b.initial_seed() != 1
    with torch.dev.device(4):
        assert torch.Generator("dev").device == torch.device("dev:4")


def test_resizing_a_storage_keeps_what_it_holds():
    x = torch.arange(10.0, device="dev:1")
    storage = x.untyped_storage()
    storage.resize_(80)
    assert storage.nbytes() == 80 and storage.device == torch.device("dev:1")
    assert x.tolist() == list(range(10))
    storage.resize_(40)
    assert x.tolist() == list(range(10))
    before = torch.dev.memory_allocated(1)
    storage.resize_(0)  # as FSDP does with what it has gathered
    assert torch.dev.memory_allocated(1) < before
    storage.resize_(40)
    x.fill_(2)
    assert x.sum().item() == 20
    shared = torch.dev.from_cpu(torch.ones(3))
    with pytest.raises(RuntimeError, match="not resizable"):
        shared.untyped_storage().resize_(100)


def test_pinned_memory_of_tensors_and_storages():
    for make in (torch.randn(10).storage, torch.randn(10).untyped_storage):
        storage = make()
        assert not storage.is_pinned("dev") and storage.pin_memory("dev").is_pinned("dev")
    pinned = torch.randn(10).pin_memory()
    part = torch.empty(0).set_(pinned.untyped_storage()[8:], size=(5,), stride=(1,), storage_offset=0)
    assert part.is_pinned() and part.data_ptr() == pinned.data_ptr() + 8
