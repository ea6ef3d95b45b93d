"""Tensor parallelism of transformers: the ranks generate with a small Llama that is split over them.

    OCCL_IN_PLACE_OF=gloo torchrun --nproc-per-node 2 tensor_parallel_llama.py
    torchrun --nproc-per-node 2 tensor_parallel_llama.py --backend occl --device dev

transformers makes a group of Gloo for CPU tensors. It knows no backend for `dev`, so there the program
makes the group first.
"""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

BATCH, PROMPT = 4, 8


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate with a Llama that is split over the ranks.")
    parser.add_argument(
        "--backend", help="of a group that the program makes (default: transformers makes it)"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=16, help="that each of the texts gets")
    parser.add_argument("--width", type=int, default=64, help="of the hidden states; a multiple of 16")
    parser.add_argument("--layers", type=int, default=2)
    given = parser.parse_args()
    if given.device == "dev":
        import torch_occl  # noqa: F401  (makes the device)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=given.width,
        intermediate_size=2 * given.width,
        num_hidden_layers=given.layers,
        num_attention_heads=4,
        max_position_embeddings=PROMPT + given.tokens,
        initializer_range=0.1,
        pad_token_id=0,
    )
    with tempfile.TemporaryDirectory() as folder:  # one for each rank, with the same parameters
        LlamaForCausalLM(config).save_pretrained(folder)  # in a group, only rank 0 would save
        if given.backend:
            dist.init_process_group(given.backend)
        plan = DistributedConfig(tp_size=int(os.environ["WORLD_SIZE"]), tp_plan="auto")
        model = LlamaForCausalLM.from_pretrained(folder, distributed_config=plan)
    prompt = torch.arange(BATCH * PROMPT, device=model.device).view(BATCH, PROMPT) + 1
    length = {"do_sample": False, "eos_token_id": None, "attention_mask": torch.ones_like(prompt)}
    model.generate(prompt, max_new_tokens=2, **length)
    begin = time.perf_counter()
    text = model.generate(prompt, max_new_tokens=given.tokens, **length)
    speed = text[:, PROMPT:].numel() / (time.perf_counter() - begin)
    if dist.get_rank() == 0:
        split = sum(isinstance(parameter, DTensor) for parameter in model.parameters())
        print("tokens", *text[0, PROMPT:].tolist())
        where = f"{dist.get_world_size()} ranks on {model.device}"
        print(f"{where}, {split} parameters are split, {speed:.0f} tokens/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
