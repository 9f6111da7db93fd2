# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of all driver tests."""

from __future__ import annotations

import gc

import pytest
import torch

import torch_outboard
from torch_outboard import DriverError, Status
from torch_outboard.testing.programs import TestPrograms, programs_of

from .support import has_entry, mark


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Exclude torch and its imports, which live anyway, from the collections that tests request: 0.3 s each."""
    gc.collect()
    gc.collect()  # what the first freed may have left garbage of its own, which would be kept for good
    gc.freeze()


@pytest.fixture(autouse=True)
def _marked() -> None:
    """Set `support.ran` to report on this test alone."""
    mark()


@pytest.fixture(scope="module")
def programs(device: torch.device) -> TestPrograms:
    """Return the tests' programs in a language that the driver builds."""
    if not has_entry("program_build"):
        pytest.skip("capability: programs. The driver builds none")
    driver = torch_outboard.attached_driver()
    assert driver is not None
    texts = programs_of(driver)
    if texts is None:
        pytest.skip("capability: a language. The driver names no `kernel_generator` with a dialect, no `test_programs`")
    signature = "const float32*, const float32*, float32*, int32, float32, int64"
    try:
        torch_outboard.build_kernel(
            texts.scale, "scale", language=texts.language, options=texts.options, signature=signature
        )
    except DriverError as error:
        if error.code != Status.UNAVAILABLE:
            raise
        pytest.skip(f"capability: the compiler, which is not installed: {error}")
    return texts
