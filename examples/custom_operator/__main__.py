# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import torch

from examples.custom_operator import build, softclip


def main() -> None:
    build()
    device = torch.accelerator.current_accelerator()
    if device is None:
        raise SystemExit("there is no accelerator: set OUTBOARD_DRIVER, for example to sim")
    x = torch.linspace(-4, 4, 9, device=device, requires_grad=True)
    y = softclip(x, 2.0)
    y.sum().backward()
    print(y.detach().cpu(), x.grad.cpu(), sep="\n")


if __name__ == "__main__":
    main()
