"""Under torchrun: ``under_torchrun.py BACKEND FOLDER``. Each rank leaves a file that says where it was."""

import json
import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import torch_occl  # noqa: F401  (makes the device, as programs do)
from tests.support.checks import assert_works

backend, folder = sys.argv[1:]
dist.init_process_group(backend)
assert_works()
ranks = torch.empty(dist.get_world_size(), dtype=torch.int64)
dist.all_gather_into_tensor(ranks, torch.tensor([dist.get_rank()]))
found = {"host": socket.gethostname(), "ranks": ranks.tolist(), "local": int(os.environ["LOCAL_RANK"])}
Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(found))
dist.destroy_process_group()
