# SPDX-License-Identifier: BSD-3-Clause
"""Sample arguments for one call of an operator, made from its schema, for `outboard kernels explain`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_outboard.kernels.operators import overload_of

__all__ = ["NoSample", "SampleRequest", "sample_call", "shown"]

Shapes = Sequence[tuple[int, ...]]

# Tried in this order if no shape is given: one shape per tensor; further tensors get the last
# shape.
_SHAPES: tuple[Shapes, ...] = (
    *([(4, 4)], [(2, 3, 8, 8), (4, 3, 3, 3)], [(2, 4, 4)], [(4,)], [(2, 3, 8, 8)], [(2, 3, 8), (4, 3, 3)]),
    *([(4,), (4, 4), (4, 4)], [(4, 4), (4,)], [(4, 4), (2, 4, 4), (2, 4, 4)], [(2, 3, 4, 4, 4)], [()]),
)
_INDICES = {"index", "indices", "target", "sorter"}
_MASKS = {"mask", "condition"}
_NUMBERS: dict[str, Any] = {
    **{"stride": 1, "dilation": 1, "padding": 0, "output_padding": 0, "kernel_size": 2, "output_size": 2, "groups": 1},
    **{"dim": 0, "dim0": 0, "dim1": 1, "k": 1, "num_samples": 1, "end": 4, "steps": 4, "n": 4, "to": 8, "from": 0},
    **{"step": 1, "start": 0, "length": 1, "reduction": 1, "ignore_index": -100, "eps": 1e-5, "momentum": 0.1},
    **{"p": 0.5, "training": True, "train": True, "bins": 4, "num_weights": 8, "padding_idx": -1, "transposed": False},
    **{"group": 1, "HxW": 16, "C": 4, "N": 4, "max_norm": 1.0, "maxnorm": 1.0, "threshold": 0.5, "diagonal": 0},
}


class NoSample(ValueError):
    """The CPU's kernel refuses all arguments that were made for the operator."""


@dataclass(frozen=True)
class SampleRequest:
    """Requested properties of a call: dtype and shapes of tensors, a mask as index, and non-tensor arguments."""

    dtype: torch.dtype
    shapes: Shapes = ()
    has_mask: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)


def sample_call(name: str, request: SampleRequest, device: torch.device) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and named arguments on a device, for a call that the CPU's kernel accepts.

    Raises NoSample, with the CPU's first error, if the CPU accepts no arguments, or if an argument with a requested
    value is a tensor or does not exist.
    """
    _check_values(name, request.values)
    candidates = [request.shapes] if request.shapes else _SHAPES
    index, error = _run_in_fork(lambda: _first_accepted(name, request, candidates))
    if index < 0:
        how = "other shapes, or another type" if request.shapes else "--shape, for each of its tensors"
        raise NoSample(f"could not build a sample call of {name}: {error}. Pass {how}")
    positional, named = _arguments(name, request, candidates[index])
    return [_to_device(value, device) for value in positional], {
        key: _to_device(value, device) for key, value in named.items()
    }


def _check_values(name: str, values: Mapping[str, Any]) -> None:
    names = [declared.name for declared in overload_of(name)._schema.arguments if "Tensor" not in str(declared.type)]
    for key in values:
        if key not in names:
            hint = f"its arguments other than tensors are {', '.join(names)}" if names else "it takes only tensors"
            raise NoSample(f"{name} has no argument {key} to set: {hint}")


def _first_accepted(name: str, request: SampleRequest, candidates: Sequence[Shapes]) -> tuple[int, str]:
    """Return the index of the first shapes that the CPU's kernel accepts, or -1 and the kernel's first error."""
    torch.set_num_threads(1)
    errors: list[str] = []
    for place, shapes in enumerate(candidates):
        try:
            positional, named = _arguments(name, request, shapes)
            overload_of(name)(*positional, **named)
        except Exception as refusal:  # noqa: BLE001 - any error of the CPU's kernel
            first = str(refusal).strip().partition("\n")[0]
            errors.append(f"the CPU kernel raises {first!r}")
        else:
            return place, ""
    return -1, errors[0]


def _run_in_fork(run: Callable[[], tuple[int, str]]) -> tuple[int, str]:
    """Run a function in a forked process and return its result: unexpected arguments crash some kernels."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        with contextlib.suppress(BaseException), os.fdopen(writes, "w") as answer, open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)  # the device's call repeats the warnings
            json.dump(run(), answer)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    place, error = json.loads(text) if text else (-1, "the CPU kernel crashes on the sample arguments")
    return place, error


def shown(value: Any) -> str:
    """Return an argument as readable text, such as "float32[4, 4]"."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return str(value)


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, torch.device):
        return device
    if isinstance(value, list):
        return [_to_device(item, device) for item in value]
    return value


def _arguments(name: str, request: SampleRequest, shapes: Shapes) -> tuple[list[Any], dict[str, Any]]:
    sampler = _Sampler(name, request, shapes)
    positional, named = [], {}
    for argument in overload_of(name)._schema.arguments:
        if argument.kwarg_only:
            if argument.is_out or argument.name in request.values or not argument.has_default_value():
                named[argument.name] = sampler.argument(argument)
        else:
            positional.append(sampler.argument(argument))
    return positional, named


class _Sampler:
    """Makes arguments in schema order; each tensor takes the next shape."""

    def __init__(self, name: str, request: SampleRequest, shapes: Shapes) -> None:
        self.name, self.dtype, self.request = name, request.dtype, request
        self.shapes = list(shapes)
        self.first = self.shapes[0]

    def argument(self, declared: torch.Argument) -> Any:
        kind = str(declared.type)
        if declared.name in self.request.values:
            return self.request.values[declared.name]
        if declared.is_out:
            return torch.empty(0, dtype=self.dtype)
        if kind == "Tensor":
            return self._tensor(declared.name)
        if kind == "List[Tensor]":
            return [self._tensor(""), self._tensor("")]
        if kind == "List[Optional[Tensor]]":
            return [self._index()]
        if declared.has_default_value():
            return declared.default_value
        if kind.startswith("Optional"):
            return None
        return self._constant(kind, declared)

    def _constant(self, kind: str, declared: torch.Argument) -> Any:
        number = _NUMBERS.get(declared.name)
        if kind in ("List[int]", "List[float]", "List[bool]"):
            if declared.name in ("size", "input_size"):
                return list(self.first)
            if declared.name == "normalized_shape":
                return list(self.first[-1:])
            count = getattr(declared, "N", None) or max(len(self.first) - 2, 1)
            return [True if kind == "List[bool]" else 0 if number is None else number] * count
        match kind:
            case "int":
                return 1 if number is None else number
            case "bool":
                return bool(number)
            case "float":
                return 0.5 if number is None else number
            case "number":
                return number if number is not None else 0.5 if self.dtype.is_floating_point else 1
            case "str":
                return "add" if self.name.startswith("aten::scatter.") else "sum"
            case "Device":
                return torch.device("cpu")
        return self.dtype if declared.name == "dtype" else None

    def _tensor(self, name: str) -> torch.Tensor:
        shape = self.shapes[0] if len(self.shapes) == 1 else self.shapes.pop(0)
        if name in _INDICES:
            is_row = self.name.startswith("aten::index_") or name == "target"
            return torch.zeros(self.first[:1] if is_row else shape, dtype=torch.int64)
        if name in _MASKS:
            return torch.ones(shape, dtype=torch.bool)
        if name == "values" and self.request.has_mask and len(self.request.shapes) < 2:
            shape = ()
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.rand(shape).mul(0.5).add(0.25).to(self.dtype)
        return torch.ones(shape, dtype=self.dtype)

    def _index(self) -> torch.Tensor:
        if self.request.has_mask:
            return torch.ones(self.first, dtype=torch.bool)
        return torch.zeros(self.first[:1], dtype=torch.int64)
