# SPDX-License-Identifier: BSD-3-Clause
"""The classes of recorded calls: further calls of a class add little to a pack."""

from __future__ import annotations

import json
from typing import Any

from torch_outboard.kernels.book.table import by_value, guarded
from torch_outboard.kernels.disk.recorded import TENSOR
from torch_outboard.kernels.operators import overload_of

__all__ = ["class_of"]


def class_of(line: str) -> str:
    """Return what a call's plans depend on besides sizes and strides, as text: `key_of` for a line, without a device.

    Further calls of a class add plans only for sizes that the guards of its first plan exclude.
    """
    name, default, values = json.loads(line)
    read = {*by_value(name), *guarded(name)}
    arguments = [
        _classified(value, place in read or str(declared.type) in ("Tensor", "Optional[Tensor]"))
        for place, (value, declared) in enumerate(zip(values, overload_of(name)._schema.arguments, strict=True))
    ]
    return json.dumps([name, default, arguments])


def _classified(value: Any, is_read: bool) -> Any:
    match value:
        case {"tensor": str(text)} if (found := TENSOR.fullmatch(text)) is not None:
            return ["tensor", found[1], len(found[2].split()), found[3]]
        case bool() | int() | float() if is_read:
            return ["read", type(value).__name__]
        case list():
            return [_classified(item, is_read) for item in value]
    return value
