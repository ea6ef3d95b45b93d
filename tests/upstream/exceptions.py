"""PyTorch's tests that do not pass with occl, by name, with the reason. There is no other list.

`test_distributed.py` runs each of them and wants it to fail.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Excepted:
    """Where a test is expected to fail, and why."""

    reason: str
    devices: tuple[str, ...] = ("cpu", "dev")
    world_sizes: tuple[int, ...] = (2, 3, 4)


EXCEPTIONS = (
    {
        "test_nccl_high_priority_stream": Excepted("makes a ProcessGroupNCCL by its class"),
        "test_monitored_barrier_allreduce_hang": Excepted(
            "wants NCCL's words, 'caught collective operation timeout', of a timeout"
        ),
        "test_monitored_barrier_allreduce_hang_wait_all_ranks": Excepted(
            "wants NCCL's words, 'caught collective operation timeout', of a timeout"
        ),
        "test_barrier_timeout_arg": Excepted(
            "rank 0 is to time out after 1 ms while the others leave the group, which occl tells it first; "
            "PyTorch has disabled it on Linux (issue 179691)"
        ),
        "test_DistributedDataParallel": Excepted(
            "PyTorch has disabled it on Linux (issue 77317); it fails with Gloo in the same way"
        ),
        "test_ddp_logging_data_cpu": Excepted(
            "logging: the name of a backend from outside is 'custom' in DDP's data", devices=("cpu", "dev")
        ),
        "test_ddp_profiling_execution_trace": Excepted(
            "logging: NCCL's metadata in an execution trace; disabled by PyTorch (issue 137765)"
        ),
        "test_SyncBatchNorm_process_group": Excepted("needs torchvision"),
        "test_ddp_sync_bn_training_vs_eval": Excepted(
            "logging: looks for an event whose name PyTorch has changed; disabled by PyTorch (113620)"
        ),
        "test_ddp_has_finalized": Excepted(
            "wants NCCL's watchdog to kill the ranks that wait; disabled by PyTorch (issue 102751)"
        ),
        "test_ddp_hook_pickling_powerSGD": Excepted(
            "loads a pickle without weights_only=False, which torch.load refuses; disabled by PyTorch"
        ),
        "test_ddp_device": Excepted(
            "looks whether inputs came to the device of a number, which the CPU does not have",
            devices=("cpu",),
        ),
        "test_ddp_logging_data_gpu": Excepted(
            "logging: looks for the number of a device, which the CPU does not have", devices=("cpu",)
        ),
    }
    | {
        name: Excepted(
            "after three steps, 11 of 3072 numbers differ by 4e-5, which the test does not allow: thirds are "
            "rounded; it fails with Gloo in the same way",
            world_sizes=(3,),
        )
        for name in (
            "test_ddp_apply_optim_in_backward",
            "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false",
        )
    }
    | {
        name: Excepted("DistributedDataParallel refuses SyncBatchNorm on the CPU", devices=("cpu",))
        for name in (
            "test_DistributedDataParallel_SyncBatchNorm",
            "test_DistributedDataParallel_SyncBatchNorm_2D_Input",
            "test_DistributedDataParallel_SyncBatchNorm_Channels_Last",
            "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value",
            "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient",
            "test_DistributedDataParallel_SyncBatchNorm_No_Affine",
            "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process",
            "test_DistributedDataParallel_SyncBatchNorm_half",
            "test_ddp_inference",
            "test_ddp_uneven_inputs_stop_iteration_sync_bn",
            "test_sync_bn_logged",
        )
    }
)

SLOW = {
    "test_barrier_timeout_arg": 4,
    "test_barrier_timeout_group": 4,
    "test_ddp_apply_optim_in_backward": 4,
    "test_ddp_has_finalized": 4,
    "test_ddp_model_diff_shape_across_ranks": 4,
    "test_ddp_uneven_inputs": 2,
    "test_monitored_barrier_allreduce_hang": 4,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": 4,
}
"""By default these run with so many ranks only. Most wait for timeouts of 5 or 10 seconds; the uneven inputs
take a minute with four ranks."""


def reason(name: str, device: str, world_size: int) -> str:
    """Why the test is expected to fail in this configuration; "" if it is not."""
    exception = EXCEPTIONS.get(name)
    if exception and device in exception.devices and world_size in exception.world_sizes:
        return exception.reason
    return ""
