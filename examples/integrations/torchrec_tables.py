"""torchrec on several ranks: a table of embeddings, sharded in each way, over CPU tensors.

torchrun --nproc-per-node 2 torchrec_tables.py --backend occl
"""

import argparse
import time

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import sharding_plan
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan

BAGS, EACH = 32, 2
WAYS = {
    "table": lambda: sharding_plan.table_wise(rank=0),
    "row": sharding_plan.row_wise,
    "column": lambda: sharding_plan.column_wise(ranks=list(range(dist.get_world_size()))),
    "data parallel": sharding_plan.data_parallel,
}


def train(way: str, device: torch.device, rows: int, width: int, steps: int) -> tuple[list[float], float]:
    """The losses of all ranks, of an embedding that learns to have the sum of each bag as its mean.

    And how many bags a second.
    """
    config = EmbeddingBagConfig(name="t", embedding_dim=width, num_embeddings=rows, feature_names=["f"])
    tables = EmbeddingBagCollection([config], device=torch.device("meta"))
    sharder = EmbeddingBagCollectionSharder()
    ranks = dist.get_world_size()
    plan = sharding_plan.construct_module_sharding_plan(
        tables, {"t": WAYS[way]()}, sharder, local_size=ranks, world_size=ranks, device_type=device.type
    )
    model = DistributedModelParallel(tables, device=device, plan=ShardingPlan({"": plan}), sharders=[sharder])
    for tensor in model.state_dict().values():  # a tensor, or this rank's shards of one
        for part in (
            [s.tensor for s in tensor.local_shards()] if hasattr(tensor, "local_shards") else [tensor]
        ):
            torch.nn.init.constant_(part, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    values = torch.randint(rows, (BAGS * EACH,), generator=torch.Generator().manual_seed(dist.get_rank()))
    bags = KeyedJaggedTensor.from_lengths_sync(["f"], values, torch.full((BAGS,), EACH)).to(device)
    wanted = values.view(BAGS, EACH).sum(1).to(device) / rows
    losses = []
    begin = time.perf_counter()
    for _ in range(steps):
        loss = (model(bags)["f"].mean(1) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses, steps * BAGS * ranks / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an embedding, sharded in each way.")
    parser.add_argument("--backend", default="occl")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rows", type=int, default=100, help="of the table")
    parser.add_argument("--width", type=int, default=8, help="of the table")
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    if given.device == "dev":
        import torch_occl  # noqa: F401  (makes the device)
    dist.init_process_group(given.backend)
    found = {
        way: train(way, torch.device(given.device), given.rows, given.width, given.steps)
        for way in given.ways
    }
    if dist.get_rank() == 0:  # torchrec's warnings on all ranks have been written by now
        for way, (losses, speed) in found.items():
            print(f"{way}: losses {' '.join(f'{x:.5f}' for x in losses)}")
            print(f"{way}: {dist.get_world_size()} ranks, {speed:.0f} samples/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
