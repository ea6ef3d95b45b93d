"""Hooks, torch.accelerator, torch.dev, devices and threads, processes."""

import os
import textwrap
import threading

import pytest
import torch

from occl import _C, versions
from tests.support import interpreter
from tests.support.running import PYTORCH
from tests.support.thinning import first
from tests.support.threads import thread_names
from torch_occl.dev import _registration


def test_is_the_accelerator():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("dev")
    assert torch.accelerator.device_count() == torch.dev.device_count() == _C._device_count()
    assert torch._C._get_privateuse1_backend_name() == "dev"
    assert torch._C._get_accelerator().type == "dev"
    assert torch.get_device_module("dev") is torch.dev is torch.get_device_module()
    assert _registration.register() == "dev" and _registration.registered()


def test_device_index_functions():
    torch.accelerator.set_device_index(2)
    assert torch.accelerator.current_device_index() == torch.dev.current_device() == 2
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(3):
        assert torch.empty(1, device="dev").device.index == 3
        with torch.accelerator.device_index(None), pytest.raises(KeyError), torch.accelerator.device_index(1):
            assert torch.dev.current_device() == 1
            raise KeyError
        assert torch.dev.current_device() == 3
    with torch.dev.device("dev:4"), torch.dev.device(None):
        assert torch.dev.current_device() == 4
    one = torch.dev.device(1)
    with one, torch.dev.device(2):
        with one:
            assert torch.dev.current_device() == 1
        assert torch.dev.current_device() == 2
    assert torch.dev.current_device() == 0
    with torch.dev.device_of(torch.empty(1, device="dev:5")), torch.dev.device_of(torch.empty(1)):
        assert torch.dev.current_device() == 5
    with pytest.raises(RuntimeError, match="invalid device index 99"):
        torch.accelerator.set_device_index(99)
    with pytest.raises(RuntimeError, match="invalid device index 8.*dev:0 to dev:7"):  # noqa: RUF043
        torch.dev.set_device(8)
    with pytest.raises(ValueError, match="expected a dev device"):
        torch.dev.set_device("cpu")


def test_current_device_is_per_thread():
    torch.dev.set_device(2)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.dev.current_device()))
    thread.start()
    thread.join()
    torch.dev.set_device(0)
    assert seen == [0]


def threads_of_backward_passes() -> dict[int, tuple[int, int]]:
    """For each of three devices the thread in which its gradients are made, and its current device."""
    threads = {}

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            threads[grad.device.index] = (threading.get_ident(), torch.dev.current_device())
            return grad

    xs = [torch.ones(2, device=f"dev:{i}", requires_grad=True) for i in range(3)]
    sum(Note.apply(x).sum().to("dev:0") for x in xs).backward()
    assert all((x.grad == 1).all() for x in xs)
    return threads


def test_autograd_runs_in_the_calling_thread():
    own = threading.get_ident()
    assert threads_of_backward_passes() == {i: (own, i) for i in range(3)}


def test_autograd_runs_on_the_thread_of_the_device_if_asked():
    with torch.autograd.set_multithreading_enabled(True):
        threads = threads_of_backward_passes()
    assert [threads[i][1] for i in range(3)] == [0, 1, 2]
    assert len({threads[i][0] for i in range(3)} | {threading.get_ident()}) == 4
    assert {"pt_autograd_0", "pt_autograd_1", "pt_autograd_2"} <= thread_names()


def test_memory_functions():
    x = torch.empty(1 << 20, device="dev")  # noqa: F841
    assert torch.accelerator.memory_allocated() >= 4 << 20
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.max_memory_reserved() >= torch.accelerator.memory_reserved()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.memory_stats()["allocation.all.allocated"] == 0
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total
    torch.accelerator.empty_cache()
    if PYTORCH >= (2, 12):
        torch.accelerator.empty_host_cache()
    torch.accelerator.synchronize()


def test_capability_covers_every_dtype():
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.qint8} <= set(dtypes)


def test_properties():
    p = torch.dev.get_device_properties()
    assert p.name.startswith("dev (") and p.total_memory == torch.dev.mem_get_info()[1]
    assert p.multi_processor_count == len(os.sched_getaffinity(0))
    assert torch.dev.get_device_name(1) == p.name and torch.dev.get_device_capability() == (p.major, p.minor)
    assert torch.dev.is_available() and torch.dev.is_bf16_supported()
    assert torch.bfloat16 in torch.dev.get_amp_supported_dtype()
    with pytest.raises(RuntimeError):
        torch.dev.get_device_properties(99)
    for name in torch.dev.__all__:
        assert getattr(torch.dev, name).__doc__, name


def test_parts_of_the_module_are_modules():
    import torch.dev.random
    from torch.dev.memory import memory_stats

    assert memory_stats is torch.dev.memory.memory_stats is torch.dev.memory_stats
    assert torch.dev.random.get_rng_state is torch.dev.get_rng_state
    assert torch.dev.streams.Stream is torch.dev.Stream and torch.dev.Stream.priority_range() == (0, -1)


def test_torch_dev_and_torch_occl_dev_are_one_package(run_python):
    said = run_python("""
        import sys, torch
        import torch_occl.dev.memory, torch.dev.streams, torch.dev._index
        parts = [name for name in sys.modules if name.startswith("torch.dev.")]
        assert torch.dev is torch_occl.dev and torch.dev.memory is torch_occl.dev.memory
        print(sorted(parts))
        assert all(sys.modules[name] is sys.modules["torch_occl" + name[len("torch"):]] for name in parts)
    """)
    assert "torch.dev.memory" in said


def test_the_package_of_the_device_says_that_there_is_none(run_python):
    said = run_python("import torch_occl.dev; print(torch_occl.dev.is_available())", OCCL_DEVICE="0")
    assert said.strip() == "False"


def test_what_cuda_has_and_this_device_does_not():
    assert not torch.dev.is_tf32_supported() and not torch.dev.is_current_stream_capturing()
    assert torch.dev.can_device_access_peer(0, "dev:1")
    with pytest.raises(RuntimeError, match="invalid device index 9"):
        torch.dev.can_device_access_peer(0, 9)


def test_device_of_a_pointer():
    x = torch.empty(10, device="dev:3")
    assert _C._device_of_pointer(x.data_ptr() + 4) == torch.device("dev:3")
    with pytest.raises(RuntimeError, match="does not lie in the memory of a dev device"):
        _C._device_of_pointer(torch.empty(1).data_ptr())


def test_pinned_memory():
    x = torch.randn(1000)
    p = x.pin_memory()
    assert p.is_pinned() and not x.is_pinned() and p[10:].is_pinned()
    assert torch.equal(p, x) and p.device.type == "cpu"
    assert torch.empty(3, pin_memory=True).is_pinned()
    back = p.to("dev").to("cpu", non_blocking=True)
    torch.dev.synchronize()
    assert torch.equal(back, x)
    address = p.data_ptr()
    del p
    assert torch.empty(1000, pin_memory=True).data_ptr() == address  # cached
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(1, device="dev", pin_memory=True)


def test_primary_context_appears_with_the_first_use(run_python):
    run_python(
        """
        import torch, torch_occl
        assert not torch.dev.is_initialized()
        torch.manual_seed(0)
        assert not torch._C._accelerator_isAllocatorInitialized()
        torch.ones(1, device="dev:1")
        assert torch.dev.is_initialized() and torch._C._accelerator_isAllocatorInitialized()
        torch.dev.init()
        """
    )


FORK = """
    import gc, os, sys, torch, torch_occl

    def in_child(code):
        pid = os.fork()
        if pid == 0:
            try:
                exec(code, globals())
            except RuntimeError as error:
                right = "Cannot re-initialize dev in forked subprocess" in str(error) and "'spawn'" in str(error)
                os._exit(3 if right else 4)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(4)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""  # noqa: E501


def test_a_forked_child_makes_its_thread_pool_before_autograd_starts_threads():
    """PyTorch drops the parent's pool at the first use, without a lock. That must not be by many threads."""
    script = (
        FORK
        + """
    torch.set_num_threads(3)  # a pool with two threads beside the caller's
    torch.get_num_threads()   # which PyTorch would otherwise do in the child
    assert not in_child("torch.ones(1, device='dev'); assert len(os.listdir('/proc/self/task')) == 3")
    print(len(os.listdir('/proc/self/task')))
    """
    )
    quiet = ("-W", "ignore::DeprecationWarning")  # Python 3.12 warns of forks beside threads
    assert interpreter.run_python(*quiet, "-c", textwrap.dedent(script), OCCL_DEVICE="1").strip() == "3"


def test_fork_after_use(run_python):
    """Whatever touches the device raises; what does not, works."""
    refused = [
        "torch.ones(1, device='dev')", "x.add_(1)", "x.cpu()", "torch.dev.set_device(1)", "torch.dev.init()",
        "torch.dev.Stream()", "torch.dev.synchronize()", "torch.dev.empty_cache()", "x[0].item()",
        "torch.ones(3).to('dev')", "torch.empty(3, pin_memory=True)", "torch.dev.current_device()",
        "torch.dev.get_rng_state()", "torch.Generator('dev')", "torch.dev.set_stream(stream)",
    ]  # fmt: skip
    fine = [
        "torch.ones(3).add(1).sum()", "torch.manual_seed(0)", "global x; del x; gc.collect()", "x.shape",
        "assert torch.dev._is_in_bad_fork() and not torch.dev.is_initialized()",
    ]  # fmt: skip
    out = run_python(
        FORK
        + f"""
    x, stream = torch.ones(1000, device="dev"), torch.dev.Stream()
    print([in_child(code) for code in {refused!r}], [in_child(code) for code in {fine!r}])
    assert x.sum().item() == 1000
    """
    )
    assert out.strip() == f"{[3] * len(refused)} {[0] * len(fine)}"


def test_fork_before_use_is_fine(run_python):
    out = run_python(
        FORK
        + """
    print(in_child("assert torch.ones(3, device='dev').sum().item() == 3"))
    """
    )
    assert out.strip() == "0"


def test_no_device_when_told_so(run_python):
    run_python(
        """
        import torch, torch_occl
        from torch_occl.dev import _registration
        assert _registration.register() is None and not _registration.registered()
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        assert not hasattr(torch, "dev") and not torch.accelerator.is_available()
        import torch.distributed as dist
        assert dist.is_backend_available("occl") and dist.Backend.backend_capability["occl"] == ["cpu"]
        """,
        OCCL_DEVICE="0",
    )


def test_privateuse1_of_another_package_is_left_alone(run_python):
    run_python(
        """
        import torch
        torch.utils.rename_privateuse1_backend("npu")
        import torch_occl
        from torch_occl.dev import _registration
        assert _registration.register() == "npu" and not _registration.registered()
        assert not hasattr(torch, "dev")
        import torch.distributed as dist
        assert dist.is_backend_available("occl") and dist.Backend.backend_capability["occl"] == ["npu", "cpu"]
        try:
            torch.ones(1, device="npu")
        except (RuntimeError, ImportError):
            pass
        else:
            raise AssertionError
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_device_count_from_the_environment(run_python):
    run_python(
        "import torch, torch_occl; assert torch.dev.device_count() == 2; torch.ones(1, device='dev:1')",
        OCCL_DEVICE_COUNT="2",
    )


@pytest.mark.parametrize("count", first(["65", "0", "many"]))
def test_a_device_count_that_is_none_is_refused_at_import(run_python, count):
    run_python(
        f"""
        try:
            import torch, torch_occl
        except ValueError as error:
            assert "OCCL_DEVICE_COUNT must be a number from 1 to 64, not" in str(error) and {count!r} in str(error)
        else:
            raise AssertionError
        """,  # noqa: E501
        OCCL_DEVICE_COUNT=count,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_memory_fraction_from_the_environment(run_python):
    run_python(
        """
        import torch, torch_occl
        assert abs(torch.dev.get_per_process_memory_fraction() - 0.01) < 1e-6
        try:
            torch.empty(int(0.02 * torch.dev.mem_get_info()[1]), dtype=torch.uint8, device="dev")
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError
        """,
        OCCL_MEMORY_FRACTION="0.01",
    )


def test_a_memory_fraction_that_is_none_is_refused_at_import(run_python):
    run_python(
        """
        try:
            import torch_occl
        except ValueError as error:
            assert "OCCL_MEMORY_FRACTION must be a number above 0 and at most 1" in str(error)
        else:
            raise AssertionError
        """,
        OCCL_MEMORY_FRACTION="half",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_version_is_checked():
    with pytest.raises(ImportError, match=r"torch>=2.11,<2.16"):
        versions.check("2.10.0")
