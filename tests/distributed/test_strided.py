"""Tensors with gaps, expanded and transposed ones: results are those of contiguous ones."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.support.checks import assert_works, backend
from tests.support.devices import DEVICES
from tests.support.references import contribution

UNTOUCHED = -77


def dense(t):
    return t.contiguous()


def every_other(t):
    """With a gap behind each element."""
    return torch.stack([t, torch.full_like(t, UNTOUCHED)], -1)[..., 0]


def columns(t):
    """Transposed: no gaps, but in another order than the usual one."""
    return t.clone().t().contiguous().t() if t.dim() == 2 else dense(t)


def corner(t):
    """A part of a larger tensor, whose dimensions lie the other way round."""
    whole = torch.full([s + 2 for s in t.shape[::-1]], UNTOUCHED, dtype=t.dtype, device=t.device)
    view = whole.permute(*range(t.dim() - 1, -1, -1))
    for d, size in enumerate(t.shape):
        view = view.narrow(d, 1, size)
    return view.copy_(t)


LAYOUTS = {f.__name__: f for f in (dense, every_other, columns, corner)}
FLAT = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "uneven_all_to_all_single")


def memory(t):
    """All that lies in the tensor's storage."""
    return torch.as_strided(t, (t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)


class Operations:
    """Each of them makes tensors with `put`, runs, and returns (what was written, what it should be)."""

    def __init__(self, rank, n, device, rows, put):
        self.rank, self.n, self.device, self.rows, self.put = rank, n, device, rows, put

    def data(self, rank, rows=None, seed=0):
        rows = self.rows if rows is None else rows
        return contribution("int32", 10 * rank + seed, 3 * rows).view(rows, 3).to(self.device)

    def of(self, *args, **kwargs):
        return self.put(self.data(*args, **kwargs))

    def room(self, rows=None):
        return self.put(torch.zeros_like(self.data(0, rows)))

    def all(self, **kwargs):
        return [self.data(r, **kwargs) for r in range(self.n)]

    def broadcast(self):
        t = self.of(self.rank)
        dist.broadcast(t, self.n - 1)
        return [t], [self.data(self.n - 1)]

    def all_reduce(self):
        t = self.of(self.rank)
        dist.all_reduce(t)
        return [t], [sum(self.all())]

    def all_reduce_several(self):
        several = [self.of(self.rank), self.data(self.rank, seed=1), self.of(self.rank, seed=2)]
        backend(self.device).allreduce(several).wait()
        total = sum(sum(self.all(seed=s)) for s in range(3))
        return several, [total] * 3

    def all_reduce_coalesced(self):
        several = [self.of(self.rank), self.data(self.rank, seed=1), self.of(self.rank, seed=2)]
        dist.all_reduce_coalesced(several)
        return several, [sum(self.all(seed=s)) for s in range(3)]

    def reduce(self):
        t = self.of(self.rank)
        dist.reduce(t, 0)
        return [t], [sum(self.all()) if self.rank == 0 else self.data(self.rank)]

    def all_gather(self):
        out = [self.room() for _ in range(self.n)]
        dist.all_gather(out, self.of(self.rank))
        return out, self.all()

    def all_gather_into_tensor(self):
        out = self.room(self.rows * self.n)
        dist.all_gather_into_tensor(out, self.of(self.rank))
        return [out], [torch.cat(self.all())]

    def gather(self):
        out = [self.room() for _ in range(self.n)] if self.rank == 0 else None
        dist.gather(self.of(self.rank), out)
        return out or [], self.all() if out else []

    def scatter(self):
        out = self.room()
        dist.scatter(out, [self.of(0, seed=r) for r in range(self.n)] if self.rank == 0 else None)
        return [out], [self.data(0, seed=self.rank)]

    def reduce_scatter(self):
        out = self.room()
        dist.reduce_scatter(out, [self.of(self.rank, seed=r) for r in range(self.n)])
        return [out], [sum(self.all(seed=self.rank))]

    def reduce_scatter_tensor(self):
        out = self.room()
        dist.reduce_scatter_tensor(out, self.of(self.rank, rows=self.rows * self.n))
        whole = sum(self.all(rows=self.rows * self.n))
        return [out], [whole[self.rank * self.rows :][: self.rows]]

    def all_to_all(self):
        out = [self.room() for _ in range(self.n)]
        dist.all_to_all(out, [self.of(self.rank, seed=r) for r in range(self.n)])
        return out, self.all(seed=self.rank)

    def all_to_all_single(self):
        out = self.room(self.rows * self.n)
        dist.all_to_all_single(out, self.of(self.rank, rows=self.rows * self.n))
        parts = [t[self.rank * self.rows :][: self.rows] for t in self.all(rows=self.rows * self.n)]
        return [out], [torch.cat(parts)]

    def uneven_all_to_all_single(self):
        """Each rank gives rank r this multiple of r + 1 rows."""
        total = self.rows * self.n * (self.n + 1) // 2
        mine = self.rows * (self.rank + 1)
        out = self.room(mine * self.n)
        splits = [self.rows * (r + 1) for r in range(self.n)]
        dist.all_to_all_single(out, self.of(self.rank, rows=total), [mine] * self.n, splits)
        before = sum(splits[: self.rank])
        return [out], [torch.cat([t[before : before + mine] for t in self.all(rows=total)])]

    def messages(self):
        to, source = (self.rank + 1) % self.n, (self.rank - 1) % self.n
        out = [self.room() for _ in range(2)]
        sent = [dist.isend(self.of(self.rank, seed=i), to, tag=i) for i in range(2)]
        dist.recv(out[1], source, tag=1)
        dist.recv(out[0], tag=0)
        for work in sent:
            work.wait()
        return out, [self.data(source, seed=i) for i in range(2)]

    def batch(self):
        to, source = (self.rank + 1) % self.n, (self.rank - 1) % self.n
        out = self.room()
        ops = [dist.P2POp(dist.irecv, out, source), dist.P2POp(dist.isend, self.of(self.rank), to)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return [out], [self.data(source)]


OPERATIONS = [name for name in vars(Operations) if not name.startswith("_") and name not in ("data", "of")]
OPERATIONS = [name for name in OPERATIONS if name not in ("room", "all")]


def gives_the_same(rank, n, device, *, operation):
    """In each layout; also in one on this rank and contiguous on the others, where the order is free."""
    for name, layout in LAYOUTS.items():
        for rows in (0, 1, 2, 700, 30_000):
            mixes = [True, False] if operation in FLAT or name == "every_other" else [True]
            for everywhere in mixes:
                put = layout if everywhere or rank == 0 else dense
                written, expected = getattr(Operations(rank, n, device, rows, put), operation)()
                for t, value in zip(written, expected, strict=True):
                    assert torch.equal(t, value), (name, rows, everywhere)
                    if name in ("every_other", "corner") and put is layout:
                        rest = memory(t).eq(UNTOUCHED).sum()
                        assert rest >= memory(t).numel() - t.numel(), (name, rows, "wrote into the gaps")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_tensor_with_gaps_or_another_order_is_as_good_as_a_contiguous_one(pool, operation, device):
    pool.run(gives_the_same, 3, device, operation=operation)


def expanded_inputs(rank, n, device):
    """One row that stands for many."""
    for rows in (1, 3, 40_000):
        row = torch.arange(2, device=device) + 10 * rank
        t, full = row.expand(rows, 2), row.repeat(rows, 1)
        others = [full - 10 * rank + 10 * r for r in range(n)]
        out = torch.zeros(n * rows, 2, dtype=t.dtype, device=device)
        dist.all_gather_into_tensor(out, t)
        assert torch.equal(out, torch.cat(others))
        dist.all_gather(list(out.zero_().chunk(n)), t)
        assert torch.equal(out, torch.cat(others))
        dist.gather(t, list(out.zero_().chunk(n)) if rank == 0 else None)
        assert rank or torch.equal(out, torch.cat(others))
        part = torch.zeros_like(full)
        dist.reduce_scatter_tensor(part, row.expand(n * rows, 2))
        assert torch.equal(part, sum(others))
        dist.reduce_scatter(part.zero_(), [t] * n)
        assert torch.equal(part, sum(others))
        dist.scatter(part, [t] * n if rank == 1 else None, 1)
        assert torch.equal(part, others[1])
        dist.all_to_all_single(out, row.expand(n * rows, 2))
        assert torch.equal(out, torch.cat(others))
        root = rank == n - 1
        got = t if root else torch.zeros_like(full)
        dist.broadcast(got, n - 1)
        assert torch.equal(got, others[-1])
        total = full.clone() if root else t
        dist.reduce(total, n - 1)
        assert torch.equal(total, sum(others) if root else full)
        if rank == 0:
            dist.send(t, 1)
        elif rank == 1:
            dist.recv(part, 0)
            assert torch.equal(part, others[0])


@pytest.mark.parametrize("device", DEVICES)
def test_an_expanded_tensor_may_be_an_input(pool, device):
    pool.run(expanded_inputs, 3, device)


def expanded_outputs(rank, n, device):
    """Nothing is sent: the group works on although one rank alone makes the mistake."""
    if rank == 0:
        pg, good = backend(device), lambda count=4: torch.zeros(count, device=device)
        wrong = {
            "expanded": torch.zeros(1, device=device).expand(4),
            "of windows": torch.zeros(3, device=device).unfold(0, 2, 1),
            "of rows": torch.zeros(2, device=device).expand(2, 2),
        }
        for name, t in wrong.items():
            opts = dist.AllToAllOptions()
            calls = [
                lambda t=t: dist.broadcast(t, 1),
                lambda t=t: dist.all_reduce(t),
                lambda t=t: pg.allreduce([t, torch.zeros_like(t).contiguous()]),
                lambda t=t: pg.allreduce([torch.zeros_like(t).contiguous(), t]),
                lambda t=t: pg.broadcast([torch.zeros_like(t).contiguous(), t]),
                lambda t=t: dist.all_reduce_coalesced([good(), t]),
                lambda t=t: dist.reduce(t, 0),
                lambda t=t: dist.all_gather([t, good(), good()], good()),
                lambda t=t: pg.allgather(
                    [[t, *(good() for _ in range(5))], [good() for _ in range(6)]], [good()] * 2
                ),
                lambda t=t: pg._allgather_base(t.expand(3, *t.shape), good(4)),
                lambda t=t: dist.gather(good(), [good(), t, good()]),
                lambda t=t: dist.scatter(t, [good()] * 3),
                lambda t=t: dist.reduce_scatter(t, [good()] * 3),
                lambda t=t: dist.reduce_scatter_tensor(t, good(12)),
                lambda t=t: dist.all_to_all([good(), t, good()], [good()] * 3),
                lambda t=t, opts=opts: pg.alltoall_base(t, good(), [], [], opts),
                lambda t=t: dist.recv(t, 1),
                lambda t=t: dist.recv(t),
            ]
            for i, call in enumerate(calls):
                with pytest.raises(ValueError, match="elements of an output share memory"):
                    call()
                    pytest.fail(f"{name}: call {i} was accepted")
    assert_works(device)


@pytest.mark.parametrize("device", DEVICES)
def test_an_expanded_tensor_is_no_output(pool, device):
    pool.run(expanded_outputs, 3, device)


def copies_keep_the_order(rank, n, device):
    """What is copied before and after is part of the operation, also where no rank waits in between."""
    for count in (4, 100_000):
        base = torch.ones(count, 2, device=device)
        view = base[:, 1]
        out = torch.zeros(n * count, 2, device=device)[:, 0]
        works = [dist.all_reduce(view, async_op=True) for _ in range(3)]
        works += [dist.all_reduce(base, async_op=True), dist.all_gather_into_tensor(out, view, async_op=True)]
        works += [dist.broadcast(view, r, async_op=True) for r in range(n)]
        works += [dist.reduce_scatter_tensor(view, out, async_op=True), dist.all_reduce(base, async_op=True)]
        for work in works:
            work.wait()
        assert (base[:, 0] == n**2).all() and (out == n**4).all() and (view == n**6).all()


def messages_keep_the_order(rank, n, device):
    """The later of two receives into one place wins; a send takes what is there when it begins."""
    for count in (4, 3_000, 200_000):
        view = torch.zeros(count, 2, device=device)[:, 1]
        for _ in range(20):
            sent = [dist.isend(torch.full_like(view, i)[:], (rank + 1) % n) for i in range(4)]
            received = [dist.irecv(view, (rank - 1) % n) for _ in range(4)]
            for work in received + sent:
                work.wait()
            assert (view == 3).all()


def errors_leave_outputs_alone(rank, n, device):
    """What does not fit is not copied back either."""
    view = torch.full((4, 2), 5.0, device=device)[:, 0]
    with pytest.raises(dist.DistBackendError, match=r"called all_reduce\(float32\[4\]"):
        dist.all_reduce(view if rank else torch.zeros(3, 2, device=device)[:, 0])
    assert (view == 5).all()
    other = 1 - rank
    if rank < 2:
        work = dist.isend(torch.zeros(40_000 + rank, 2, device=device)[:, 0], other)
        large = torch.full((40_000, 2), 5.0, device=device)[:, 0]
        if rank == 0:  # from rank 1, which sends one more
            with pytest.raises(dist.DistBackendError, match=r"float32\[40001\]"):
                dist.recv(large, other)
            assert (large == 5).all()
            work.wait()
        else:
            dist.recv(large, other)
            with pytest.raises(dist.DistBackendError, match=r"float32\[40000\]"):
                work.wait()
    assert_works(device)


def every_dtype(rank, n, device):
    """Those without a copy of PyTorch's own, too."""
    for dtype in sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str):
        if str(dtype).startswith(("torch.qint", "torch.quint")):
            continue
        for elements in (5, 50_000):
            itemsize = dtype.itemsize
            raw = torch.zeros(elements, 2 * itemsize, dtype=torch.uint8, device=device)
            raw[:, :itemsize] = rank + 1
            t = raw.view(dtype)[:, 0]
            dist.broadcast(t, n - 1)
            assert (raw[:, :itemsize] == n).all() and (raw[:, itemsize:] == 0).all(), dtype
            raw[:, :itemsize] = rank + 1
            whole = torch.zeros(n * elements, 2 * itemsize, dtype=torch.uint8, device=device)
            dist.all_gather_into_tensor(whole.view(dtype)[:, 0], t)
            parts = whole.view(n, elements, 2 * itemsize)
            assert all((parts[r, :, :itemsize] == r + 1).all() for r in range(n)), dtype


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "body", [copies_keep_the_order, messages_keep_the_order, errors_leave_outputs_alone, every_dtype]
)
def test_copies_are_part_of_the_operation(pool, body, device):
    pool.run(body, 3, device)


def under_a_side_stream(rank, n, device):
    """The copies come when the stream comes to them."""
    stream = torch.dev.Stream()
    base = torch.zeros(100_000, 2, device=device)
    view = base[:, 0]
    got = torch.zeros(n * 100_000, 2, device=device)[:, 1]
    with torch.dev.stream(stream):
        source = torch.full((100_000, 2), rank + 1.0).pin_memory()
        base.copy_(source, non_blocking=True)
        dist.all_reduce(view)
        dist.all_gather_into_tensor(got, view)
        work = dist.isend(view, (rank + 1) % n)
        dist.recv(base[:, 1], (rank - 1) % n)
        work.wait()
        base[:, 1].mul_(2)
    stream.synchronize()
    total = n * (n + 1) / 2
    assert (view == total).all() and (got == total).all() and (base[:, 1] == 2 * total).all()


@pytest.mark.skipif("dev" not in DEVICES, reason="streams are the device's")
def test_copies_keep_the_order_of_the_stream(pool):
    pool.run(under_a_side_stream, 3, "dev")
