# SPDX-License-Identifier: BSD-3-Clause
"""Assertions, of values and of the parts of sparse tensors."""

from __future__ import annotations

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.row import Operator

__all__ = ["OPERATORS"]

OPERATORS = (
    Operator(
        "aten::_functional_assert_async aten::_validate_compressed_sparse_indices "
        "aten::_validate_sparse_bsc_tensor_args aten::_validate_sparse_bsr_tensor_args "
        "aten::_validate_sparse_compressed_tensor_args "
        "aten::_validate_sparse_csc_tensor_args aten::_validate_sparse_csr_tensor_args",
        facts=Facts(checked_values="values"),
    ),
)
