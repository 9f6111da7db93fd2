# SPDX-License-Identifier: BSD-3-Clause
"""Operators by their names in the dispatcher."""

from __future__ import annotations

import torch

__all__ = ["base_name", "overload_of"]


def overload_of(name: str) -> torch._ops.OpOverload:
    """Gives the operator "aten::add.Tensor"."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")  # type: ignore[no-any-return]


def base_name(name: str) -> str:
    """Gives the operator without overload and form: "aten::add" of "aten::add_.Tensor"."""
    return name.partition(".")[0].removesuffix("_")
