# SPDX-License-Identifier: BSD-3-Clause
"""Which schedule a product has on a device."""

from __future__ import annotations

from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates import strips, tiles
from torch_outboard.kernels.templates.call import TemplateCall
from torch_outboard.kernels.templates.product import Product

__all__ = ["multiply"]


def multiply(call: TemplateCall, product: Product) -> None:
    """Writes the launches of a product."""
    dialect = call.dialect
    if dialect.vectors and (call.is_cpu or not dialect.has_groups):
        strips.multiply(call, product)
    elif dialect.has_groups:
        tiles.multiply(call, product)
    else:
        raise Refusal(f"the dialect {dialect.name!r} has neither vectors nor groups of items that share memory")
