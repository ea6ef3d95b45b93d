"""A backend that is broken on purpose: Gloo, with a defect in each of some operations.

The tests of `occl.conformance` run the suite on it: each defect must get its verdict.
"""

from __future__ import annotations

import os
import signal
import threading

import torch.distributed as dist


class Broken(dist.ProcessGroup):
    """Passes everything on to Gloo, but for the defects."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def name(self):
        return "broken"

    def allreduce(self, tensors, opts=None):
        """Of float64, rank 1 has one element wrong; of int32 the input is not reduced on rank 0."""
        opts = opts or dist.AllreduceOptions()
        work = self.gloo.allreduce(tensors, opts)
        if str(tensors[0].dtype) == "torch.float64" and self.rank() == 1:
            work.wait()
            tensors[0][-1] += 1
        return work

    def allgather(self, outputs, inputs, opts=None):
        """Rank 1 never returns."""
        if self.rank() == 1:
            threading.Event().wait()
        return self.gloo.allgather(outputs, inputs, opts or dist.AllgatherOptions())

    def gather(self, outputs, inputs, opts):
        """Rank 1 dies."""
        if self.rank() == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.gloo.gather(outputs, inputs, opts)

    def scatter(self, outputs, inputs, opts):
        """It is refused, and the error does not say why."""
        raise KeyError("scatter")

    def reduce(self, tensors, opts):
        """It is refused on every rank, and clearly."""
        raise NotImplementedError("the backend 'broken' has no reduce")

    def reduce_scatter(self, outputs, inputs, opts):
        """Only rank 0 refuses, and leaves the others waiting."""
        if self.rank() == 0:
            raise NotImplementedError("the backend 'broken' has no reduce_scatter on rank 0")
        return self.gloo.reduce_scatter(outputs, inputs, opts)

    def alltoall(self, outputs, inputs, opts=None):
        """It returns when it has ended, so that no call is ever pending."""
        work = self.gloo.alltoall(outputs, inputs, opts or dist.AllToAllOptions())
        work.wait()
        return work

    def broadcast(self, tensors, opts):
        """What a wrong root sends is accepted silently."""
        if not 0 <= opts.rootRank < self.size():
            opts = dist.BroadcastOptions()
        return self.gloo.broadcast(tensors, opts)

    def barrier(self, opts=None):
        return self.gloo.barrier(opts or dist.BarrierOptions())

    def send(self, tensors, destination, tag):
        return self.gloo.send(tensors, destination, tag)

    def recv(self, tensors, source, tag):
        return self.gloo.recv(tensors, source, tag)


dist.Backend.register_backend("broken", Broken, devices=["cpu"])
