"""The sum over all ranks: torchrun --nproc-per-node=2 first.py"""

import torch
import torch.distributed as dist

dist.init_process_group("my_backend")  # `import torch` has registered it, where the package is installed
for device in ("cpu", "my_device"):
    tensor = torch.full((4,), dist.get_rank() + 1.0, device=device)
    dist.all_reduce(tensor)
    print(f"rank {dist.get_rank()} on {device}: {tensor.tolist()}")
dist.destroy_process_group()
