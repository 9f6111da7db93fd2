# SPDX-License-Identifier: BSD-3-Clause
"""Facts about single entries for the OpInfo run. Keys are `OpInfo.full_name`.

`NEVER`, and `NOT_YET` by check, are strict: a listed entry that passes fails the run.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .gaps import Gap
from .not_yet import NOT_YET

__all__ = ["NEVER", "NOT_YET", "Gap", "Tolerance", "gap"]


class Tolerance(NamedTuple):
    """The allowed distance of a value from the CPU's: multiples of the type's epsilon, of the value and of 1."""

    epsilons: float
    reason: str
    half_epsilons: float = 4  # of 16-bit types

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        info = torch.finfo(dtype)
        bound = (self.epsilons if info.bits > 16 else self.half_epsilons) * info.eps
        return bound, bound


_JITERATOR = Gap("jiterator compiles CUDA source at run time; torch refuses every other device")
_NO_CPU_KERNEL = Gap("the entry has no dtype on the CPU: there is nothing to compare with")

# What no device of this package can pass in any check, because torch rules it out.
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

# Random entries whose mean says nothing: the mean does not exist, or
# the sign of the result is free.
NO_MEAN: frozenset[str] = frozenset({"cauchy", "pca_lowrank", "svd_lowrank"})

# Entries that enlarge a tensor in place beyond its storage: nothing has written the added elements.
ENLARGED_IN_PLACE: frozenset[str] = frozenset({"resize_", "resize_as_"})

# Entries whose CPU kernel ends the process where elements of `out` are the same
# memory: nothing can be compared.
CRASH_ON_CPU: frozenset[str] = frozenset({"narrow_copy", "nn.functional.avg_pool3d", "torch._scaled_mm"})

# Entries whose CPU kernel adds to memory that nobody wrote where `out` is empty and the input is
# not contiguous: two calls on the CPU differ.
UNDEFINED_INTO_EMPTY: frozenset[str] = frozenset({"native_batch_norm", "_native_batch_norm_legit"})

# Entries that a check is for and that have nothing for it to compare.
_FACTORIES = """
    arange broadcast_shapes empty empty_permuted empty_strided eye full item linspace linspace.tensor_overload logspace
    logspace.tensor_overload ones randint randn scalar_tensor tril_indices triu_indices zeros
    signal.windows.bartlett signal.windows.blackman signal.windows.cosine signal.windows.exponential
    signal.windows.gaussian signal.windows.general_cosine signal.windows.general_hamming signal.windows.hamming
    signal.windows.hann signal.windows.kaiser signal.windows.nuttall
"""
_WITHOUT_ERRORS = """
    T __rmod__ __rpow__ __rsub__ add div.floor_rounding div.no_rounding_mode div.trunc_rounding floor_divide median mul
    sub true_divide
"""
NOTHING_TO_COMPARE: dict[str, frozenset[str]] = {
    "layouts": frozenset(_FACTORIES.split()),
    "layout-pairs": frozenset(_FACTORIES.split()) - {"tril_indices", "triu_indices"},
    "out": frozenset({"equal"}),
    "sparse": frozenset({"randn_like", "zeros_like"}),
    "errors": frozenset(_WITHOUT_ERRORS.split()),
}

# Operators that no provider need run: allocation, fills, copies and reading one element are native
# code of the core for every driver and are not counted, no more than views, which their schema
# tells. A sample that no provider counted must have consisted of them on the CPU.
_NATIVE = """
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_
    fill fill_ full full_like new_full new_ones new_zeros ones ones_like scalar_tensor zero_ zeros zeros_like
    clone copy_ _to_copy _local_scalar_dense
"""
# Operators that torch itself makes of those and of views for some arguments: a rotation by nothing
# is a clone, no integer is infinite, a product over no elements is zeros.
_MADE_OF_NATIVE = """
    alias_copy as_strided_copy as_strided_scatter block_diag constant_pad_nd diag_embed diagonal_scatter expand_copy
    isinf permute_copy repeat rot90 select_scatter slice_scatter split_with_sizes_copy squeeze_copy t_copy
    transpose_copy _trilinear unbind_copy unfold_copy unsafe_split unsqueeze_copy view_copy
"""
UNCOUNTED_OPERATORS: frozenset[str] = frozenset(f"aten::{name}" for name in (_NATIVE + _MADE_OF_NATIVE).split())

# Entries whose values may differ from the CPU's, by how much, and why.
_LSTSQ = Tolerance(100, "LAPACK's answer for wide matrices differs between two calls on the CPU too")
_BLAS = Tolerance(4, "MKL rounds by where its tensors lie: with MKL_CBWR=COMPATIBLE both are equal")
_SUMS = Tolerance(4, "torch picks the type of the sums by the device's type: float32 on the CPU, the input's elsewhere")
TOLERANCES: dict[str, Tolerance] = {
    "linalg.lstsq": _LSTSQ,
    "linalg.lstsq.grad_oriented": _LSTSQ,
    "linalg.lu_solve": _BLAS,
    "nn.functional.linear_cross_entropy.chunked": _SUMS,
    "nn.functional.linear_cross_entropy.chunked_none": _SUMS,
}
# Of complex results that such operators were multiplied for: the CPU's loop rounds otherwise where
# its result begins within 32 bytes behind an argument, and where it begins is chance.
COMPLEX_PRODUCTS = Tolerance(4, "the CPU's kernel rounds complex products by where its tensors lie")
PRODUCTS: frozenset[str] = frozenset({"aten::mul.Tensor", "aten::mul_.Tensor", "aten::mul.out"})


# Entries whose values may differ where a setting asks for other kernels.
_DECOMPOSED = Tolerance(8, "in deterministic mode torch decomposes it for every device but the CPU")
SETTINGS_TOLERANCES: dict[str, Tolerance] = {
    "nn.functional.interpolate.bilinear": _DECOMPOSED,
    "nn.functional.interpolate.trilinear": _DECOMPOSED,
    "nn.functional.upsample_bilinear": _DECOMPOSED,
}

# Modules whose values may differ, by how much, and why.
_FUSED = Tolerance(200, "the CPU has a fused kernel with another order of additions, for its own tensors only", 32)
MODULE_TOLERANCES: dict[str, Tolerance] = dict.fromkeys(
    ("nn.RNN", "nn.LSTM", "nn.GRU", "nn.RNNCell", "nn.LSTMCell", "nn.GRUCell"), _FUSED
)

# Modules and element types of which no sample runs on the CPU.
MODULES_THAT_THE_CPU_LACKS: frozenset[tuple[str, str]] = frozenset(
    (name, "bfloat16")
    for name in ("nn.AvgPool3d", "nn.LPPool3d", "nn.CTCLoss", "nn.MultiLabelMarginLoss", "nn.MultiMarginLoss")
)


# Entries of the lists above that an older torch does not have.
OF_NEWER_TORCH: frozenset[str] = frozenset(
    {"nn.functional.linear_cross_entropy.chunked", "nn.functional.linear_cross_entropy.chunked_none"}
)


def gap(check: str, name: str, dtype: str, *, all_samples: bool) -> Gap | None:
    """Return the listed gap of an entry in a check, or None if it must pass."""
    # What is never run can still be refused as it should.
    never = [NEVER[name]] if name in NEVER and check != "errors" else []
    for listed in [*never, *NOT_YET.get(check, {}).get(name, [])]:
        is_for_later = listed.later and not all_samples
        if (listed.dtypes is None or dtype in listed.dtypes) and not is_for_later:
            return listed
    return None
