# SPDX-License-Identifier: BSD-3-Clause
"""Copies and fills by the CUDA driver's own kernels: python own_kernels.py LIBCUDA NVRTC [stored]

LIBCUDA is built from fake_cuda.cpp. It runs no kernels, but writes their launches to the file FAKE_CUDA_LAUNCHES. If
NVRTC cannot compile for the chip, copies and fills go through the host, and results must be right. With `stored`, an
earlier process has compiled the kernels, and NVRTC is not needed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

import torch_outboard

SIZES = {torch.uint8: 1, torch.float16: 2, torch.float32: 4, torch.int64: 8, torch.complex128: 16}


def launched() -> set[str]:
    path = Path(os.environ["FAKE_CUDA_LAUNCHES"])
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return {line.split()[0] for line in lines}


def main() -> None:
    library, nvrtc, *stored = sys.argv[1:]
    torch_outboard.attach("nv", library=library, nvrtc=nvrtc)
    compiles = (
        bool(stored)
        or any(Path(path).exists() for path in nvrtc.split(os.pathsep))
        and torch.nv.get_device_capability()[0] > 3
    )
    for dtype, size in SIZES.items():
        for rows, columns in ((3, 5), (64, 96)):
            x = torch.arange(rows * columns).view(rows, columns).to(dtype)
            turned = x.to("nv").t().contiguous()
            assert compiles or torch.equal(turned.cpu(), x.t()), (dtype, rows)
            expected = {f"{'transpose' if rows > 32 else 'copy'}{size}"} if compiles else set()
            assert launched() == expected, (dtype, rows)
    for dtype in (torch.int64, torch.complex128):
        value = 5_000_000_001
        assert torch.full((2,), value, dtype=dtype, device="nv").tolist() == [value] * 2
        assert launched() == set()
        many = torch.full((100,), value, dtype=dtype, device="nv")
        assert compiles or many.tolist() == [value] * 100
        assert launched() == ({f"fill{SIZES[dtype]}"} if compiles else set())


if __name__ == "__main__":
    main()
