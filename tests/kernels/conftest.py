# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures for the provider 'generated', on drivers whose devices run it."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torch_outboard import _C
from torch_outboard.kernels import builder

from .device_kernels import is_native

_VARIANTS = itertools.count(1000)  # apart from the numbers of tuning


@pytest.fixture(autouse=True)
def _compiles(device: torch.device) -> None:
    if _C.reaches_memory(device.index):
        pytest.skip("capability: memory that the host can't reach, for which kernels are generated")


@pytest.fixture
def own_plans() -> Iterator[Callable[[], None]]:
    """Use none of the plans of other tests, of which some have the same calls; again none with each call."""

    def renew() -> None:
        _C.set_plan_variant(next(_VARIANTS))

    renew()
    yield renew
    _C.set_plan_variant(0)


@pytest.fixture
def change_texts(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[str, bytes], bytes]], None]:
    """Return a function after which the texts of all kernels are changed. The compiler's refusals come at the call.

    A process waits for each build once a refusal has come late, so one is provoked first.
    """
    original = builder._kernel

    def change(changed: Callable[[str, bytes], bytes]) -> None:
        def kernel_of(name: str, *arguments: Any) -> Any:
            kernel = original(name, *arguments)
            return kernel._replace(code=changed(name, kernel.code))

        monkeypatch.setattr(builder, "_kernel", kernel_of)
        monkeypatch.setattr(builder, "_keeps", lambda: False)

    change(lambda name, code: b"@")
    x = torch.rand(2, 1, 2, 1, 2, 1, 2, 1).to(device)  # of a rank that no other test uses
    with warnings.catch_warnings(), contextlib.suppress(ValueError):
        warnings.simplefilter("ignore")
        torch.hypot(x, x).cpu()
    return change


def _skip_native(operator: str, subject: str) -> None:
    if is_native(operator):
        pytest.skip(f"capability: {subject} by generated kernels, which OUTBOARD_PROVIDERS=generated,host chooses")


@pytest.fixture
def generated_products() -> None:
    _skip_native("aten::mm.out", "products")


@pytest.fixture
def generated_attention() -> None:
    _skip_native("aten::_scaled_dot_product_fused_attention_overrideable", "attention")


@pytest.fixture
def nothing_on_the_cpu() -> Iterator[None]:
    # What has no elements runs on the host without touching memory.
    _C.set_providers(1, 1, 0)
    _C.set_fallback_mode("error")
    try:
        yield
    finally:
        _C.set_providers(1, 2, 1)
        _C.set_fallback_mode(os.environ.get("OUTBOARD_FALLBACK", "warn"))
