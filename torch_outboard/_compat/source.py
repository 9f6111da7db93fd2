# SPDX-License-Identifier: BSD-3-Clause
"""A check whether a torch function uses a name, which decides whether a patch is needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

__all__ = ["mentions"]


def mentions(function: Callable[..., Any], word: str) -> bool:
    """Return True if a function, without its wrappers, uses `word` as a name or a constant.

    The check reads the function's code object, because frozen programs and bytecode-only installations have no source
    files.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and word in _words(code)


def _words(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _words(constant)
        elif isinstance(constant, tuple | frozenset):
            yield from (item for item in constant if isinstance(item, str))
        elif isinstance(constant, str):
            yield constant
