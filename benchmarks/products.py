# SPDX-License-Identifier: BSD-3-Clause
"""Measure products of matrices and their gradients on nv against torch's CUDA device, in one process in turns.

    benchmarks/products.py

A figure is the median of the rounds for one call; the host waits for every twenty calls. A ratio is the median of the
ratios of all rounds. The gradients are two products. Results are compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from _against_cuda import compare

# isort: split
import torch

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """A product of M × K by K × N, of a batch if there is one, with a row that is added if there is one."""

    m: int
    k: int
    n: int
    batch: int = 0
    has_bias: bool = False
    dtype: str = "bfloat16"

    def name(self) -> str:
        words = [f"{self.batch} of " if self.batch else "", f"{self.m} × {self.k} × {self.n}"]
        words += [", bias"] if self.has_bias else []
        words += [f", {self.dtype}"] if self.dtype != "bfloat16" else []
        return "".join(words)


CASES = (
    Case(4096, 4096, 4096),
    Case(4096, 4096, 4096, dtype="float16"),
    Case(4096, 4096, 4096, dtype="float32"),
    Case(1024, 1024, 1024),
    Case(8192, 8192, 8192),
    Case(4096, 768, 2304, has_bias=True),  # GPT-2 small, 8 × 512: attention's products
    Case(4096, 768, 768, has_bias=True),
    Case(4096, 768, 3072, has_bias=True),
    Case(4096, 3072, 768, has_bias=True),
    Case(4096, 768, 50257),  # its head
    Case(512, 64, 512, batch=96),
    Case(512, 512, 64, batch=96),
    Case(1000, 1001, 999),
    Case(16, 4096, 4096),
)


def functions(case: Case, device: torch.device) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return the product and its gradients on a device, of the same numbers on each."""
    torch.manual_seed(0)
    batch = (case.batch,) if case.batch else ()
    dtype = DTYPES[case.dtype]
    left = torch.randn(*batch, case.m, case.k).to(dtype).to(device)
    weight = torch.randn(*batch, case.n, case.k).to(dtype).to(device)
    bias = torch.randn(case.n).to(dtype).to(device) if case.has_bias else None
    gradient = torch.randn(*batch, case.m, case.n).to(dtype).to(device)

    def forward() -> torch.Tensor:
        right = weight.transpose(-1, -2)
        return torch.matmul(left, right) if bias is None else torch.addmm(bias, left, right)

    def backward() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.matmul(gradient, weight), torch.matmul(gradient.transpose(-1, -2), left)

    return forward, backward


def difference(ours: Any, theirs: Any) -> float:
    """Return the greatest difference of the results, as a share of their norms."""
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    return max(
        float((result.cpu().float() - wanted.cpu().float()).norm() / wanted.cpu().float().norm())
        for result, wanted in pairs
    )


if __name__ == "__main__":
    sys.exit(compare("products", __doc__.splitlines()[0], {case.name(): case for case in CASES}, functions, difference))
