"""The device, step by step, before there is a backend for it; then DistributedDataParallel with one."""

import copy

import my_backend  # noqa: F401  (registers it, in pytest's process and in the ranks)
import my_device  # noqa: F401  (makes the device)
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DEVICE = "my_device:0"


def test_tensors_go_there_and_come_back():
    for dtype in (torch.uint8, torch.bfloat16, torch.complex64):
        here = torch.arange(12).to(dtype).view(3, 4)
        there = here.to(DEVICE)
        assert there.device == torch.device(DEVICE)
        assert torch.equal(there.cpu(), here) and torch.equal(there.t().cpu(), here.t())
    assert torch.ones(3, device=DEVICE).resize_(5)[:3].tolist() == [1.0] * 3


def test_streams_run_later_than_the_calls():
    busy, other = torch.Stream(DEVICE), torch.Stream(DEVICE)
    x = torch.zeros(4, device=DEVICE)
    torch.accelerator.synchronize(DEVICE)
    with busy:
        torch.ops.my_device.hold(x)
        x.fill_(1)
        event = busy.record_event()
    with other:
        assert x.tolist() == [0] * 4 and not event.query()
        torch.ops.my_device.release()
        other.wait_event(event)
        assert x.tolist() == [1] * 4


def test_the_current_device_is_the_threads():
    torch.my_device.set_device(1)
    try:
        assert torch.empty(1, device="my_device").device.index == 1
    finally:
        torch.my_device.set_device(0)


def test_what_the_device_has_no_operator_for_the_cpu_computes():
    x = torch.arange(12.0, device=DEVICE).view(3, 4)
    assert torch.equal((x @ x.t()).cpu(), x.cpu() @ x.cpu().t())


def test_a_model_trains():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    there = copy.deepcopy(model).to(DEVICE)
    data = torch.randn(8, 4)
    for each, x in ((model, data), (there, data.to(DEVICE))):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            each(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(there.weight.cpu(), model.weight)


@pytest.mark.ranks(2, backend="my_backend", device="my_device")
def test_data_parallel_training_is_that_of_one_process(rank, world_size, device):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    ours = DistributedDataParallel(copy.deepcopy(model).to(device), init_sync=True)
    data = torch.randn(world_size * 4, 4)
    for each, x in ((model, data), (ours, data.chunk(world_size)[rank].to(device))):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(ours.module.weight.cpu(), model.weight)


@pytest.mark.ranks(2, backend="my_backend", device="my_device")
def test_a_call_comes_after_what_is_queued(rank, device):
    x = torch.zeros(1000, device=device)
    for i in range(20):  # each some time after the call
        x.fill_(rank + i)
    dist.all_reduce(x)
    x *= 2
    assert (x.cpu() == 2 * (19 + 20)).all()
