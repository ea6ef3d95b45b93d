"""Text from a checkpoint of ``train.py``, in one process, whichever strategy has written it.

python examples/gpt/sample.py runs/gpt --prompt "The for statement"
"""

import argparse
import math
from pathlib import Path

import torch
from checkpoints import complete, load_model
from data import Text
from model import GPT, loss_of


@torch.no_grad()
def generate(model: GPT, prompt: str, count: int, seed: int = 0, temperature: float = 0.7) -> str:
    """The prompt, which must not be empty, and ``count`` more bytes. What is not UTF-8 becomes U+FFFD."""
    generator = torch.Generator().manual_seed(seed)
    text = list(prompt.encode())
    for _ in range(count):
        logits = model(torch.tensor([text[-model.size.context :]]))[0, -1]
        chances = (logits / temperature).softmax(0)
        text.append(int(torch.multinomial(chances, 1, generator=generator)))
    return bytes(text).decode(errors="replace")


@torch.no_grad()
def validation_loss(model: GPT, text: Text, batches: int = 8) -> float:
    """In bits a byte, over text that no step has trained on."""
    windows = text.validation.unfold(0, model.size.context + 1, model.size.context)
    losses = [loss_of(model(rows[:, :-1]), rows[:, 1:]).item() for rows in windows[: 32 * batches].split(32)]
    return sum(losses) / len(losses) / math.log(2)


def show(folder: Path, prompt: str, count: int) -> None:
    """Prints what the last checkpoint in the folder makes of the prompt."""
    checkpoint = complete(folder)[-1]
    model = load_model(checkpoint)
    print(f"{checkpoint.name}: {validation_loss(model, Text()):.3f} bits a byte on text that it has not seen")
    print(generate(model, prompt, count), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", default='The "for" statement')
    parser.add_argument("--count", type=int, default=400, help="bytes to generate")
    arguments = parser.parse_args()
    if not arguments.prompt:
        parser.error("--prompt is empty: the model continues at least one byte")
    if not complete(arguments.folder):
        parser.error(f"{arguments.folder} has no complete checkpoint: train.py --checkpoint writes them")
    show(arguments.folder, arguments.prompt, arguments.count)


if __name__ == "__main__":
    main()
