# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from torch_outboard.testing.database.calls import Call
from torch_outboard.testing.database.compare import Bounds

from ..harness import Check
from ..lists import SETTINGS_TOLERANCES
from ..outcome import Outcome
from ..samples import few_dtypes_of


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "float32 by default": lambda: default_dtype(torch.float32),
    "float64 by default": lambda: default_dtype(torch.float64),
    "bfloat16 by default": lambda: default_dtype(torch.bfloat16),
    "deterministic": deterministic,
}


class Settings(Check):
    """Settings that a kernel reads beside its arguments, set before the call and reset before the wait.

    The same call runs under one setting after the other: nothing remembered of a call may outlive the setting.
    """

    name = "settings"
    may_be_late = True

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        supported = info.supported_dtypes("cpu")
        return [dtype for dtype in (torch.int64, torch.float32) if dtype in supported][:1] or few_dtypes_of(info)[:1]

    def bounds(self, ours: Outcome) -> Bounds | None:
        return SETTINGS_TOLERANCES.get(self.info.full_name) or super().bounds(ours)

    def check(self, sample: SampleInput) -> None:
        for name, setting in SETTINGS.items():

            def run(call: Call, setting: Callable[[], AbstractContextManager[None]] = setting) -> Any:
                with setting():
                    return call.forward()

            with self.at(f"{self._place} {name}"):
                pair = self.both(sample, run)
                if pair is not None:
                    self.compare(*pair)
