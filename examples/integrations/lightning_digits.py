"""Lightning's Trainer and Fabric on several ranks, which Lightning starts itself.

python lightning_digits.py --device cpu      the Trainer; --fabric: Fabric; --device dev: on dev
"""

import argparse

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


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits with Lightning.")
    parser.add_argument("--backend", default="occl", help="on CPU tensors")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fabric", action="store_true")
    arguments = parser.parse_args()
    library = fabric if arguments.fabric else pytorch
    strategy = library.strategies.DDPStrategy(process_group_backend=arguments.backend)
    if arguments.device == "dev":
        import torch_occl.integrations.lightning  # noqa: F401  (registers "dev" and "ddp_dev")

        strategy = "ddp_dev"
    setting = {"accelerator": arguments.device, "devices": 2, "strategy": strategy}
    model, loader = Classifier(), DataLoader(TensorDataset(*load()), batch_size=30)
    if arguments.fabric:
        (runner := L.Fabric(**setting)).launch()
        wrapped, optimizer = runner.setup(model, model.configure_optimizers())
        wrapped.mark_forward_method("training_step")
        for number, batch in enumerate(runner.setup_dataloaders(loader)):
            optimizer.zero_grad()
            runner.backward(wrapped.training_step(batch, number))
            optimizer.step()
    else:
        runner = L.Trainer(**setting, max_epochs=1, logger=False, enable_checkpointing=False)
        runner.fit(model, loader)
    if runner.global_rank == 0:
        print("losses", *(f"{loss:.5f}" for loss in model.losses[::5]), flush=True)
        print(f"2 ranks on {runner.strategy.root_device}, over {torch.distributed.get_backend()}")


if __name__ == "__main__":
    main()
