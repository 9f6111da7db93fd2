# SPDX-License-Identifier: BSD-3-Clause
"""Decompositions of operators whose CPU kernels refuse values: the kernel that computes the result asserts the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["decompositions"]


def decompositions(known: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return those of `known` that need an assertion, with it."""
    aten = torch.ops.aten
    checks: dict[Any, Callable[..., None]] = {
        aten.binary_cross_entropy.default: _check_probabilities,
        aten.masked_scatter.default: _check_count,
    }
    return {one: _checked(check, known[one]) for one, check in checks.items() if one in known}


def _checked(check: Callable[..., None], decomposition: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(decomposition)
    def checked(*arguments: Any, **named: Any) -> Any:
        check(*arguments)
        return decomposition(*arguments, **named)

    return checked


def _check_probabilities(given: torch.Tensor, *_: Any) -> None:
    is_probability = torch.logical_and(given >= 0, given <= 1)
    torch.ops.aten._assert_async.msg(is_probability.all(), "all elements of input should be between 0 and 1")


def _check_count(_: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> None:
    wrong = "Number of elements of source < number of ones in mask"
    torch.ops.aten._assert_async.msg(mask.sum() <= source.numel(), wrong)
