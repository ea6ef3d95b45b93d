"""FSDP2 of a small Llama 3 on counted words: torchtitan takes `dev` and occl as they are.

OCCL_DEVICE=1 torchrun --nproc-per-node 2 torchtitan_llama.py
OCCL_DEVICE=1 torchrun --nproc-per-node 2 torchtitan_llama.py --parallelism.tensor_parallel_degree 2
"""

import logging
import re
import sys
import tempfile

import torch.distributed as dist
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torchtitan.config import ConfigManager
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.tools.logging import init_logger, logger
from torchtitan.train import Trainer

WORDS = [f"w{number}" for number in range(100)]
LOSSES: list[str] = []


class Losses(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if found := re.search(r"loss: \D*\s*([\d.]+)", re.sub(r"\x1b\[\d+m", "", record.getMessage())):
            LOSSES.append(found[1])


def make_tokenizer(folder: str) -> None:
    vocabulary = {word: number for number, word in enumerate([*WORDS, "<unk>", "<s>", "</s>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(f"{folder}/tokenizer.json")


def load(path: str) -> Dataset:
    lines = [" ".join(WORDS[(n + step * (1 + n % 5)) % 100] for step in range(200)) for n in range(500)]
    return Dataset.from_dict({"text": lines})


if __name__ == "__main__":
    DATASETS["counting"] = DatasetConfig(path="", loader=load, sample_processor=lambda sample: sample["text"])
    init_logger()
    logger.addHandler(Losses())
    with tempfile.TemporaryDirectory() as folder:
        make_tokenizer(folder)
        options = f"""--model.name llama3 --model.flavor debugmodel --model.hf_assets_path {folder}
            --training.dataset counting --training.steps 8 --training.local_batch_size 4 --training.seq_len 64
            --optimizer.lr 1e-3 --lr_scheduler.warmup_steps 2 --debug.seed 0 --metrics.log_freq 1
            --training.mixed_precision_param float32 --job.dump_folder {folder}""".split()
        trainer = Trainer(ConfigManager().parse_args([*options, *sys.argv[1:]]))
        trainer.train()
        trainer.close()
    if dist.get_rank() == 0:
        print("losses", *LOSSES)
        print(f"{dist.get_world_size()} ranks on {trainer.device}, over {dist.get_backend()}")
    dist.destroy_process_group()
