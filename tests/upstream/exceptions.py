"""PyTorch's tests that do not pass with occl, by name, with the reason and the error. There is no other list.

`test_distributed.py` runs each of them, and wants this error on these ranks and none on the others.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Excepted:
    """How a test is expected to fail, where, and why."""

    reason: str
    error: str | dict[str, str]
    """A regular expression for how the error begins, with its type; by device where they differ."""
    first: int = 0
    """The first rank that fails. The ones before it run the test to its end."""
    devices: tuple[str, ...] = ("cpu", "dev")
    world_sizes: tuple[int, ...] = (2, 3, 4)

    def errors(self, device: str, world_size: int) -> dict[int, str]:
        error = self.error if isinstance(self.error, str) else self.error[device]
        return dict.fromkeys(range(self.first, world_size), error)


EXCEPTIONS = (
    {
        "test_DistributedDataParallel": Excepted(
            "a DDP model with a static graph that is saved and loaded in the middle of training no longer "
            "sums its gradients; disabled by PyTorch (issue 77317), and it fails with Gloo in the same way",
            r"AssertionError: Tensor-likes are not close!\n\nMismatched elements: \d+ / 20 ",
        ),
        "test_ddp_profiling_execution_trace": Excepted(
            "counts NCCL's events of a trace, with one of a wait; disabled by PyTorch (issue 137765)",
            {
                "cpu": "AssertionError: String comparison failed: 'occl' != 'nccl'",
                "dev": "AssertionError: Scalars are not equal!\n\nExpected 3 but got 2",
            },
        ),
        "test_ddp_has_finalized": Excepted(
            "all ranks but rank 0 wait for rank 0 until NCCL's watchdog kills them; disabled by PyTorch "
            "(issue 102751)",
            r"DistBackendError: (rank \d .* ended group 0: )*occl: Timed out waiting 5000ms for all_reduce",
            first=1,
        ),
        "test_ddp_device": Excepted(
            "looks whether inputs came to the device of a number, which the CPU does not have",
            r"AssertionError: None mismatch: None is not \d$",
            devices=("cpu",),
        ),
        "test_ddp_logging_data_gpu": Excepted(
            "looks for the number of a device, which the CPU does not have",
            r"AssertionError: String comparison failed: '' != '\d'",
            devices=("cpu",),
        ),
    }
    | {
        name: Excepted(
            "thirds are rounded, and after three steps some numbers differ by a little more than the 1.3e-6 "
            "of their size that the test allows; with Gloo too",
            r"AssertionError: Tensor-likes are not close!\n\n.*\n.*\n"
            r"Greatest relative difference: \d\.\d+e-06 ",
            world_sizes=(3,),
        )
        for name in (
            "test_ddp_apply_optim_in_backward",
            "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false",
        )
    }
    | {
        name: Excepted(
            "DistributedDataParallel refuses SyncBatchNorm on the CPU",
            "ValueError: SyncBatchNorm layers only work with GPU modules$",
            devices=("cpu",),
        )
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
            "test_ddp_sync_bn_training_vs_eval",
            "test_ddp_uneven_inputs_stop_iteration_sync_bn",
            "test_sync_bn_logged",
        )
    }
)

SLOW = {
    "test_barrier_timeout_group",
    "test_ddp_apply_optim_in_backward",
    "test_ddp_has_finalized",
    "test_ddp_model_diff_shape_across_ranks",
    "test_ddp_uneven_inputs",
}
"""None of these stands for its family by default. Most wait for timeouts of 5 or 10 seconds."""
SLOWEST = "test_ddp_uneven_inputs"
"""Takes a minute: only `make test-all` runs it."""


def find(name: str, device: str, world_size: int) -> Excepted | None:
    """How the test is expected to fail in this configuration; None if it is to pass."""
    excepted = EXCEPTIONS.get(name)
    listed = excepted and device in excepted.devices and world_size in excepted.world_sizes
    return excepted if listed else None
