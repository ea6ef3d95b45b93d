"""torchrec on several ranks: a table of embeddings, sharded in each way, over CPU tensors.

torchrun --nproc-per-node 2 torchrec_tables.py --backend occl
"""

import argparse

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import sharding_plan
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan

ROWS, WIDTH, STEPS = 100, 8, 5
WAYS = {
    "table": lambda: sharding_plan.table_wise(rank=0),
    "row": sharding_plan.row_wise,
    "column": lambda: sharding_plan.column_wise(ranks=list(range(dist.get_world_size()))),
    "data parallel": sharding_plan.data_parallel,
}


def train(way: str, device: torch.device) -> list[float]:
    """The losses of all ranks, of an embedding that learns to have the sum of each bag as its mean."""
    config = EmbeddingBagConfig(name="t", embedding_dim=WIDTH, num_embeddings=ROWS, feature_names=["f"])
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
    values = torch.randint(ROWS, (64,), generator=torch.Generator().manual_seed(dist.get_rank()))
    bags = KeyedJaggedTensor.from_lengths_sync(["f"], values, torch.full((32,), 2)).to(device)
    wanted = values.view(32, 2).sum(1).to(device) / ROWS
    losses = []
    for _ in range(STEPS):
        loss = (model(bags)["f"].mean(1) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an embedding, sharded in each way.")
    parser.add_argument("--backend", default="occl")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.device == "dev":
        import torch_occl  # noqa: F401  (makes the device)
    dist.init_process_group(arguments.backend)
    found = {way: train(way, torch.device(arguments.device)) for way in WAYS}
    if dist.get_rank() == 0:  # torchrec's warnings on all ranks have been written by now
        print("\n".join(f"{way}: losses {' '.join(f'{x:.5f}' for x in found[way])}" for way in WAYS))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
