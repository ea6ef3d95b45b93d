"""The extension module (``csrc/bind``). What users need is in ``torch_occl`` and ``torch.dev``."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, overload

import torch
import torch._C._distributed_c10d as c10d

# ---- the backend ---------------------------------------------------------------------------------------

class ArgumentError(ValueError, RuntimeError):
    """Wrong arguments: what NCCL raises as ValueError and Gloo as RuntimeError."""

class ProcessGroupOCCL(c10d.Backend):
    """The backend ``occl`` of one group; ``torch.distributed`` makes it."""

    class Options(c10d.Backend.Options):
        """Options of one group, which copies them when it is made."""

        def __init__(
            self,
            timeout: timedelta = ...,
            *,
            tuning: Mapping[str, int] = ...,
            staging_bytes: int = 0,
            inter_node: None | str | c10d.Backend = None,  # noqa: RUF036  (as the module says it)
        ) -> None: ...
        @property
        def tuning(self) -> Mapping[str, int]:
            """Thresholds by name, as in ``OCCL_TUNING``, which they override. Those of rank 0 hold."""
        @tuning.setter
        def tuning(self, numbers: Mapping[str, int]) -> None: ...
        @property
        def staging_bytes(self) -> int:
            """Shared memory through which a rank stages tensors that peers cannot map; 0: the default."""
        @staging_bytes.setter
        def staging_bytes(self, number: int) -> None: ...
        @property
        def inter_node(self) -> None | str | c10d.Backend:  # noqa: RUF036  (as the module says it)
            """What carries messages between nodes: ``"gloo"``, ``"ucx"``, or a backend of the same ranks.
            None: as ``OCCL_INTER_NODE`` says, or Gloo."""
        @inter_node.setter
        def inter_node(self, carrier: None | str | c10d.Backend) -> None: ...  # noqa: RUF036  (as the module says it)

    @overload
    def __init__(
        self,
        store: c10d.Store,
        rank: int,
        size: int,
        options: ProcessGroupOCCL.Options,
        parent: ProcessGroupOCCL | None = None,
        ranks: Sequence[int] = (),
    ) -> None:
        """Makes the group, which all its ranks must call.

        With `parent`, `ranks` of that group make this one and meet through it.

        Args:
            store: where the ranks meet; unused with `parent`.
            rank: this rank, from 0 to `size` - 1.
            size: the number of ranks, at most 256.
            options: see `Options`.
            parent: the group whose ranks make this one.
            ranks: which ranks of `parent`, in the order of the new group.

        Raises:
            DistBackendError: a rank did not come, died, or cannot share memory and has no engine.
            ArgumentError: rank, size or ranks do not fit.
        """
    @overload
    def __init__(self, store: c10d.Store, rank: int, size: int, timeout: timedelta = ...) -> None:
        """The same with default options and this timeout."""
    @property
    def options(self) -> ProcessGroupOCCL.Options:
        """A copy of the options this group was made with."""

    def perform_nocolor_split(self, device: object) -> None:
        """Does nothing: ranks outside of a new group have no part in making it."""

    def merge(self, store: c10d.Store, rank: int, size: int) -> c10d.Backend:
        """A new group of the `size` ranks that meet at `store`, whatever groups they come from.

        Raises:
            DistBackendError: a rank did not come, or died.
        """

    def _describe(self) -> str:
        """What was chosen for this group, in a line for logs."""

    def _ranks_and_cores(self) -> tuple[int, int]:
        """Of this host: the ranks of the group, and the cores that they may run on together."""

    def memory_stats(self) -> dict[str, int]:
        """Bytes of shared memory by what they are for: `group.control_bytes`, `process.staging_bytes`, ..."""

    def _supports_window(self) -> bool: ...
    def _new_window(self, tensor: torch.Tensor | None = None) -> Window:
        """See `occl.new_window`."""

    def _start_time_estimate(self) -> None: ...
    def _end_time_estimate(self) -> float: ...
    def _register_on_completion_hook(self, hook: object, /) -> None: ...
    def _register_abort_hook(self, hook_id: int, hook: object) -> None: ...
    def _unregister_abort_hook(self, hook_id: int) -> None: ...
    def _wait_for_pending_works(self) -> None: ...

class WorkOCCL(c10d.Work):
    """An operation of the backend: to wait for, or to ask how it ended.

    `wait()` raises DistBackendError if the operation failed: a mismatch, a timeout, or a rank that has gone.
    On `dev` it makes the current stream wait, and not the host.
    """

class PutOptions:
    """Of a put: the timeout, by default the group's. From PyTorch 2.14 on its own class, as the next ones."""

    def __init__(self) -> None: ...
    @property
    def timeout(self) -> timedelta: ...
    @timeout.setter
    def timeout(self, arg0: timedelta) -> None: ...
    @property
    def hints(self) -> dict[str, str]:
        """Not used."""
    @hints.setter
    def hints(self, arg0: Mapping[str, str]) -> None: ...

class SignalOptions:
    """The same of a signal."""

    def __init__(self) -> None: ...
    @property
    def timeout(self) -> timedelta: ...
    @timeout.setter
    def timeout(self, arg0: timedelta) -> None: ...
    @property
    def hints(self) -> dict[str, str]: ...
    @hints.setter
    def hints(self, arg0: Mapping[str, str]) -> None: ...

class WaitSignalOptions:
    """The same of a wait for a signal."""

    def __init__(self) -> None: ...
    @property
    def timeout(self) -> timedelta: ...
    @timeout.setter
    def timeout(self, arg0: timedelta) -> None: ...
    @property
    def hints(self) -> dict[str, str]: ...
    @hints.setter
    def hints(self, arg0: Mapping[str, str]) -> None: ...

class WindowAccessType:
    """UNIFIED: there is one copy, the rank's own memory."""

    UNIFIED: WindowAccessType
    SEPARATE: WindowAccessType
    def __init__(self, value: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class WindowAttr:
    """What kind of access a window gives to a rank's memory."""

    @property
    def access_type(self) -> WindowAccessType: ...

class Window:
    """Memory of each rank that the others read and write without its taking part: docs/one-sided.md."""

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Registers this rank's tensor. All ranks call it in the same order."""

    def tensor_deregister(self) -> None:
        """Waits for this rank's accesses, and for all ranks: then none writes into the tensor any more."""

    def put(
        self,
        tensor: torch.Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool,
        opts: PutOptions = ...,
    ) -> c10d.Work:
        """Writes a tensor into that of another rank, from an element on."""

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """The tensor of a rank, in that rank's memory."""

    def signal(self, peer_rank: int, async_op: bool, opts: SignalOptions = ...) -> c10d.Work:
        """Signals a rank, after all earlier puts of this one."""

    def wait_signal(self, peer_rank: int, async_op: bool, opts: WaitSignalOptions = ...) -> c10d.Work:
        """Waits for one more signal of a rank."""

    def get_attr(self, peer_rank: int) -> WindowAttr: ...

class WindowOCCL(Window):
    """A window of the backend."""

def _share_storage(tensor: torch.Tensor, name: str) -> None: ...
def _share_cpu_memory(min_bytes: int | None) -> int | None: ...
def _cpu_memory_stats() -> dict[str, int]: ...
def _empty_shared(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor in a region that peers map."""

def _replicas_reduce(
    outputs: Sequence[Sequence[torch.Tensor]],
    inputs: Sequence[Sequence[torch.Tensor]],
    mean: bool,
    factors: Sequence[float],
) -> None:
    """For each i: combines inputs[i] in their order and stores the result into every tensor of outputs[i]."""

def _waiting() -> tuple[float, float]:
    """For how many seconds a rank of this process has waited for others, and how many are left to one."""

def _make_room_for_descriptors() -> None:
    """Has the kernel enlarge the table of descriptors: free while the process has one thread."""

def _add_to_timeouts(text: str) -> None:
    """Says what errors of operations that time out within a few seconds say besides."""

def _set_build(build: str) -> None:
    """Says which versions this process runs; ranks with different ones form no group."""

def _set_prepare_inter_node(
    prepare: Callable[[bool], tuple[str, Callable[[c10d.Store, int, int, timedelta], c10d.Backend]]],
) -> None:
    """Says what prepares the backend between nodes (`occl.distributed.inter_node.prepare`)."""

def _set_prepare_tcp(prepare: Callable[[bool, bool], tuple[str, str]]) -> None:
    """Says where this process listens for other nodes (`occl.distributed.tcp.prepare`)."""

def _set_prepare_ucx(
    prepare: Callable[
        [bool, bool],
        tuple[str, list[str], list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]],
    ],
) -> None:
    """Says what finds UCX and its settings (`occl.distributed.ucx.prepare`)."""

def _ucx_version(libraries: Sequence[str], process: Sequence[tuple[str, str]]) -> str:
    """Of the first of these libraries that can be opened, which gets these settings for the process. Raises
    RuntimeError if none can be opened, or it is too old."""

def _init_device_groups() -> None:
    """Once ``dev`` is made: its quantized and sparse tensors reach their backend."""

def _start_trace(directory: str, max_bytes: int = ...) -> str:
    """Records what this process does; the path of the file."""

def _stop_trace() -> None: ...
def _control_region() -> memoryview | None:
    """What this process publishes to its peers, as it is now; None if it has had no group."""

def _records() -> bool:
    """Whether this process has a flight recorder."""

def _dump_flight_recorder(collectives: bool, stacks: bool, only_active: bool) -> bytes: ...
def _write_flight_recorder() -> bool: ...
def _forget_flight_recorder() -> None: ...
def _write_trace_file(rank: int, dump: bytes) -> None: ...
def _announce_end() -> None:
    """Tells peers that this process ends in good order, and does not die."""

def _isa() -> str:
    """The instruction set that the reduction kernels use here."""

# ---- the device ----------------------------------------------------------------------------------------

def _init_device(groups: Callable[[], None]) -> None:
    """Registers everything of `dev` that is C++; once in a process."""

def _device_taken() -> bool:
    """Whether another library has registered its hooks for PrivateUse1."""

def _device_count() -> int: ...
def _device_get() -> int:
    """The current device of this thread. A use, as `_device_set` and `_device_exchange` are."""

def _device_resolve(index: int, /) -> int:
    """`index`, or the current device for -1. Raises RuntimeError if there is no such device. No use of it."""

def _device_set(index: int, /) -> None: ...
def _device_exchange(index: int, /) -> int:
    """Makes a device current and returns the one that was."""

def _device_used() -> bool:
    """Whether this process has used a device: children that it forks may not."""

def _device_mark_used() -> None:
    """What every use of a device does first. Raises RuntimeError in a child that a user has forked."""

def _device_in_bad_fork() -> bool: ...
def _device_generator(index: int, /) -> torch.Generator:
    """The default generator of a device."""

def _device_of_pointer(address: int, /) -> torch.device:
    """The device in whose memory an address lies. Raises RuntimeError for any other address."""

def _device_enqueue(stream: torch.Stream, task: Callable[[], object], /) -> None:
    """For tests: a Python function as a task of a stream."""

def _device_drain(seconds: float, /) -> bool:
    """Waits at most that long for all streams; whether they have come to rest."""

def _device_share_memory(tensor: torch.Tensor, to: torch.device, /) -> torch.Tensor:
    """A tensor on `to` over the memory of a dense one: from dev to the CPU, or the reverse."""

def _device_move_storage(dev: torch.Tensor, cpu: torch.Tensor, /) -> None:
    """Makes the storage of a dev tensor use the memory of a CPU tensor, after copying what it holds."""

def _device_run_compiled(code: Callable[[list[Any]], Any], inputs: list[Any], index: int, /) -> list[Any]:
    """Calls code for the CPU on dev tensors. Empties `inputs`."""

def _device_memory_limit() -> int:
    """The most bytes that all devices of this process may reserve."""

def _device_set_memory_fraction(fraction: float, /) -> None: ...
def _device_memory_snapshot(index: int, /) -> list[list[dict[str, Any]]]:
    """The runs of reserved memory, each a list of its blocks."""
