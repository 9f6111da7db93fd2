# SPDX-License-Identifier: BSD-3-Clause
"""Known properties of single entries of torch's operator database. Keys are `OpInfo.full_name`."""

from __future__ import annotations

__all__ = ["HOST_ARGUMENTS", "ON_NO_DEVICE", "RANDOM", "UNINITIALISED"]

# Entries that draw random numbers. Different kinds of devices draw different numbers from the same
# seed. If the CPU's result depends on the seed, check the device's result for shape, type,
# reproducibility and mean; otherwise check it like all others.
RANDOM: frozenset[str] = frozenset(
    {
        "bernoulli",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "nn.functional.alpha_dropout",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.feature_alpha_dropout.with_train",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
        "nn.functional.multi_head_attention_forward",
        "nn.functional.rrelu",
        "nn.functional.scaled_dot_product_attention",
        "normal",
        "normal.in_place",
        "normal.number_mean",
        "pca_lowrank",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "svd_lowrank",
        "uniform",
    }
)

# Entries that return uninitialized memory: compare shape, strides, type and device, but not values.
UNINITIALISED: frozenset[str] = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)

# Entries for which torch requires some tensors on the CPU: the
# arguments, by position after the input.
HOST_ARGUMENTS: dict[str, frozenset[int]] = {
    # "tensor_split expected tensor_indices_or_sections to be on cpu"
    "tensor_split": frozenset({0}),
}

# These entries multiply compressed sparse matrices, and fail if the CPU may run nothing.

ON_NO_DEVICE: frozenset[str] = frozenset({"sparse.mm.reduce", "sparse.sampled_addmm"})
