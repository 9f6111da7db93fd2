# SPDX-License-Identifier: BSD-3-Clause
"""The checks of the operator database's entries: one check for each file, in the order of this list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from ..harness import Check
from ..samples import dtype_name
from .broadcasting import Broadcasting
from .errors import Errors
from .forward import Forward
from .forward_ad import ForwardAD
from .inplace import InPlace
from .layout_pairs import LayoutPairs
from .memory_layouts import MemoryLayouts
from .out import Out
from .settings import Settings
from .sparse import Sparse

CHECKS: tuple[type[Check], ...] = (
    Forward,
    ForwardAD,
    MemoryLayouts,
    LayoutPairs,
    Broadcasting,
    Out,
    InPlace,
    Sparse,
    Settings,
    Errors,
)


class Case(NamedTuple):
    """One check of one entry with one element type; None for an entry without element types on the CPU."""

    check: type[Check]
    info: OpInfo
    dtype: torch.dtype | None

    @property
    def name(self) -> str:
        return f"{self.check.name}-{self.info.full_name}-{dtype_name(self.dtype)}"


def cases() -> Iterator[Case]:
    for check in CHECKS:
        for info in op_db:
            dtypes: list[torch.dtype | None] = list(check.dtypes(info))
            if check is Forward and not dtypes:
                dtypes = [None]
            for dtype in dtypes:
                yield Case(check, info, dtype)
