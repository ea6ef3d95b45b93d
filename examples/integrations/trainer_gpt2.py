"""The Trainer of Hugging Face transformers on several ranks, with a small GPT-2 that is not pretrained.

The Trainer knows only Gloo for processes without a GPU, so occl takes Gloo's place:

    OCCL_IN_PLACE_OF=gloo torchrun --nproc-per-node 2 trainer_gpt2.py

On `dev`, with OCCL_DEVICE=1 ACCELERATE_TORCH_DEVICE=dev:0 before that line too.
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

NO_DROPOUT = {"embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0}
"""`dev` draws other random numbers than the CPU."""


def counting(number: int) -> dict[str, torch.Tensor]:
    """A text that counts modulo 50, in steps of its own length."""
    tokens = (number + torch.arange(32) * (1 + number % 7)) % 50
    return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT-2 with the Trainer.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=64, help="of the hidden states; a multiple of 4")
    given = parser.parse_args()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=given.width, n_layer=2, n_head=4, **NO_DROPOUT)
    arguments = TrainingArguments(
        use_cpu=True,  # without it, each process would train alone
        max_steps=given.steps,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        output_dir=tempfile.gettempdir(),
    )
    trainer = Trainer(
        GPT2LMHeadModel(config), arguments, train_dataset=[counting(number) for number in range(2048)]
    )
    speed = trainer.train().metrics["train_samples_per_second"]
    if trainer.is_world_process_zero():
        print("losses", *(f"{entry['loss']:.4f}" for entry in trainer.state.log_history if "loss" in entry))
        kind = type(trainer.model_wrapped).__name__
        print(f"{arguments.world_size} ranks on {arguments.device}, of type {kind}, {speed:.0f} samples/s")


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
