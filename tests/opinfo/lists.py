# SPDX-License-Identifier: BSD-3-Clause
"""What the OpInfo run knows about single entries. Keys are `OpInfo.full_name`.

`NEVER` and `NOT_YET` are strict: an entry of theirs that passes fails the run.
"""

from __future__ import annotations

from typing import NamedTuple


class Gap(NamedTuple):
    """An entry that does not pass."""

    reason: str
    dtypes: frozenset[str] | None = None  # None: all that are tried
    crashes: bool = False  # it would take the process along, so it is not tried


class Tolerance(NamedTuple):
    """How far a value may lie from the CPU's: multiples of the type's epsilon, relative to the value and to 1."""

    epsilons: float
    reason: str
    half_epsilons: float = 4  # of 16-bit types


_JITERATOR = Gap("jiterator compiles CUDA source at run time; torch refuses every other device")
_NO_CPU_KERNEL = Gap("the entry has no dtype on the CPU: there is nothing to compare with")

# What no device of this package can pass, because torch rules it out.
NEVER: dict[str, Gap] = {
    "jiterator_unary": _JITERATOR,
    "jiterator_binary": _JITERATOR,
    "jiterator_4inputs_with_extra_args": _JITERATOR,
    "jiterator_binary_return_by_ref": _JITERATOR,
    "jiterator_2inputs_2outputs": _JITERATOR,
    "torch.ops.aten._flash_attention_forward": _NO_CPU_KERNEL,
    "torch.ops.aten._efficient_attention_forward": _NO_CPU_KERNEL,
    "nn.functional.batch_norm.without_cudnn": _NO_CPU_KERNEL,
}

# What shall pass and does not.
_SPARSE_CSR = Gap("sparse CSR tensors cannot be made on a device of this package; dense and sparse COO tensors can")
NOT_YET: dict[str, Gap] = {
    "sparse.sampled_addmm": _SPARSE_CSR,
    "sparse.mm.reduce": _SPARSE_CSR,
}

# Entries that draw random numbers. Seeds cannot agree between two kinds of device: where the CPU's result depends on
# the seed, the device's is checked for shape, type, reproducibility and its mean; where it doesn't, like all others.
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

# Random entries whose mean says nothing: the mean does not exist, or the sign of the result is free.
NO_MEAN: frozenset[str] = frozenset({"cauchy", "pca_lowrank", "svd_lowrank"})

# Entries whose result is memory that nobody wrote: shape, strides, type and device are compared, values are not.
UNINITIALISED: frozenset[str] = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)

# Entries that torch wants to be given some tensors on the CPU: which of their arguments, by position after the input.
HOST_ARGUMENTS: dict[str, frozenset[int]] = {
    # "tensor_split expected tensor_indices_or_sections to be on cpu"
    "tensor_split": frozenset({0}),
}

# Operators that no provider need run: allocation, fills, copies and reading one element are native code of the core for
# every driver and are not counted, no more than views, which their schema tells. A sample that no provider counted must
# have consisted of them on the CPU.
_NATIVE = """
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_
    fill fill_ full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zero_ zeros zeros_like
    clone copy_ _local_scalar_dense
"""
# Operators that torch itself makes of those and of views for some arguments: a rotation by nothing is a clone, no
# integer is infinite, a product over no elements is zeros.
_MADE_OF_NATIVE = """
    alias_copy as_strided_copy as_strided_scatter block_diag constant_pad_nd diag_embed diagonal_scatter expand_copy
    isinf permute_copy repeat rot90 select_scatter slice_scatter split_with_sizes_copy squeeze_copy t_copy
    transpose_copy _trilinear unbind_copy unfold_copy unsafe_split unsqueeze_copy view_copy
"""
UNCOUNTED_OPERATORS: frozenset[str] = frozenset(f"aten::{name}" for name in (_NATIVE + _MADE_OF_NATIVE).split())

# For what the CPU's kernels have not computed where they do on the CPU.
OTHER_KERNELS = Tolerance(500, "a kernel of the driver's, or the CPU's on a copy, which adds up in another order", 32)

# Entries whose values may differ from the CPU's, by how much, and why.
_LSTSQ = Tolerance(100, "LAPACK's answer for wide matrices differs between two calls on the CPU too")
TOLERANCES: dict[str, Tolerance] = {
    "linalg.lstsq": _LSTSQ,
    "linalg.lstsq.grad_oriented": _LSTSQ,
    "nn.functional.linear_cross_entropy.chunked": Tolerance(
        4, "torch picks the type of the sums by the device's type: float32 on the CPU, the input's elsewhere"
    ),
}


def gap(name: str, dtype: str) -> Gap | None:
    """Gives the listed gap of an entry, or None if it must pass."""
    listed = NEVER.get(name) or NOT_YET.get(name)
    if listed is None or (listed.dtypes is not None and dtype not in listed.dtypes):
        return None
    return listed
