# SPDX-License-Identifier: BSD-3-Clause
"""Train a small network on scanned digits with Lightning: one device or several, and mixed precision.

    python examples/lightning_digits.py --device sim
    python examples/lightning_digits.py --device sim --devices 2 --precision bf16-mixed

Needs lightning and scikit-learn.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="sim", help="driver to attach, or cpu")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed", "16-mixed"])
    parser.add_argument("--epochs", type=int, default=5)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.device != "cpu":
        import torch_outboard
        from torch_outboard.integrations import lightning

        torch_outboard.attach(options.device)
        lightning.use()
    import lightning.pytorch as pl
    from sklearn.datasets import load_digits

    class Digits(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, prog_bar=True)
            return loss

        def test_step(self, batch: list[torch.Tensor], index: int) -> None:
            right = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
            self.log("accuracy", right, sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    digits = load_digits()
    data = torch.utils.data.TensorDataset(
        torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    )
    train, held_out = torch.utils.data.random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        accelerator="cpu" if options.device == "cpu" else "auto",
        devices=options.devices,
        precision=options.precision,
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
    )
    module = Digits()
    trainer.fit(module, torch.utils.data.DataLoader(train, batch_size=64, shuffle=True))
    [result] = trainer.test(module, torch.utils.data.DataLoader(held_out, batch_size=64), verbose=False)
    if trainer.is_global_zero:
        print(f"{trainer.strategy.root_device}, {trainer.world_size} ranks: held-out accuracy {result['accuracy']:.3f}")
    return 0 if result["accuracy"] > 0.8 else 1


if __name__ == "__main__":
    sys.exit(main())
