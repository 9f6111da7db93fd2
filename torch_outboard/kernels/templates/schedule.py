# SPDX-License-Identifier: BSD-3-Clause
"""The choice of a schedule for products and attention on a device."""

from __future__ import annotations

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates import strips, tiles
from torch_outboard.kernels.templates.call import TemplateCall
from torch_outboard.kernels.templates.product import Product

__all__ = ["multiply", "uses_strips", "way_of"]


def multiply(call: TemplateCall, product: Product) -> None:
    """Write the launches of a product."""
    schedule = strips if uses_strips(call) else tiles
    schedule.multiply(call, product)


def uses_strips(call: TemplateCall) -> bool:
    """Return True if items compute strips with vectors, False if groups of items compute tiles.

    Raises Refusal if the dialect allows neither.
    """
    return way_of(call.dialect, call.is_cpu) == "strips"


def way_of(dialect: Dialect, is_cpu: bool) -> str:
    """Return "strips" or "tiles".

    Raises Refusal if the dialect allows neither.
    """
    if dialect.vectors and (is_cpu or not dialect.has_groups):
        return "strips"
    if not dialect.has_groups:
        raise Refusal(
            f"the dialect {dialect.name!r} has neither vectors nor groups of items that share memory: needs vectors or "
            "has_groups"
        )
    return "tiles"
