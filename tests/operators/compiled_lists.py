# SPDX-License-Identifier: BSD-3-Clause
"""Facts about single entries for the run of the operator database under torch.compile, by `OpInfo.full_name`.

`ON_NO_DEVICE` and `NOT_YET` are strict: a listed entry that passes fails the run.
"""

from __future__ import annotations

from typing import NamedTuple

from .lists import Gap


class Close(NamedTuple):
    """The bounds of a compiled result's distance from the eager one, in place of torch.testing.assert_close's own."""

    relative: float
    absolute: float
    reason: str


# What fails on the CPU in the same way: torch's compiler, or the entry itself, rules it out.
_DATA = Gap("Dynamo breaks the graph at an operator whose result depends on values")
_SHAPE = Gap("the operator's result has a shape that depends on values, and torch has no meta kernel for it")
ON_NO_DEVICE: dict[str, Gap] = {
    "allclose": _DATA,
    "corrcoef": _DATA,
    "cov": _DATA,
    "equal": _DATA,
    "linalg.lstsq": _SHAPE,
    "linalg.lstsq.grad_oriented": _SHAPE,
    "nn.functional.ctc_loss": _SHAPE,
    "nn.functional.gaussian_nll_loss": Gap(
        "torch's function asks whether all values are positive, and can't guard on it"
    ),
    "resize_": Gap("Dynamo traces no resize_"),
    "resize_as_": Gap("Dynamo traces no resize_as_"),
    "to_sparse": Gap("Dynamo traces no sparse results"),
}

# What passes on the CPU and not on a device of this package.
NOT_YET: dict[str, Gap] = {}

# The same of entries whose first sample passes, in a run of all samples.
_SYMBOLS = Gap("torch loses count of the symbols of a shape that depends on values")
_WARNS = Gap("Dynamo traces no function that warns")
ALL_ON_NO_DEVICE: dict[str, Gap] = {
    "combinations": _SYMBOLS,
    "masked_select": Gap("torch takes the size of the result for larger than it knows the mask to be"),
    "take": Gap("torch's decomposition needs the number in an index of no dimensions"),
    "nn.functional.linear_cross_entropy.chunked": _WARNS,
    "nn.functional.linear_cross_entropy.chunked_none": _WARNS,
    "tensor_split": Gap("torch's decomposition needs the numbers in a tensor of places"),
}
_STATISTICS = Gap(
    "torch decomposes it, in evaluation, into saved statistics for all devices but the CPU; eager has none"
)
ALL_NOT_YET: dict[str, Gap] = {
    "_native_batch_norm_legit": _STATISTICS,
    "narrow": Gap("where the start is a tensor, torch knows its number beforehand if it is the CPU's only"),
    "native_batch_norm": _STATISTICS,
}

CLOSE: dict[str, Close] = {
    "special.hermite_polynomial_he": Close(
        1e-4, 1e-3, "the compiler fuses multiplications and additions; so on the CPU"
    ),
}


def gap(name: str, *, all_samples: bool) -> Gap | None:
    """Return the listed gap of an entry, or None if it must pass."""
    known = ON_NO_DEVICE | NOT_YET | (ALL_ON_NO_DEVICE | ALL_NOT_YET if all_samples else {})
    return known.get(name)
