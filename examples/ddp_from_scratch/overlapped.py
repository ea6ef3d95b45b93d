"""Step 3: gradients travel while the backward pass still computes others.

The backward pass goes from the last layer to the first. As soon as a gradient is ready, autograd calls a
hook; as soon as all gradients of a bucket are, its all_reduce starts, and the backward pass goes on beside
it. When the pass ends, only the last bucket is still in flight.

        rank 0   backward:  [ layer 3 ][ layer 2 ][ layer 1 ]
                 on its way:           [  bucket 0  ][  bucket 1  ]  -> optimizer

Three details make this idea usable for training.

*Order.* Collectives of a group must be called in the same order on every rank, but the order in which
gradients become ready may differ from rank to rank. So bucket i waits until bucket i - 1 has been sent off.

*Views.* The gradient of a parameter becomes a view of its bucket: after the all_reduce the mean is where the
optimizer looks for it, and nothing is copied back.

*Missing gradients.* A parameter without a part in this batch's loss gets no hook call, and its bucket would
wait forever. At the end of the backward pass such gradients count as zero. But a gradient of zero is not the
same as none: an optimizer with momentum moves a parameter whose gradient is zero, and not one without a
gradient. So the ranks also count how many of them used each parameter, and a parameter that no rank used
keeps its gradient.

What PyTorch's DDP does beyond this: it learns the order of arrival in the first step and fills its buckets in
that order. It finds unused parameters before the backward pass by walking through the graph, so that their
buckets need not wait for the end of the pass. And all of that happens in C++.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from bucketed import Bucket, fill_buckets
from naive import make_equal
from torch import nn
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves


class OverlappedDDP(nn.Module):
    """Used like torch.nn.parallel.DistributedDataParallel: gradients are averaged when ``backward`` returns.

    Args:
        module: this rank's replica.
        group: the ranks that train together; all of them by default.
        bucket_cap_mb: the size in MiB at which a bucket is full.
        find_unused_parameters: allow parameters without a gradient in a step, on some ranks or on all.
        broadcast_buffers: copy rank 0's buffers to all ranks before each forward pass that will be averaged.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
    ) -> None:
        super().__init__()
        self.module, self.group = module, group
        self.scale = 1 / dist.get_world_size(group)
        self.find_unused = find_unused_parameters
        self.shared_buffers = list(module.buffers()) if broadcast_buffers else []
        self.averaging = True
        make_equal(module, group)
        self.buckets = fill_buckets(module.parameters(), bucket_cap_mb)
        self.place: dict[nn.Parameter, tuple[Bucket, torch.Tensor]] = {}
        for bucket in self.buckets:
            for p, view in zip(bucket.parameters, bucket.views, strict=True):
                self.place[p] = bucket, view
                p.register_post_accumulate_grad_hook(self._gradient_is_ready)
        self._expect_gradients()

    def _expect_gradients(self) -> None:
        """The state of a backward pass that has not begun."""
        self.begun = False
        self.ready: set[nn.Parameter] = set()
        self.waiting_for = {bucket: len(bucket.parameters) for bucket in self.buckets}
        self.sent: list[dist.Work] = []

    # ---- forward ----------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        averaging = self.averaging and torch.is_grad_enabled()
        if averaging and self.begun:
            # Ranks may have sent different buckets, so this backward pass cannot be resumed.
            raise RuntimeError(
                "the last backward pass has not come to its end (did it raise an exception?), and its "
                "gradients are averaged in part: make a new OverlappedDDP, on all ranks, in a new group"
            )
        if averaging and self.shared_buffers:
            works = [
                dist.broadcast(buffer, group=self.group, group_src=0, async_op=True)
                for buffer in self.shared_buffers
            ]
            for work in works:
                work.wait()
        output = self.module(*args, **kwargs)
        if averaging and self.find_unused:
            # If this rank uses no parameter at all, the other ranks still wait for its part.
            for leaf in tree_leaves(output):
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                    leaf.register_hook(lambda gradient: self._begin())
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients accumulate on each rank. The next backward pass outside averages their sum."""
        before, self.averaging = self.averaging, False
        try:
            yield
        finally:
            self.averaging = before

    # ---- backward ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The first sign of a backward pass. Autograd will call ``_finish`` at its very end.

        ``queue_callback`` is private to PyTorch and may change; FSDP uses it, and there is no public way.
        """
        if self.averaging and not self.begun:
            self.begun = True
            Variable._execution_engine.queue_callback(self._finish)

    @torch.no_grad()
    def _gradient_is_ready(self, p: nn.Parameter) -> None:
        if self.averaging:
            self._begin()
            self.ready.add(p)
            self._put_into_bucket(p)
            self._send_complete_buckets()

    def _put_into_bucket(self, p: nn.Parameter) -> None:
        bucket, view = self.place[p]
        if p.grad is None:
            view.zero_()
        elif p.grad is view:  # since an earlier step; the backward pass added to it in place
            view.mul_(self.scale)
        else:
            torch.mul(p.grad, self.scale, out=view)
            p.grad = view
        self.waiting_for[bucket] -= 1

    def _send_complete_buckets(self) -> None:
        while len(self.sent) < len(self.buckets):
            bucket = self.buckets[len(self.sent)]
            if self.waiting_for[bucket]:
                break
            # async_op: this only starts the operation. Another thread drives it.
            self.sent.append(dist.all_reduce(bucket.flat, group=self.group, async_op=True))

    @torch.no_grad()
    def _finish(self) -> None:
        try:
            unused = [p for p in self.place if p not in self.ready]
            if unused and not self.find_unused:
                names = [name for name, p in self.module.named_parameters() if p in set(unused)]
                raise RuntimeError(
                    f"no gradient came for {', '.join(names)}: find_unused_parameters=True allows it"
                )
            # An unused parameter can still have a gradient, from passes under no_sync.
            without = {p for p in unused if p.grad is None}
            for p in unused:
                self._put_into_bucket(p)
            self._send_complete_buckets()
            if self.find_unused:
                for p in without & self._with_gradient_somewhere(without):
                    p.grad = self.place[p][1]
            for work in self.sent:
                work.wait()
        finally:
            self._expect_gradients()

    def _with_gradient_somewhere(self, without: set[nn.Parameter]) -> set[nn.Parameter]:
        """The parameters with a gradient on some rank. ``without``: those that have none on this rank."""
        counts = torch.tensor([p not in without for p in self.place], dtype=torch.int32)
        counts = counts.to(self.buckets[0].flat.device)
        dist.all_reduce(counts, group=self.group)
        return {p for p, count in zip(self.place, counts.tolist(), strict=True) if count}
