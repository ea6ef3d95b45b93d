"""trl's supervised fine-tuning on several ranks, of a small Llama that is not pretrained.

With --lora, only adapters of peft are trained.

    OCCL_IN_PLACE_OF=gloo torchrun --nproc-per-node 2 sft_llama.py

trl uses the Trainer of transformers, which knows only Gloo for processes without a GPU.
"""

import argparse
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = 50


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Knows the numbers below WORDS."""
    words = {"<pad>": 0, "<end>": 1} | {str(number): number + 2 for number in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune a small Llama with trl.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=64, help="of the hidden states; a multiple of 16")
    parser.add_argument("--lora", action="store_true", help="train adapters only")
    given = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    texts = [" ".join(str((n + i * (1 + n % 7)) % WORDS) for i in range(24)) for n in range(1024)]
    arguments = SFTConfig(
        use_cpu=True,  # without it, each process would train alone
        bf16=False,
        max_steps=given.steps,
        per_device_train_batch_size=8,
        gradient_checkpointing=False,
        learning_rate=3e-3,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        output_dir=tempfile.gettempdir(),
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=given.width,
        intermediate_size=2 * given.width,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    trainer = SFTTrainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer,
        peft_config=LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0) if given.lora else None,
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
