# SPDX-License-Identifier: BSD-3-Clause
"""The exclusions of the matrix of refusals, with reasons."""

from __future__ import annotations

# Operators whose CPU kernels check too little: a wrong call reads or writes
# beside its arguments there too.
UNCHECKED: frozenset[str] = frozenset(
    {
        "aten::_adaptive_avg_pool2d_backward",
        "aten::_adaptive_avg_pool3d_backward",
        "aten::_batch_norm_with_update",
        "aten::_embedding_bag_backward",
        "aten::_embedding_bag_per_sample_weights_backward",
        "aten::_fft_c2r",
        "aten::_fft_r2c",
        "aten::_native_batch_norm_legit",
        "aten::_pdist_backward",
        "aten::_segment_reduce_backward",
        "aten::adaptive_max_pool2d_backward",
        "aten::adaptive_max_pool3d_backward",
        "aten::avg_pool2d_backward",
        "aten::avg_pool3d_backward",
        "aten::batch_norm_backward",
        "aten::fractional_max_pool3d_backward",
        "aten::gelu_backward",
        "aten::grid_sampler_2d_backward",
        "aten::grid_sampler_3d_backward",
        "aten::lu_unpack",
        "aten::max_pool2d_with_indices_backward",
        "aten::max_pool3d_with_indices_backward",
        "aten::native_batch_norm",
        "aten::native_batch_norm_backward",
        "aten::native_layer_norm_backward",
        "aten::replication_pad1d_backward",
        "aten::replication_pad2d_backward",
        "aten::unfold_backward",
    }
)

# Arguments whose values the CPU's kernels do not check, by operator: with a wrong one
# they read beside their arguments.
UNCHECKED_VALUES: dict[str, tuple[str, ...]] = {
    "aten::_embedding_bag": ("offsets",),
    "aten::_embedding_bag_forward_only": ("offsets",),
    "aten::_embedding_bag_per_sample_weights_backward": ("offsets",),
    "aten::linalg_ldl_solve": ("pivots",),
}

# Operators whose CPU kernels cannot be asked about a call without its values: their
# wrong calls may raise at the wait.
JUDGE_VALUES: frozenset[str] = frozenset({"aten::segment_reduce"})

# By operator and change: why the device and the CPU differ.
ALLOWED: dict[tuple[str, str], str] = {
    (
        "aten::ldexp.Tensor",
        "other: torch.bool",
    ): "made of other operators, which take bools, where it is not the CPU",
    ("aten::histc", "self: torch.int64"): "counts integers, as CUDA does",
    ("aten::histc", "self: torch.uint8"): "counts integers, as CUDA does",
}
