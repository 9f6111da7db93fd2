# SPDX-License-Identifier: BSD-3-Clause
"""What the fuzzer leaves out, with reasons."""

from __future__ import annotations

import torch

# Of equal elements any may be named.
_NAMES_ANY_OF_EQUALS = ("topk", "kthvalue", "mode")
# Results for the operator's backward alone, which the CPU leaves empty where its fast path runs.
_FOR_BACKWARD = ("_embedding_bag", "_embedding_bag_forward_only")
# Counts integers, as CUDA does.
_TAKES_MORE = ("histc",)

# The CPU's kernels have 1/6 in float, whatever the type they compute in.
_HAS_ROUNDED_CONSTANTS = ("hardsigmoid_backward",)


def has_rounded_constants(operator: torch._ops.OpOverload) -> bool:
    """Tell whether the CPU's results in float64 have an error of float32."""
    return operator._schema.name.partition("::")[2] in _HAS_ROUNDED_CONSTANTS


def is_left_out(operator: torch._ops.OpOverload) -> bool:
    """Tell whether two right results of the operator may differ."""
    name = operator._schema.name.partition("::")[2]
    listed = (*_NAMES_ANY_OF_EQUALS, *_FOR_BACKWARD, *_TAKES_MORE)
    return torch.Tag.nondeterministic_seeded in operator.tags or name in listed
