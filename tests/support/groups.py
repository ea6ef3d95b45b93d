"""Default groups that the bodies of tests make themselves."""

from datetime import timedelta

import torch.distributed as dist


def begin(rank, n, store, name="gloo", timeout=50.0, **options):
    """``options``: what else ``init_process_group`` takes."""
    dist.init_process_group(
        name,
        store=store if isinstance(store, dist.Store) else dist.FileStore(store, n),
        rank=rank,
        world_size=n,
        timeout=timedelta(seconds=timeout),
        **options,
    )


def run(fresh, body, n=2, device="cpu", **params):
    with fresh(n) as team:
        return team.run(body, device, store=team.source.new_file(), **params)
