# SPDX-License-Identifier: BSD-3-Clause
"""Calls of generated C++."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch._dynamo.graph_bytecode_inputs import get_external_object_by_index

from torch_outboard import _C

__all__ = ["in_cpp"]


def in_cpp(function: Callable[[Any], Any], streams: Sequence[int] = ()) -> Callable[[Any], Any]:
    """Wrap a one-argument function of generated C++ so that this package's errors keep their types.

    `streams` are the streams that the generated code changes to, as numbers in Dynamo's table of objects per call.
    """
    if not streams:
        return functools.partial(_C.call_compiled, function, ())

    def call(argument: Any) -> Any:
        external = [get_external_object_by_index(number) for number in streams]
        ids = tuple(part for stream in external for part in (stream.device_index, stream.stream_id))
        return _C.call_compiled(function, ids, argument)

    return call
