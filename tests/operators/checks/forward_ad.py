# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

from torch_outboard.testing.database.calls import CPU, Call, Copier, seed

from ..harness import Check
from ..samples import few_dtypes_of


class ForwardAD(Check):
    """Forward-mode differentiation: the directional derivative along fixed tangents of all arguments, and of one alone.

    An argument without a tangent has zeros that torch does not store, and that operators are told of.
    """

    name = "forward_ad"
    first = (2, 1)

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        if not info.supports_forward_ad:
            return []
        backward = info.supported_backward_dtypes("cpu")
        chosen = {torch.float32, torch.complex64, *few_dtypes_of(info)} & backward
        return sorted(chosen or sorted(backward, key=str)[:1], key=str)

    def check(self, sample: SampleInput) -> None:
        for only in (None, 0, 1):
            with self.at(f"{self._place} {'all' if only is None else only}"):
                pair = self.both(sample, lambda call, only=only: self._derivative(call, only))
                if pair is not None:
                    self.compare(*pair)

    def _derivative(self, call: Call, only: int | None) -> list[Any]:
        generator = torch.Generator().manual_seed(5)
        copy = Copier(call.device)
        numbers = itertools.count()

        def dual(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
                return value
            if value.layout != torch.strided or value.device != call.device or value.dtype.itemsize == 1:
                return value
            if only not in (None, next(numbers)):
                return value.detach()
            tangent = torch.randn(value.shape, dtype=value.dtype, generator=generator)
            return forward_ad.make_dual(value.detach(), copy(tangent))

        with forward_ad.dual_level():
            arguments = tree_map(dual, (call.input, call.args, call.kwargs))
            seed(3, CPU)
            result = call.info(arguments[0], *arguments[1], **arguments[2])
            return [self._tangent(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    def _tangent(self, result: torch.Tensor) -> torch.Tensor | None:
        tangent = forward_ad.unpack_dual(result).tangent
        if tangent is not None and tangent._is_zerotensor():
            return tangent.clone()
        return tangent
