# SPDX-License-Identifier: BSD-3-Clause
"""One call of every operator in the cast policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Make:
    """A maker of a call's tensors on a device; floating-point tensors take the given dtypes in turn."""

    def __init__(self, device: torch.device | str, dtypes: Sequence[torch.dtype]) -> None:
        self.device = device
        self.dtypes = itertools.cycle(dtypes)
        self.generator = torch.Generator().manual_seed(7)

    def __call__(self, *shape: int, names: tuple[str, ...] | None = None) -> torch.Tensor:
        # In the domain of every function below, and exact in every dtype.
        values = torch.randint(16, 240, shape, generator=self.generator) / 256
        result = values.to(torch.bfloat16).to(next(self.dtypes)).to(self.device)
        return result.rename(*names) if names else result

    def index(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def ones(self, *shape: int) -> torch.Tensor:
        return torch.ones(shape, dtype=torch.int64, device=self.device)


Call = tuple[Any, ...]


def _convolution(t: Make) -> Call:
    return t(1, 2, 5, 5), t(3, 2, 3, 3), t(3), [1, 1], [0, 0], [1, 1], False, [0, 0], 1


def _two(t: Make) -> Call:
    return t(2, 3), t(2, 3)


def _one(t: Make) -> Call:
    return (t(3, 3),)


def _square(t: Make) -> Call:
    return t(2, 2), t(2, 2)


def _cell(gates: int) -> Callable[[Make], Call]:
    return lambda t: (t(2, 3), t(2, 3), t(3 * gates, 3), t(3 * gates, 3), t(3 * gates), t(3 * gates))


LOWER_PRECISION: dict[str, Callable[[Make], Call]] = {
    "_convolution.deprecated": lambda t: (*_convolution(t), False, False, False),
    "_convolution": lambda t: (*_convolution(t), False, False, False, False),
    "conv1d": lambda t: (t(1, 2, 5), t(3, 2, 3)),
    "conv2d": lambda t: (t(1, 2, 5, 5), t(3, 2, 3, 3)),
    "conv3d": lambda t: (t(1, 2, 4, 4, 4), t(3, 2, 3, 3, 3)),
    "conv_tbc": lambda t: (t(5, 1, 2), t(3, 2, 3), t(3)),
    "conv_transpose1d": lambda t: (t(1, 2, 5), t(2, 3, 3)),
    "conv_transpose2d.input": lambda t: (t(1, 2, 5, 5), t(2, 3, 3, 3)),
    "conv_transpose3d.input": lambda t: (t(1, 2, 4, 4, 4), t(2, 3, 3, 3, 3)),
    "convolution": _convolution,
    "prelu": lambda t: (t(2, 3), t(3)),
    "addmm": lambda t: (t(2, 2), t(2, 2), t(2, 2)),
    "addmv": lambda t: (t(2), t(2, 2), t(2)),
    "addr": lambda t: (t(2, 2), t(2), t(2)),
    "matmul": _square,
    "einsum": lambda t: ("ij,jk->ik", [t(2, 2), t(2, 2)]),
    "mm": _square,
    "mv": lambda t: (t(2, 2), t(2)),
    "linalg_vecdot": _two,
    "linear": lambda t: (t(2, 3), t(4, 3), t(4)),
    "addbmm": lambda t: (t(2, 2), t(3, 2, 2), t(3, 2, 2)),
    "baddbmm": lambda t: (t(3, 2, 2), t(3, 2, 2), t(3, 2, 2)),
    "bmm": lambda t: (t(3, 2, 2), t(3, 2, 2)),
    "chain_matmul": lambda t: ([t(2, 2), t(2, 2)],),
    "linalg_multi_dot": lambda t: ([t(2, 2), t(2, 2)],),
    "_thnn_fused_lstm_cell": lambda t: (t(2, 12), t(2, 12), t(2, 3)),
    "_thnn_fused_gru_cell": lambda t: (t(2, 9), t(2, 9), t(2, 3)),
    "lstm_cell": lambda t: (t(2, 3), [t(2, 3), t(2, 3)], t(12, 3), t(12, 3), t(12), t(12)),
    "gru_cell": _cell(3),
    "rnn_tanh_cell": _cell(1),
    "rnn_relu_cell": _cell(1),
    "_scaled_dot_product_flash_attention": lambda t: (t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8)),
    "scaled_dot_product_attention": lambda t: (t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8)),
}

UNARY = "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus nuclear_norm"
BINARY = """
    pow.Tensor_Tensor cosine_similarity hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    soft_margin_loss binary_cross_entropy_with_logits dist cdist
"""
FP32: dict[str, Callable[[Make], Call]] = {
    **dict.fromkeys(UNARY.split(), _one),
    **dict.fromkeys(BINARY.split(), _two),
    "linalg_matrix_sqrth": lambda t: (t(3).diag(),),
    "pow.Tensor_Scalar": lambda t: (t(3), 2.0),
    "pow.Scalar": lambda t: (2.0, t(3)),
    "layer_norm": lambda t: (t(2, 3), [3]),
    "native_layer_norm": lambda t: (t(2, 3), [3], None, None, 1e-5),
    "rms_norm": lambda t: (t(2, 3), [3]),
    "group_norm": lambda t: (t(2, 4, 3), 2),
    "frobenius_norm.dim": lambda t: (t(3, 3), [0, 1]),
    "nuclear_norm.dim": lambda t: (t(3, 3), [0, 1]),
    "poisson_nll_loss": lambda t: (*_two(t), True, False, 1e-8, 1),
    "cosine_embedding_loss": lambda t: (*_two(t), t.ones(2)),
    "nll_loss": lambda t: (t(2, 3), t.index(2)),
    "nll_loss2d": lambda t: (t(2, 3, 4, 4), t.index(2, 4, 4)),
    "margin_ranking_loss": lambda t: (t(3), t(3), t(3)),
    "multilabel_margin_loss": lambda t: (t(2, 3), t.index(2, 3)),
    "triplet_margin_loss": lambda t: (t(2, 3), t(2, 3), t(2, 3)),
    "multi_margin_loss": lambda t: (t(2, 3), t.index(2)),
    "pdist": _one,
    "renorm": lambda t: (t(3, 3), 2.0, 0, 1.0),
    "logsumexp": lambda t: (t(3, 3), [0]),
    "upsample_nearest1d": lambda t: (t(1, 2, 4), [8]),
    "_upsample_nearest_exact1d": lambda t: (t(1, 2, 4), [8]),
    "upsample_nearest2d": lambda t: (t(1, 2, 4, 4), [8, 8]),
    "_upsample_nearest_exact2d": lambda t: (t(1, 2, 4, 4), [8, 8]),
    "upsample_nearest3d": lambda t: (t(1, 2, 4, 4, 4), [8, 8, 8]),
    "_upsample_nearest_exact3d": lambda t: (t(1, 2, 4, 4, 4), [8, 8, 8]),
    "upsample_linear1d": lambda t: (t(1, 2, 4), [8], False),
    "upsample_bilinear2d": lambda t: (t(1, 2, 4, 4), [8, 8], False),
    "_upsample_bilinear2d_aa": lambda t: (t(1, 2, 4, 4), [8, 8], False),
    "upsample_trilinear3d": lambda t: (t(1, 2, 4, 4, 4), [8, 8, 8], False),
    "upsample_bicubic2d": lambda t: (t(1, 2, 4, 4), [8, 8], False),
    "_upsample_bicubic2d_aa": lambda t: (t(1, 2, 4, 4), [8, 8], False),
}

FP32_BY_DTYPE: dict[str, Callable[[Make], Call]] = {
    "prod": _one,
    "prod.dim_int": lambda t: (t(3, 3), 0),
    "prod.dim_Dimname": lambda t: (t(3, 3, names=("a", "b")), "a"),
    "softmax.int": lambda t: (t(3, 3), 0),
    "softmax.Dimname": lambda t: (t(3, 3, names=("a", "b")), "a"),
    "log_softmax.int": lambda t: (t(3, 3), 0),
    "log_softmax.Dimname": lambda t: (t(3, 3, names=("a", "b")), "a"),
    "cumprod": lambda t: (t(3, 3), 0),
    "cumprod.dimname": lambda t: (t(3, 3, names=("a", "b")), "a"),
    "cumsum": lambda t: (t(3, 3), 0),
    "cumsum.dimname": lambda t: (t(3, 3, names=("a", "b")), "a"),
    "linalg_vector_norm": _one,
    "linalg_matrix_norm": lambda t: (t(3, 3), 1.0),
    "linalg_matrix_norm.str_ord": _one,
    "sum": _one,
    "sum.dim_IntList": lambda t: (t(3, 3), [0]),
    "sum.dim_DimnameList": lambda t: (t(3, 3, names=("a", "b")), ["a"]),
    "norm.Scalar": lambda t: (t(3, 3), 2.0),
    "norm.ScalarOpt_dim": lambda t: (t(3, 3), 2.0, [0], False),
    "norm.names_ScalarOpt_dim": lambda t: (t(3, 3, names=("a", "b")), 2.0, ["a"], False),
}

PROMOTE: dict[str, Callable[[Make], Call]] = {
    "addcdiv": lambda t: (t(3), t(3), t(3)),
    "addcmul": lambda t: (t(3), t(3), t(3)),
    "atan2": _two,
    "bilinear": lambda t: (t(2, 3), t(2, 4), t(5, 3, 4), None),
    "cross": lambda t: (t(2, 3), t(2, 3), 1),
    "dot": lambda t: (t(3), t(3)),
    "vdot": lambda t: (t(3), t(3)),
    "grid_sampler": lambda t: (t(1, 1, 4, 4), t(1, 2, 2, 2), 0, 0, False),
    "index_put": lambda t: (t(3), [t.index(1)], t(1)),
    "tensordot": lambda t: (t(2, 3), t(3, 2), [1], [0]),
    "scatter_add": lambda t: (t(2, 3), 0, t.index(2, 3), t(2, 3)),
}

SAMPLES = {
    f"aten::{name}": make
    for part in (LOWER_PRECISION, FP32, FP32_BY_DTYPE, PROMOTE, {"binary_cross_entropy": _two})
    for name, make in part.items()
}

# Torch had named tensors up to 2.11, and boxed kernels, which the device's are, refuse them.
NAMED = {f"aten::{name}" for name in FP32_BY_DTYPE if "imname" in name or "names" in name}

# What only CUDA has a kernel for: the cast is seen, and the call ends there.
CUDA_ONLY = {
    "aten::_thnn_fused_lstm_cell",
    "aten::_thnn_fused_gru_cell",
    "aten::_scaled_dot_product_flash_attention",
}


def overload(name: str) -> torch._ops.OpOverload:
    """Return the operator of a dispatcher's name: "aten::softmax.int", "aten::mm"."""
    space, _, rest = name.partition("::")
    base, _, which = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), which or "default")
