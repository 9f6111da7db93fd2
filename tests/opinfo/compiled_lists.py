# SPDX-License-Identifier: BSD-3-Clause
"""What the run of the operator database under torch.compile knows about single entries, by `OpInfo.full_name`.

`ON_NO_DEVICE` and `NOT_YET` are strict: an entry of theirs that passes fails the run.
"""

from __future__ import annotations

from typing import NamedTuple

from .lists import Gap


class Close(NamedTuple):
    """How far a compiled result may lie from the eager one, instead of torch.testing.assert_close's own bounds."""

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
_STRIDES = Gap(
    "torch's meta kernel takes a meta tensor for CUDA's and a fake tensor for what it stands for, so that the eager "
    "factor has other strides than the compiler was told"
)
NOT_YET: dict[str, Gap] = {"linalg.eig": _STRIDES, "pca_lowrank": _STRIDES, "svd_lowrank": _STRIDES}

CLOSE: dict[str, Close] = {}


def gap(name: str) -> Gap | None:
    """Gives the listed gap of an entry, or None if it must pass."""
    return ON_NO_DEVICE.get(name) or NOT_YET.get(name)
