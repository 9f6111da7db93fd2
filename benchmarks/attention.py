# SPDX-License-Identifier: BSD-3-Clause
"""Measure attention and its gradients on nv against torch's CUDA device, in one process in turns.

    benchmarks/attention.py

A figure is the median of the rounds for one call; the host waits for every twenty calls. A ratio is the median of the
ratios of all rounds. torch chooses its own way on both devices, and the results are compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from _against_cuda import compare

# isort: split
import torch

attention = torch.nn.functional.scaled_dot_product_attention


@dataclass(frozen=True)
class Case:
    """A call: batch, heads of queries and of keys, numbers of queries and keys, size of a head, mask."""

    batch: int
    heads: int
    length: int
    head: int
    is_causal: bool = True
    key_heads: int = 0  # 0: as many as heads
    keys: int = 0  # 0: as many as queries
    mask: str = ""  # "added", or "flags"
    dtype: torch.dtype = torch.bfloat16

    def name(self) -> str:
        keys = f" × {self.keys}" if self.keys else ""
        groups = f" in {self.key_heads} groups" if self.key_heads else ""
        words = ["causal" if self.is_causal else f"mask ({self.mask})" if self.mask else "whole"]
        words += ["float16"] if self.dtype == torch.float16 else []
        return f"{self.batch} × {self.heads}{groups} × {self.length}{keys} × {self.head}, {', '.join(words)}"

    def inputs(self, device: torch.device) -> list[torch.Tensor]:
        """Return query, key and value as models have them: views of rows of heads."""
        torch.manual_seed(0)
        keys, key_heads = self.keys or self.length, self.key_heads or self.heads
        sizes = [(self.length, self.heads), (keys, key_heads), (keys, key_heads)]
        return [
            torch.randn(self.batch, rows, heads, self.head).to(self.dtype).to(device).transpose(1, 2)
            for rows, heads in sizes
        ]

    def attn_mask(self, device: torch.device) -> torch.Tensor | None:
        size = (self.batch, 1, self.length, self.keys or self.length)
        if self.mask == "flags":
            return (torch.rand(size) < 0.8).to(device)
        return torch.randn(size).to(self.dtype).to(device) if self.mask else None


CASES = (
    Case(8, 12, 512, 64),
    Case(8, 12, 1024, 64),
    Case(8, 12, 1024, 64, is_causal=False),
    Case(32, 16, 64, 64, is_causal=False),
    Case(32, 12, 197, 64, is_causal=False),
    Case(16, 16, 256, 64, is_causal=False),
    Case(4, 16, 2048, 64),
    Case(4, 16, 2048, 64, dtype=torch.float16),
    Case(1, 12, 8192, 64),
    Case(4, 16, 1024, 96),
    Case(2, 16, 2048, 96, is_causal=False),
    Case(4, 16, 2048, 128),
    Case(4, 16, 2048, 128, is_causal=False),
    Case(2, 32, 2048, 128, key_heads=8),
    Case(1, 32, 4096, 128, key_heads=4),
    Case(1, 16, 8192, 128),
    Case(2, 8, 1024, 256),
    Case(4, 8, 2048, 256, is_causal=False),
    Case(8, 12, 512, 64, is_causal=False, mask="added"),
    Case(4, 16, 1024, 64, is_causal=False, mask="flags"),
)


def functions(case: Case, device: torch.device) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return attention and its gradients on a device, of the same numbers on each."""
    inputs = [tensor.requires_grad_() for tensor in case.inputs(device)]
    mask = case.attn_mask(device)
    options = {"is_causal": case.is_causal, "enable_gqa": case.key_heads > 0}

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return attention(*inputs, mask, **options)

    result = attention(*inputs, mask, **options)
    torch.manual_seed(1)
    gradient = torch.randn(result.shape).to(case.dtype).to(device)
    # The node itself: with two devices in one process, autograd's engine takes one
    # for the process's accelerator.
    node: Any = result.grad_fn
    rest = [None] * (len(node._input_metadata) - 1)
    return forward, lambda: [grad for grad in node(gradient, *rest)[:3] if grad is not None]


def difference(ours: Any, theirs: Any) -> float:
    """Return the greatest difference of the results, as a share of their norms."""
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, (tuple, list)) else [(ours, theirs)]
    return max(
        float((result.cpu().float() - wanted.cpu().float()).norm() / wanted.cpu().float().norm())
        for result, wanted in pairs
    )


if __name__ == "__main__":
    named = {case.name(): case for case in CASES}
    sys.exit(compare("attention", __doc__.splitlines()[0], named, functions, difference))
