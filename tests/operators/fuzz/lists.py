# SPDX-License-Identifier: BSD-3-Clause
"""The fuzzer's exclusions, with reasons."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves

from ..refusals.captured import OperatorCall
from ..refusals.lists import UNCHECKED

# Of equal elements any may be named.
_NAMES_ANY_OF_EQUALS = ("topk", "kthvalue", "mode")
# These name any of equal elements too, and are compared where no two elements are equal.
_SORTS = ("aten::sort", "aten::argsort", "aten::msort")
# Of eigenvectors any sign is right.
_HAS_ANY_SIGN = ("_linalg_eigh",)
# Of a matrix whose rows depend on one another, these are made of what rounding leaves. LAPACK
# ends with an error for some matrices that are not finite, and with numbers for others.
_OF_RANK = (
    *("geqrf", "linalg_inv_ex", "linalg_lu", "linalg_lu_factor_ex", "linalg_pinv", "linalg_qr", "_linalg_solve_ex"),
    *("_linalg_svd", "linalg_lstsq"),
)
# What is left of a matrix without a factor is not the same.
_MAY_HAVE_NO_FACTOR = ("linalg_cholesky_ex",)
# Results for the operator's backward alone, which the CPU leaves empty where its fast path runs.
_FOR_BACKWARD = ("_embedding_bag", "_embedding_bag_forward_only")
# Counts integers, as CUDA does.
_TAKES_MORE = ("histc",)

# Reads indices beside its argument where that is not contiguous, and
# asserts something of what it finds.
_READS_BESIDE = ("fractional_max_pool3d_backward",)

# The CPU's kernels have 1/6 in float, whatever the type they compute in.
_HAS_ROUNDED_CONSTANTS = ("hardsigmoid_backward",)

# The CPU returns the shape of its input where that has no elements; the meta kernel
# says what the documentation says.
_KEEPS_SHAPE_WHEN_EMPTY = ("pixel_unshuffle",)
# The CPU returns what is empty before it looks at its type.
_TAKES_ANY_EMPTY = ("cholesky",)
# Elements that do not count are not read: infinity times their weight of 0 is NaN on the CPU.
_LEAVES_OUT_ZERO_WEIGHTS = ("upsample_trilinear3d_backward",)
# Of an output that is smaller than its gradient the CPU reads beside it.
_READS_BESIDE_OUTPUT = ("_log_softmax_backward_data", "_softmax_backward_data")
# Made of other operators, which take bools, where it is not the CPU.
_TAKES_BOOLS = ("ldexp.Tensor",)
# Means by Welford's steps, in which two infinities are subtracted. Over whole tensors the CPU adds.
_MEANS_BY_STEPS = ("std_mean.correction", "var_mean.correction")
# A degree that is not finite has no meaning, and its conversion to an integer none in C++.
_OF_DEGREES = "_polynomial_"
# Of bytes the CPU computes in the wider integers of C++; CUDA has no such kernels.
_WIDE_INTEGERS = ("smooth_l1_loss_backward",)
# From empty inputs the CPU makes tensors of negative sizes, which cannot be copied.
_MAKES_NEGATIVE_SIZES = ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")


def may_be_wrong(operator: torch._ops.OpOverload) -> bool:
    """Return whether the CPU's answer to a wrong call of the operator is a valid reference."""
    name = operator._schema.name.partition("::")[2]
    return str(operator.name()) not in UNCHECKED and name not in _MAKES_NEGATIVE_SIZES


def has_rounded_constants(operator: torch._ops.OpOverload) -> bool:
    """Return whether the CPU's results in float64 have an error of float32."""
    return operator._schema.name.partition("::")[2] in _HAS_ROUNDED_CONSTANTS


def is_left_out(operator: torch._ops.OpOverload) -> bool:
    """Return whether two right results of the operator may differ."""
    name = operator._schema.name.partition("::")[2]
    listed = (*_NAMES_ANY_OF_EQUALS, *_HAS_ANY_SIGN, *_FOR_BACKWARD, *_TAKES_MORE, *_READS_BESIDE)
    return torch.Tag.nondeterministic_seeded in operator.tags or name in listed


def may_differ(call: OperatorCall) -> bool:
    """Return whether the CPU answers this call in one way, and CUDA and generated kernels in another."""
    name = call.name.partition("::")[2]
    tensors = [tensor for tensor in tree_leaves(call.arguments) if isinstance(tensor, torch.Tensor)]
    if call.name in _SORTS:
        return tensors[0].unique().numel() < tensors[0].numel()
    if name in _READS_BESIDE_OUTPUT:
        return tensors[0].shape != tensors[1].shape
    if name in _TAKES_BOOLS:
        return any(tensor.dtype == torch.bool for tensor in tensors)
    if name.partition(".")[0] in _OF_RANK:
        return _is_not_determined(tensors[0])
    if name in _KEEPS_SHAPE_WHEN_EMPTY or name in _TAKES_ANY_EMPTY:
        return any(tensor.numel() == 0 for tensor in tensors)
    if name in _MAY_HAVE_NO_FACTOR:
        return bool(torch.linalg.cholesky_ex(tensors[0])[1].any())
    if name in _WIDE_INTEGERS:
        return not any(tensor.is_floating_point() for tensor in tensors)
    if name in _LEAVES_OUT_ZERO_WEIGHTS or name in _MEANS_BY_STEPS or _OF_DEGREES in name:
        return any(tensor.is_floating_point() and not tensor.isfinite().all() for tensor in tensors)
    return False


def _is_not_determined(matrices: torch.Tensor) -> bool:
    if matrices.dim() < 2 or matrices.numel() == 0:
        return False
    if not matrices.isfinite().all():
        return True
    wide = matrices.to(torch.complex128 if matrices.is_complex() else torch.float64)
    return bool((torch.linalg.matrix_rank(wide, rtol=1e-6) < min(matrices.shape[-2:])).any())
