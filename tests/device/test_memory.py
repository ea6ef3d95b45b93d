"""Memory: allocation, caching, limits, what goes back to the system, and where it lies."""

import gc
import itertools
import os
import threading

import pytest
import torch

import torch_occl


def resident(device: int = 0) -> int:
    """Bytes that the kernel has committed to regions of devices and of the CPU, from the files themselves."""
    seen, total = set(), 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:occl-dev"):
                status = os.stat(f"/proc/self/fd/{fd}")
                if status.st_ino not in seen:
                    seen.add(status.st_ino)
                    total += status.st_blocks * 512
        except OSError:
            pass
    return total


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    torch.dev.empty_cache()
    torch.dev.reset_peak_memory_stats()


def test_counts_what_tensors_hold():
    before = torch.dev.memory_allocated()
    x = torch.empty(1000, dtype=torch.uint8, device="dev")
    assert torch.dev.memory_allocated() - before == 1024  # whole cache lines
    y = x[10:]
    del x
    assert torch.dev.memory_allocated() - before == 1024
    del y
    assert torch.dev.memory_allocated() == before


def test_peak_is_kept_until_reset():
    before = torch.dev.memory_allocated()
    x = torch.empty(1 << 22, device="dev")
    del x
    assert torch.dev.max_memory_allocated() >= before + (1 << 24)
    torch.dev.reset_peak_memory_stats()
    assert torch.dev.max_memory_allocated() == torch.dev.memory_allocated()


def test_memory_is_aligned_to_cache_lines():
    for n in (1, 3, 64, 65, 1000, 1 << 20):
        assert torch.empty(n, dtype=torch.uint8, device="dev").data_ptr() % 64 == 0


def test_freed_memory_is_used_again():
    x = torch.empty(12345, device="dev")
    address = x.data_ptr()
    del x
    assert torch.empty(12345, device="dev").data_ptr() == address


def test_a_loop_reserves_no_more_than_it_needs():
    def step():
        a = torch.empty(3 << 20, dtype=torch.uint8, device="dev")
        b = torch.empty(5 << 20, dtype=torch.uint8, device="dev")
        del a
        c = torch.empty(2 << 20, dtype=torch.uint8, device="dev")
        return b, c

    kept = step()
    reserved = torch.dev.memory_reserved()
    for _ in range(100):
        del kept
        kept = step()  # noqa: F841  (held for one turn of the loop)
    assert torch.dev.memory_reserved() == reserved


def test_neighbours_that_are_free_become_one_block():
    blocks = [torch.empty(1 << 20, dtype=torch.uint8, device="dev") for _ in range(16)]
    reserved = torch.dev.memory_reserved()
    for i in range(0, 16, 2):
        blocks[i] = None
    for i in range(1, 16, 2):
        blocks[i] = None
    torch.empty(16 << 20, dtype=torch.uint8, device="dev")
    assert torch.dev.memory_reserved() == reserved


def test_blocks_never_overlap():
    generator = torch.Generator().manual_seed(0)
    live = {}
    for i in range(3000):
        if len(live) > 50:
            key = list(live)[int(torch.randint(len(live), (1,), generator=generator))]
            tensor, value = live.pop(key)
            assert bool((tensor == value).all())
        n = int(
            torch.randint(
                1, 1 << int(torch.randint(1, 18, (1,), generator=generator)), (1,), generator=generator
            )
        )
        live[i] = (torch.full((n,), i, dtype=torch.int32, device="dev"), i)
    for tensor, value in live.values():
        assert bool((tensor == value).all())
    blocks = [b for run in torch.dev.memory_snapshot() for b in run["blocks"]]
    for first, second in itertools.pairwise(blocks):
        assert first["address"] + first["size"] <= second["address"]


def test_empty_cache_returns_memory_to_the_system():
    start = resident()
    x = torch.ones(64 << 20, dtype=torch.uint8, device="dev")
    keep = torch.ones(100, device="dev")
    assert resident() - start >= 64 << 20
    del x
    assert resident() - start >= 64 << 20  # cached
    torch.dev.empty_cache()
    assert resident() - start < 4 << 20
    assert keep.sum().item() == 100
    y = torch.zeros(64 << 20, dtype=torch.uint8, device="dev")  # the address range is good again
    assert int(y.sum(dtype=torch.int64)) == 0


def test_reserved_is_what_the_kernel_has_committed():
    def on_the_cpu():  # what other tests have shared there
        return resident() - sum(torch.dev.memory_reserved(i) for i in range(torch.dev.device_count()))

    before = on_the_cpu()  # the kernel commits it page by page, when it is touched
    assert 0 <= before <= torch_occl.shared_cpu_memory_stats()["reserved_bytes.all.current"]
    x = torch.ones(10 << 20, dtype=torch.uint8, device="dev")  # noqa: F841
    torch.dev.empty_cache()
    assert on_the_cpu() == before


def test_absurd_size_is_out_of_memory_and_nothing_breaks():
    before = torch.dev.memory_stats()["num_ooms"]
    for n in (1 << 62, 1 << 50, 1 << 40):
        with pytest.raises(torch.dev.OutOfMemoryError, match=r"Tried to allocate .* on dev:0"):
            torch.empty(n, dtype=torch.uint8, device="dev")
    assert torch.dev.memory_stats()["num_ooms"] == before + 3
    assert torch.ones(3, device="dev").sum().item() == 3


def test_out_of_memory_in_the_middle_of_an_operation_leaves_things_as_they_were():
    x = torch.ones(1 << 12, 1, device="dev")
    before = torch.dev.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError):
        x.expand(1 << 12, 1 << 26).clone()
    assert torch.dev.memory_allocated() == before
    assert x.sum().item() == 1 << 12


def test_limit_is_obeyed_and_the_cache_of_other_devices_counts():
    total = torch.dev.mem_get_info()[1]
    torch.dev.empty_cache()
    used = sum(torch.dev.memory_reserved(i) for i in range(torch.dev.device_count()))
    before = torch.dev.get_per_process_memory_fraction()
    try:
        torch.dev.set_per_process_memory_fraction((used + (64 << 20)) / total)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(100 << 20, dtype=torch.uint8, device="dev")
        x = torch.empty(40 << 20, dtype=torch.uint8, device="dev:1")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(40 << 20, dtype=torch.uint8, device="dev:0")
        del x
        ooms = torch.dev.memory_stats()["num_ooms"]
        torch.empty(40 << 20, dtype=torch.uint8, device="dev:0")  # takes it from the cache of dev:1
        assert torch.dev.memory_stats()["num_ooms"] == ooms
    finally:
        torch.dev.set_per_process_memory_fraction(before)
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        torch.dev.set_per_process_memory_fraction(0)


def test_a_limit_for_a_device_that_is_none_is_refused():
    before = torch.dev.get_per_process_memory_fraction()
    with pytest.raises(RuntimeError, match="invalid device index 9"):
        torch.dev.set_per_process_memory_fraction(0.5, device=9)
    with pytest.raises(ValueError, match="expected a dev device"):
        torch.dev.set_per_process_memory_fraction(0.5, device="cpu")
    assert torch.dev.get_per_process_memory_fraction() == before


def test_memory_of_devices_is_apart():
    a, b = torch.ones(8, device="dev:0"), torch.zeros(8, device="dev:1")
    assert a.data_ptr() != b.data_ptr()
    before = torch.dev.memory_allocated(0)
    torch.empty(1 << 20, device="dev:1")
    assert torch.dev.memory_allocated(0) == before


def test_many_threads_allocate_and_free():
    errors = []

    def work(seed):
        try:
            generator = torch.Generator().manual_seed(seed)
            sizes = torch.randint(1, 20000, (1000,), generator=generator).tolist()
            live = []
            for i, n in enumerate(sizes):
                live.append(
                    (
                        torch.full((n,), seed * 1000 + i, dtype=torch.int32, device=f"dev:{seed % 2}"),
                        seed * 1000 + i,
                    )
                )
                if len(live) > 20:
                    tensor, value = live.pop(i % 20)
                    if not bool((tensor == value).all()):
                        errors.append((seed, i))
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    before = torch.dev.memory_allocated(0)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    gc.collect()
    assert torch.dev.memory_allocated(0) == before


def test_freed_in_another_thread():
    before = torch.dev.memory_allocated()
    box = [torch.empty(1000, device="dev")]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert torch.dev.memory_allocated() == before


def test_statistics_add_up():
    x = [torch.empty(n, device="dev") for n in (10, 1000, 1 << 20)]  # noqa: F841
    stats = torch.dev.memory_stats()
    for name in ("allocated_bytes", "active_bytes", "allocation"):
        for kind in ("current", "allocated", "freed"):
            assert (
                stats[f"{name}.all.{kind}"]
                == stats[f"{name}.small_pool.{kind}"] + stats[f"{name}.large_pool.{kind}"]
            )
    assert (
        stats["allocated_bytes.all.current"] + stats["inactive_split_bytes.all.current"]
        == torch.dev.memory_reserved()
    )
    nested = torch.dev.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == stats["allocated_bytes.all.current"]
    runs = torch.dev.memory_snapshot()
    assert sum(r["total_size"] for r in runs) == torch.dev.memory_reserved()
    assert sum(r["active_size"] for r in runs) == torch.dev.memory_allocated()
    assert len(runs) == stats["segment.all.current"]
    assert "Reserved memory" in torch.dev.memory_summary()


def test_record_stream_delays_reuse():
    stream = torch.dev.Stream()
    other = torch.dev.Stream()
    x = torch.ones(1 << 20, device="dev")
    gate = threading.Event()
    torch_occl_C()._device_enqueue(stream, gate.wait)
    x.record_stream(stream)
    x.record_stream(other)
    address, before = x.data_ptr(), torch.dev.memory_stats()["active_bytes.all.current"]
    del x
    y = torch.ones(1 << 20, device="dev")
    assert y.data_ptr() != address
    assert torch.dev.memory_stats()["active_bytes.all.current"] == before + (4 << 20)
    gate.set()
    torch.dev.synchronize()
    assert torch.dev.memory_stats()["active_bytes.all.current"] == before
    assert torch.ones(1 << 20, device="dev").data_ptr() == address


def torch_occl_C():
    from occl import _C

    return _C


def test_small_address_space_still_works(run_python):
    run_python(
        """
        import resource, torch, torch_occl
        size = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (size + (3 << 30), size + (3 << 30)))
        x = torch.ones(1 << 20, device="dev")
        assert x.sum().item() == 1 << 20
        try:
            torch.ones(1 << 33, dtype=torch.uint8, device="dev")
        except torch.OutOfMemoryError as error:
            assert "dev:0" in str(error)
        else:
            raise AssertionError
        assert (x + 1).sum().item() == 2 << 20
        """
    )


def test_no_file_is_left_in_dev_shm():
    torch.ones(1 << 20, device="dev")
    assert not [name for name in os.listdir("/dev/shm") if "occl" in name]
