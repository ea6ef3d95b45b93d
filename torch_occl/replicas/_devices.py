"""The devices of one process: a thread and a stream for each."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, TypeVar

import torch

from torch_occl import dev
from torch_occl.dev._index import Device, device_index

T = TypeVar("T")


class ReplicaError(RuntimeError):
    """The code of a replica or a hook has raised; ``__cause__`` is what it raised."""


_here = threading.local()


def _busy() -> tuple[dev.Stream, ...]:
    """The stream of this thread's replica, and those of the replicas that wait for this thread."""
    return getattr(_here, "busy", ())


def _begin(device: torch.device, stream: dev.Stream) -> None:
    dev.set_device(device)
    dev.set_stream(stream)


def _make_autograd_engine() -> None:
    """Has PyTorch make the engine of this process now.

    A forked process makes it in its first backward pass, without a lock (torch 2.13): if replicas ran the
    first ones at the same time, one would replace the engine that another has begun to use.
    """
    with torch.inference_mode(False), torch.enable_grad():
        torch.zeros((), requires_grad=True).backward()


class _Worker:
    """One device: a thread that computes on it, with a side stream of the device current."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("dev", index)
        self.stream = dev.Stream(index)
        # The thread's arguments must not refer to the executor: a thread ends when its executor is collected.
        self.thread = ThreadPoolExecutor(1, f"dev:{index}", _begin, (self.device, self.stream))

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        # These settings are per thread: the replica's thread takes over those of the calling thread.
        grad, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled("dev")
        dtype = torch.get_autocast_dtype("dev")
        threads = torch.get_num_threads()
        stream, busy = self.stream, (*_busy(), self.stream)

        def call() -> T:
            _here.busy = busy
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            try:
                with torch.set_grad_enabled(grad), torch.autocast("dev", dtype, enabled=autocast):
                    return function(*arguments)
            finally:
                stream.synchronize()  # waits for queued copies; raises the error of one that failed

        return self.thread.submit(call)


class DeviceManager:
    """Some ``dev`` devices, with a thread and a stream for each, on which replicas run side by side.

    Each replica computes with as many threads as the thread that calls `run`: ``torch.set_num_threads``
    says how many. If the replicas use all cores, it is faster to set it to the number of cores divided by
    the number of devices. The threads end with `close`, or when nothing refers to the manager any more.

    Args:
        devices: which; all devices of this process by default.

    Raises:
        ValueError: the list is empty, names a device twice, or one that is not a ``dev`` device.
        RuntimeError: there is no such device.
    """

    def __init__(self, devices: Sequence[Device] | None = None) -> None:
        _make_autograd_engine()
        indices = range(dev.device_count()) if devices is None else map(device_index, devices)
        self._start([_Worker(index) for index in _distinct(list(indices))], owner=True)

    def _start(self, workers: list[_Worker], owner: bool) -> None:
        self._workers = workers
        self._owner = owner

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The devices, in the order of the replicas."""
        return tuple(worker.device for worker in self._workers)

    @property
    def streams(self) -> tuple[dev.Stream, ...]:
        """For each device the stream that is current in its thread."""
        return tuple(worker.stream for worker in self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def num_devices(self) -> int:
        """How many devices there are: ``len(manager)``."""
        return len(self)

    def get_queues(self) -> list[dev.Stream]:
        """The `streams` as a list: other functions' ``queues``, and the ``queue`` of ``forward_fn``."""
        return list(self.streams)

    def subset(self, devices: Sequence[Device]) -> DeviceManager:
        """A manager of these devices of this one, in this order. It shares their threads and streams.

        Raises:
            ValueError: the list is empty, names a device twice, or one that this manager does not have.
        """
        own = {worker.device.index: worker for worker in self._workers}
        indices = _distinct([device_index(device) for device in devices])
        if missing := [f"dev:{index}" for index in indices if index not in own]:
            raise ValueError(f"this manager has no {', '.join(missing)}; it has {_names(self.devices)}")
        part = DeviceManager.__new__(DeviceManager)
        part._start([own[index] for index in indices], owner=False)
        return part

    def run(self, function: Callable[..., T], *arguments: Sequence[Any]) -> list[T]:
        """Calls ``function(i, *(a[i] for a in arguments))`` for each replica ``i``, all at the same time.

        In replica ``i``, device ``devices[i]`` and stream ``streams[i]`` are current; gradients and autocast
        are enabled as in the calling thread. Returns when all calls and what they queued have ended.

        Returns:
            What the calls returned, in the order of the devices.

        Raises:
            ValueError: an argument has not one element for each device.
            ReplicaError: a call raised; the first one in the order of the devices.
            RuntimeError: the manager is closed, or the caller is one of its replicas, which would wait for
                itself.
        """
        if any(worker.stream is stream for worker in self._workers for stream in _busy()):
            raise RuntimeError(f"{self!r} runs, and this is one of its replicas: run() would wait for itself")
        for i, argument in enumerate(arguments):
            if len(argument) != len(self):
                raise ValueError(f"argument {i} has {len(argument)} elements for {len(self)} devices")
        futures = [
            worker.submit(function, i, *(argument[i] for argument in arguments))
            for i, worker in enumerate(self._workers)
        ]
        try:
            wait(futures)
        finally:
            # After Ctrl-C in the line above: no replica may still compute when this function returns.
            wait(futures)
        for i, future in enumerate(futures):
            if error := future.exception():
                raise ReplicaError(
                    f"replica {i} (on {self.devices[i]}) raised {type(error).__name__}: {error}"
                ) from error
        return [future.result() for future in futures]

    def synchronize(self) -> None:
        """Waits for all streams of all devices. Raises the exception of a task that failed."""
        for device in self.devices:
            dev.synchronize(device)

    def close(self) -> None:
        """Ends the threads. A subset leaves them to the manager it was made from."""
        if self._owner:
            for worker in self._workers:
                worker.thread.shutdown()

    def __enter__(self) -> DeviceManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DeviceManager({_names(self.devices)})"


def _names(devices: Sequence[torch.device]) -> str:
    return ", ".join(map(str, devices))


def _distinct(indices: list[int]) -> list[int]:
    if not indices:
        raise ValueError("the list of devices is empty")
    for index in indices:
        if indices.count(index) > 1:
            raise ValueError(f"dev:{index} is in the list of devices more than once")
    return indices


@functools.lru_cache(maxsize=8)
def _cached(pid: int, indices: tuple[int, ...]) -> DeviceManager:
    return DeviceManager(indices)


def manager_of(devices: Sequence[torch.device]) -> DeviceManager:
    """The manager of these devices, for functions whose callers pass none. It is kept for the next call."""
    return _cached(os.getpid(), tuple(map(device_index, devices)))
