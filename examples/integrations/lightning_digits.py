"""Lightning's Trainer and Fabric on several ranks, which Lightning starts itself.

python lightning_digits.py --device cpu      the Trainer; --fabric: Fabric; --device dev: on dev
"""

import argparse
import time

import lightning as L
import torch
from digits import load, make_network
from lightning import fabric, pytorch
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network, self.losses = make_network(), []

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


class Clock(L.Callback):
    def on_train_start(self, *_: object) -> None:
        self.seconds = -time.perf_counter()

    def on_train_end(self, *_: object) -> None:
        self.seconds += time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits with Lightning.")
    parser.add_argument("--backend", default="occl", help="on CPU tensors")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fabric", action="store_true")
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    library = fabric if arguments.fabric else pytorch
    strategy = library.strategies.DDPStrategy(process_group_backend=arguments.backend)
    if arguments.device == "dev":
        import torch_occl.integrations.lightning  # noqa: F401  (registers "dev" and "ddp_dev")

        strategy = "ddp_dev"
    setting = {"accelerator": arguments.device, "devices": 2, "strategy": strategy}
    model, loader = Classifier(), DataLoader(TensorDataset(*load()), batch_size=30)
    clock = Clock()
    if arguments.fabric:
        (runner := L.Fabric(**setting)).launch()
        wrapped, optimizer = runner.setup(model, model.configure_optimizers())
        wrapped.mark_forward_method("training_step")
        batches = runner.setup_dataloaders(loader)
        clock.on_train_start()
        for _ in range(arguments.epochs):
            for number, batch in enumerate(batches):
                optimizer.zero_grad()
                runner.backward(wrapped.training_step(batch, number))
                optimizer.step()
        clock.on_train_end()
    else:
        silent = {"logger": False, "enable_checkpointing": False, "callbacks": [clock]}
        runner = L.Trainer(**setting, **silent, max_epochs=arguments.epochs)
        runner.fit(model, loader)
    if runner.global_rank == 0:
        print("losses", *(f"{loss:.5f}" for loss in model.losses[::5]), flush=True)
        speed = arguments.epochs * len(loader.dataset) / clock.seconds
        ranks = f"2 ranks on {runner.strategy.root_device}"
        print(f"{ranks}, over {torch.distributed.get_backend()}, {speed:.0f} samples/s")


if __name__ == "__main__":
    main()
