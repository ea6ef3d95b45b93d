"""Trains a GPT on the reference of the Python language, on one process or several.

    python examples/gpt/train.py                                           # one process, no process group
    torchrun --nproc-per-node=2 examples/gpt/train.py --strategy fsdp      # on the device dev
    torchrun --nproc-per-node=2 examples/gpt/train.py --strategy pp --device cpu --compare-gloo
    torchrun --nproc-per-node=2 --max-restarts=1 examples/gpt/train.py --checkpoint runs/gpt --kill 1:120
    torchrun --nproc-per-node=4 examples/gpt/train.py --strategy hsdp --inner 2

``--kill RANK:STEP`` makes that rank kill itself with SIGKILL in that step. torchrun then ends the others and
starts all of them again, and they go on from the last checkpoint.
"""

import argparse
import gc
import json
import os
import signal
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from data import Text
from model import Size
from sample import show
from speed import samples_per_second
from strategies import STRATEGIES
from tqdm import tqdm
from training import Options, Training


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    distributed = "WORLD_SIZE" in os.environ
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp" if distributed else "single")
    parser.add_argument("--device", choices=["dev", "cpu"], default="dev")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument(
        "--inner", type=int, help="ranks of a node for hsdp, ranks that share a block for fsdp-tp"
    )
    parser.add_argument("--pieces", type=int, default=4, help="pieces of a batch for pp")
    for name, number in vars(Size()).items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--steps", type=int, default=Options.steps)
    parser.add_argument(
        "--batch-size", type=int, default=Options.batch_size, help="rows a step, over all ranks"
    )
    parser.add_argument("--learning-rate", type=float, default=Options.learning_rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FOLDER", help="write checkpoints, and go on from there"
    )
    parser.add_argument("--save-every", type=int, default=Options.save_every, metavar="STEPS")
    parser.add_argument("--kill", metavar="RANK:STEP", help="that rank kills itself in that step")
    parser.add_argument(
        "--prompt", default='The "for" statement', help="continued at the end, with --checkpoint"
    )
    parser.add_argument(
        "--compare-gloo", action="store_true", help="on the CPU: time occl and Gloo at the end"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the losses (needs matplotlib)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the losses to FILE")
    arguments = parser.parse_args()
    if distributed == (arguments.strategy == "single"):
        parser.error(f"--strategy {arguments.strategy}: 'single' runs without torchrun, the others with it")
    if arguments.compare_gloo and (arguments.device == "dev" or not distributed):
        parser.error("--compare-gloo needs torchrun and --device cpu: Gloo moves CPU tensors only")
    return arguments


def choose_device(kind: str) -> torch.device:
    """Makes ``dev`` if it is asked for. With several ranks on a host, each takes another device."""
    if kind == "cpu":
        return torch.device("cpu")
    import torch_occl  # noqa: F401

    device = torch.device("dev", int(os.environ.get("LOCAL_RANK", 0)) % torch.dev.device_count())
    torch.dev.set_device(device)
    return device


def make_options(arguments: argparse.Namespace, device: torch.device) -> Options:
    same = [
        "strategy",
        "steps",
        "batch_size",
        "learning_rate",
        "seed",
        "inner",
        "pieces",
        "checkpoint",
        "save_every",
    ]
    return Options(
        device=device,
        size=Size(**{name: getattr(arguments, name) for name in vars(Size())}),
        dtype=getattr(torch, arguments.dtype),
        **{name: getattr(arguments, name) for name in same},
    )


def each_step(training: Training, bar: tqdm, kill: str | None) -> Callable[[int], None]:
    """What happens before a step: the bar moves, and the rank that ``--kill`` names ends its first life."""
    victim, when = (int(number) for number in kill.split(":")) if kill else (-1, -1)
    first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"

    def before(step: int) -> None:
        if training.losses:
            bar.set_postfix(loss=f"{training.losses[-1]:.3f}", refresh=False)
        bar.update(step - bar.n)
        if training.rank == victim and step == when and first_life:
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def plot(losses: list[float], title: str, file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses)
    axes.set(xlabel="step", ylabel="loss (nats a byte)", title=title)
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)


def main() -> None:
    arguments = parse_arguments()
    device = choose_device(arguments.device)
    rank, ranks = 0, 1
    if arguments.strategy != "single":
        dist.init_process_group("occl")
        rank, ranks = dist.get_rank(), dist.get_world_size()
    options, text = make_options(arguments, device), Text()
    training = Training(options, text, rank)
    training.resume()
    if training.losses and rank == 0:
        print(f"goes on after step {len(training.losses)}", flush=True)
    with tqdm(
        total=options.steps, initial=len(training.losses), unit=" steps", disable=True if rank else None
    ) as bar:
        seconds = training.run(each_step(training, bar, arguments.kill))
        bar.update(len(training.losses) - bar.n)

    title = f"{options.strategy} on {device.type}, ranks: {ranks}"
    if rank == 0:
        speed = f", {options.batch_size / statistics.median(seconds):.0f} samples/s" if seconds else ""
        print(f"{title}. Loss {training.losses[-1]:.4f}{speed}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(training.losses))
        if arguments.plot:
            plot(training.losses, title, arguments.plot)
        if options.checkpoint:
            show(options.checkpoint, arguments.prompt, count=300)
    if arguments.compare_gloo:
        speeds = samples_per_second(options, text, ["occl", "gloo"])
        if rank == 0:
            print(
                "samples/s: " + ", ".join(f"{name} {speed:.0f}" for name, speed in speeds.items()), flush=True
            )
    if arguments.strategy != "single":
        # Gloo's threads, and DDP, which refers to them, must end before the group does.
        del training
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
