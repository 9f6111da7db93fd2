# SPDX-License-Identifier: BSD-3-Clause
"""Garbage collection during builds: put off, and enabled again whatever happens."""

from __future__ import annotations

import gc
import os

import pytest

from torch_outboard.kernels.garbage import defer_collection


def test_collections_wait_for_the_end_of_the_outer_scope():
    with defer_collection():
        assert not gc.isenabled()
        with defer_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_exception_enables_them_again():
    with pytest.raises(ZeroDivisionError), defer_collection():
        1 / 0  # noqa: B018
    assert gc.isenabled()


def test_a_program_that_has_disabled_them_keeps_them_so():
    gc.disable()
    try:
        with defer_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_child_that_is_forked_during_a_build_collects():
    with defer_collection():
        if (child := os.fork()) == 0:
            os._exit(not gc.isenabled())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
