# SPDX-License-Identifier: BSD-3-Clause
"""All supported versions of torch: the random places of fractional_max_pool3d in compiled code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import torch

__all__ = ["needs_place_pools", "place_pools"]


class _Read(Exception):
    """The dimension of the samples that is read."""


class _Samples:
    def get_size(self) -> list[int]:
        return [1, 1, 3]

    def make_loader(self) -> Callable[[list[int]], NoReturn]:
        def load(index: list[int]) -> NoReturn:
            raise _Read(index[-1])

        return load


def needs_place_pools() -> bool:
    """Return True if the samples of a dimension are counted from the last one, which is right in 2-d alone."""
    from torch._inductor import lowering

    of_torch = lowering.lowerings[torch.ops.aten.fractional_max_pool3d.default]
    # A later torch has it in another module.
    offsets = inspect.unwrap(of_torch).__globals__.get("_fractional_pooling_offsets")
    if offsets is None:
        return False
    sizes = [4, 4, 4]
    try:
        offsets(_Samples(), sizes, sizes, sizes, 0, 3)([0, 0], 0)
    except _Read as read:
        return bool(read.args[0] != 0)
    return False


def place_pools(device: str) -> None:
    """Make compiled fractional_max_pool3d read its random samples as the kernels of torch do, for a device type.

    In 2-d torch's kernels take the samples of the last dimension first, in 3-d in the dimensions' order. Inductor takes
    them as in 2-d for both, and up to half of the results are other elements. There is no hook for a device's own
    lowering. Upstream: https://github.com/pytorch/pytorch/issues/183249.
    """
    if not needs_place_pools():
        return
    from torch._inductor import lowering

    operator, reverse = torch.ops.aten.fractional_max_pool3d.default, torch.ops.prims.rev.default
    of_torch = lowering.lowerings[operator]

    @functools.wraps(of_torch)
    def fractional_max_pool3d(x: Any, kernel_size: Any, output_size: Any, random_samples: Any) -> Any:
        if x.get_device().type == device:
            random_samples = lowering.lowerings[reverse](random_samples, [2])
        return of_torch(x, kernel_size, output_size, random_samples)

    lowering.lowerings[operator] = fractional_max_pool3d
