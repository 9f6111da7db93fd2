# SPDX-License-Identifier: BSD-3-Clause
"""Which schedule a product or attention has on a device."""

from __future__ import annotations

from torch_outboard.codegen.dialect import Dialect
from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates import strips, tiles
from torch_outboard.kernels.templates.call import TemplateCall
from torch_outboard.kernels.templates.product import Product

__all__ = ["multiply", "uses_strips", "way_of"]


def multiply(call: TemplateCall, product: Product) -> None:
    """Writes the launches of a product."""
    schedule = strips if uses_strips(call) else tiles
    schedule.multiply(call, product)


def uses_strips(call: TemplateCall) -> bool:
    """Says whether items compute strips with vectors; else groups of items compute tiles. Refusal if neither can be."""
    return way_of(call.dialect, call.is_cpu) == "strips"


def way_of(dialect: Dialect, is_cpu: bool) -> str:
    """Gives "strips" or "tiles"; Refusal if neither can be."""
    if dialect.vectors and (is_cpu or not dialect.has_groups):
        return "strips"
    if not dialect.has_groups:
        raise Refusal(
            f"the dialect {dialect.name!r} has neither vectors nor groups of items that share memory: needs vectors or "
            "has_groups"
        )
    return "tiles"
