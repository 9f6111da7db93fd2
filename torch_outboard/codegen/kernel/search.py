# SPDX-License-Identifier: BSD-3-Clause
"""The search for a value's bucket."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V

from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES
from torch_outboard.codegen.kernel.values import cast

__all__ = ["SearchBody", "bucketize"]


class SearchBody(Protocol):
    """The parts of a kernel that a search uses."""

    args: Any
    cse: Any
    compute: IndentedBuffer

    def index_to_str(self, index: Any) -> str:
        """Return an index as text."""

    def loaded(self, variable: str, index: str, dtype: torch.dtype) -> str:
        """Return an element of memory as a value."""


def bucketize(
    kernel: SearchBody,
    values: Any,
    boundaries: tuple[Any, ...],
    boundary_indices: Any,
    indexing_dtype: torch.dtype,
    right: bool,
    sorter: tuple[Any, ...] | None,
    sorter_indices: Any,
) -> Any:
    """Emit a binary search among sorted boundaries. Inductor's CSEProxy.bucketize documents the arguments."""
    pointer = kernel.args.input(boundaries[0])
    dtype = V.graph.get_dtype(boundaries[0])
    size, stride = kernel.index_to_str(boundaries[1]), kernel.index_to_str(boundaries[3])
    at = "ob_middle"
    if sorter is not None:
        at = f"{kernel.args.input(sorter[0])}[{sorter_indices} + ob_middle * ({kernel.index_to_str(sorter[1])})]"
    loaded = kernel.loaded(pointer, f"{boundary_indices} + {at} * ({stride})", dtype)
    result = kernel.cse.newvar(dtype=indexing_dtype, shape=())
    common = torch.promote_types(dtype, values.dtype)
    kind = COMPUTE_TYPES[common]
    # A NaN sorts after all boundaries, because every comparison with it is false.
    kernel.compute.writelines(
        [
            f"{COMPUTE_TYPES[indexing_dtype]} {result} = 0;",
            f"for (ob_i64 ob_length = {size}; ob_length > 0;) {{",
            f"  const ob_i64 ob_half = ob_length / 2, ob_middle = {result} + ob_half;",
            f"  if (!(({kind}){loaded} {'>' if right else '>='} {cast(values, common)})) {{",
            f"    {result} = ({COMPUTE_TYPES[indexing_dtype]})(ob_middle + 1);",
            "    ob_length -= ob_half + 1;",
            "  } else {",
            "    ob_length = ob_half;",
            "  }",
            "}",
        ]
    )
    return result
