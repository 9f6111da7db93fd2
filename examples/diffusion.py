# SPDX-License-Identifier: BSD-3-Clause
"""Train a tiny diffusion model on points of a spiral, in mixed precision if asked, and sample from it.

    python examples/diffusion.py --device sim
    python examples/diffusion.py --device sim --amp bf16 --compile

Needs nothing but torch and tqdm.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

import torch
from torch import nn
from tqdm import trange

STEPS = 50  # of the noise
NOISE = torch.linspace(1e-4, 0.2, STEPS)
KEPT = torch.cumprod(1 - NOISE, 0)  # of the data's variance after each step
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Denoiser(nn.Module):
    """Predict the noise of points, from the points and their step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.step = nn.Embedding(STEPS, width)
        self.first = nn.Linear(2, width)
        self.rest = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, points: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(points) + self.step(step))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="sim", help="driver to attach, or cpu")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--amp", choices=sorted(TYPES), help="autocast in this type; with fp16 a scaler of gradients")
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def spiral(count: int) -> torch.Tensor:
    turn = torch.rand(count).sqrt() * 9
    return torch.stack([turn.cos(), turn.sin()], 1) * turn[:, None] / 9


def train(net: nn.Module, device: torch.device, options: argparse.Namespace) -> list[float]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=options.amp == "fp16")
    kept = KEPT.to(device)
    losses = []
    for _ in (bar := trange(options.steps, desc=str(device))):
        points = spiral(options.batch_size).to(device, non_blocking=True)
        step = torch.randint(STEPS, (options.batch_size,), device=device)
        noise, part = torch.randn_like(points), kept[step][:, None]
        casts = torch.autocast(device.type, TYPES[options.amp]) if options.amp else contextlib.nullcontext()
        with casts:
            predicted = net(part.sqrt() * points + (1 - part).sqrt() * noise, step)
        loss = nn.functional.mse_loss(predicted.float(), noise)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if len(losses) % 20 == 0:  # reading a loss waits for the device
            bar.set_postfix(loss=f"{loss.item():.3f}")
    return torch.stack(losses).tolist()


@torch.no_grad()
def sample(net: nn.Module, device: torch.device, count: int) -> torch.Tensor:
    noise, kept = NOISE.to(device), KEPT.to(device)
    points = torch.randn(count, 2, device=device)
    for step in reversed(range(STEPS)):
        predicted = net(points, torch.full((count,), step, device=device))
        points = (points - noise[step] / (1 - kept[step]).sqrt() * predicted) / (1 - noise[step]).sqrt()
        if step:
            points += noise[step].sqrt() * torch.randn_like(points)
    return points.cpu()


def main() -> int:
    options = parse()
    device = torch.device("cpu")
    if options.device != "cpu":
        import torch_outboard

        torch_outboard.attach(options.device)
        device = torch.device(torch_outboard.attached_driver().name, 0)
    torch.manual_seed(0)
    net = Denoiser(options.width).to(device)
    losses = train(torch.compile(net) if options.compile else net, device, options)
    tenth = max(1, len(losses) // 10)
    before, after = (sum(part) / tenth for part in (losses[:tenth], losses[-tenth:]))
    points = sample(net, device, 512)
    print(f"{device}: loss {before:.3f} -> {after:.3f}; samples reach out to {points.norm(dim=1).quantile(0.95):.2f}")
    return 0 if after < before and torch.isfinite(points).all() else 1


if __name__ == "__main__":
    sys.exit(main())
