# SPDX-License-Identifier: BSD-3-Clause
"""Lists, as text, of calls that programs have made. Packs are built from these lists and from kernels/disk/calls.py.

A line describes a call for which a plan was built: the operator, the default dtype, and the arguments. A tensor is
described by its dtype, sizes and strides; plans do not need its values. Calls over lists of tensors are left out,
because one such call represents all. Calls whose arguments share memory with a written argument are left out too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from torch_outboard.kernels.disk.calls import PackCall, Samples
from torch_outboard.kernels.operators import overload_of

__all__ = ["TENSOR", "describe_call", "read_calls", "write_calls"]

# The text of a tensor: its dtype, its sizes and strides, and whether it is on the CPU.
TENSOR = re.compile(r"(\w+)((?: \d+:\d+)*)( on the CPU)?")


def describe_call(name: str, arguments: Sequence[Any]) -> str | None:
    """Return a call as a line, or None if an argument, such as a generator, cannot be written as text."""
    try:
        default = str(torch.get_default_dtype()).removeprefix("torch.")
        return json.dumps([name, default, [_to_json(argument) for argument in arguments]])
    except TypeError:
        return None


def _to_json(value: Any) -> Any:
    match value:
        case torch.Tensor() if not value.is_conj():
            dims = "".join(f" {size}:{stride}" for size, stride in zip(value.shape, value.stride(), strict=True))
            return {"tensor": f"{_short(value.dtype)}{dims}{' on the CPU' if value.device.type == 'cpu' else ''}"}
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_to_json(item) for item in value]
        case torch.dtype() | torch.layout() | torch.memory_format():
            return {"of torch": _short(value)}
        case torch.device():
            return {"device": "cpu" if value.type == "cpu" else "own"}
    raise TypeError(type(value).__name__)


def _short(value: object) -> str:
    return str(value).removeprefix("torch.")


def _from_json(value: Any, device: torch.device) -> Any:
    match value:
        case {"tensor": str(text)} if (match := TENSOR.fullmatch(text)) is not None:
            dims = [tuple(map(int, dim.split(":"))) for dim in match[2].split()]
            where = torch.device("cpu") if match[3] else device
            sizes, strides = [dim[0] for dim in dims], [dim[1] for dim in dims]
            tensor = torch.empty_strided(sizes, strides, dtype=getattr(torch, match[1]), device=where)
            return tensor.zero_() if match[3] else tensor
        case {"of torch": str(name)}:
            return getattr(torch, name)
        case {"device": str(name)}:
            return torch.device("cpu") if name == "cpu" else device
        case list():
            return [_from_json(item, device) for item in value]
        case dict():
            raise ValueError(f"{value} is not a recorded argument")
    return value


def _run(name: str, default: str, arguments: Sequence[Any], samples: Samples) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, default))
    try:
        operator = overload_of(name)
        pairs = zip(
            operator._schema.arguments, (_from_json(argument, samples.device) for argument in arguments), strict=True
        )
        bound = [(declared, value) for declared, value in pairs]
        with torch.no_grad():
            operator(
                *(value for declared, value in bound if not declared.kwarg_only),
                **{declared.name: value for declared, value in bound if declared.kwarg_only},
            )
    finally:
        torch.set_default_dtype(before)


def write_calls(path: Path, programs: Iterable[str], lines: Iterable[str]) -> None:
    """Write a list: first a line with the names of the programs, then each call once, in order."""
    path.write_text("\n".join([json.dumps({"programs": list(programs)}), *sorted(set(lines))]) + "\n")


def read_calls(path: Path, only: str) -> list[tuple[str, PackCall, torch.dtype]]:
    """Return the calls of a list whose labels match the pattern, as `chosen_calls` does.

    Raises ValueError if the file is not a list of recorded calls.
    """
    calls = []
    first, *lines = path.read_text().splitlines() or [""]
    if not first.startswith('{"programs": '):
        raise ValueError(f"{path} is not a list of recorded calls: its first line must name the programs")
    for number, line in enumerate(lines, 2):
        match json.loads(line):
            case [str(name), str(default), list(arguments)]:
                if re.search(only, label := f"{name}, line {number}"):
                    calls.append((label, PackCall(_runner(name, default, arguments), ()), torch.float32))
            case _:
                raise ValueError(f"{path}, line {number} is not a recorded call")
    return calls


def _runner(name: str, default: str, arguments: Sequence[Any]) -> Callable[[Samples], object]:
    return lambda samples: _run(name, default, arguments, samples)
