# SPDX-License-Identifier: BSD-3-Clause
"""The key of a plan on disk: everything the plan depends on besides sizes and strides, which its guards check.

The key describes the device by its generator and machine, and by a group's limits if these are lower than kernels use.
The chip, its driver and the number of processors do not affect generated kernels, so a plan serves all devices of a
kind. Only plans with a schedule also depend on the memory of a multiprocessor and on the device's tuned schedules: they
have a separate key. Each device's driver builds the programs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torch_outboard.codegen.dialects.group_limits import GroupLimits
from torch_outboard.compile.generators import generators
from torch_outboard.compile.own_code import own_code
from torch_outboard.device.devices import get_device_properties
from torch_outboard.kernels.operators import overload_of
from torch_outboard.kernels.switches import rounded

__all__ = [
    "Sizes",
    "call_key",
    "code_hash",
    "has_code_changed",
    "key_of",
    "kind_of",
    "kind_with_memory",
    "scheduled_key",
    "serves",
    "settings",
    "sizes_of",
]

_MEMORY = "local memory"

# The sizes and the strides of each tensor.
Sizes = list[list[list[int]]]


class _NoKey(Exception):
    """An argument has no complete description as text."""


def key_of(
    name: str,
    arguments: Sequence[Any],
    by_value: Sequence[int],
    is_aliased: bool,
    device: int,
    form: str = "steps",
    symbols: Sequence[int] = (),
) -> str | None:
    """Return the class of a call as JSON, or None for a call whose plan is not stored.

    Numbers that plans read at each call, or guard, are described by their type, and lists of such numbers by their
    length. Tensors are described by type and rank, and by whether they are on the CPU or are conjugated views. `form`
    is the kind of plan: "steps", or "chunks" for a launch over chunks.
    """
    schema = overload_of(name)._schema.arguments
    try:
        described = [
            _describe(
                value,
                is_read=place in by_value or place in symbols or str(declared.type) in ("Tensor", "Optional[Tensor]"),
            )
            for place, (value, declared) in enumerate(zip(arguments, schema, strict=True))
        ]
    except _NoKey:
        return None
    return json.dumps(
        {
            "operator": name,
            "form": form,
            "arguments": described,
            "by_value": sorted(by_value),
            "guarded": sorted(symbols),
            "is_aliased": is_aliased,
            "default_dtype": str(torch.get_default_dtype()),
            "is_deterministic": torch.are_deterministic_algorithms_enabled(),
            "kind": kind_of(device),
            **({"rounded": rounded()} if "rounds" in kind_of(device) else {}),
            "settings": settings(),
        }
    )


def scheduled_key(key: str, device: int, digest: str) -> str:
    """Return the class of a call whose plan has a schedule: `key`, and the device's memory and table of schedules.

    `digest` is the table's digest, or "". If schedules do not depend on the memory and there is no table, return `key`
    itself.
    """
    more = {**_memory_of(device), **({"schedules": digest} if digest else {})}
    return json.dumps({**json.loads(key), **more}) if more else key


def call_key(key: str, arguments: Sequence[Any]) -> str:
    """Return the key of a single call's refusal: the call's class, sizes, strides and numbers."""
    numbers = [None if isinstance(argument, torch.Tensor) else _describe(argument) for argument in arguments]
    return json.dumps({**json.loads(key), "call": [sizes_of(arguments), numbers]})


def sizes_of(arguments: Sequence[Any]) -> Sizes:
    """Return the sizes and strides of all tensors in order, which the class leaves out."""
    sizes: Sizes = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            sizes.append([list(argument.shape), list(argument.stride())])
        elif isinstance(argument, (list, tuple)):
            sizes += sizes_of(argument)
    return sizes


@functools.cache
def code_hash() -> str:
    """Return a hash of this package's code that affects generated kernels."""
    return own_code(Path(__file__).parents[1])


def has_code_changed() -> bool:
    """Return True if the code on disk is not the code that `code_hash` has read."""
    return code_hash.__wrapped__() != code_hash()


def _describe(value: Any, *, is_read: bool = False) -> Any:
    match value:
        case torch.Tensor():
            conjugated = ["conjugated"] if value.is_conj() else []
            return ["tensor", str(value.dtype), value.dim(), _place(value.device), *conjugated]
        case bool() | int() | float() | complex() if is_read:
            return ["read", type(value).__name__]
        case None | bool() | int() | str():
            return value
        case float():
            return ["float", value.hex()]
        case complex():
            return ["complex", value.real.hex(), value.imag.hex()]
        case list() | tuple():
            return ["list", [_describe(item, is_read=is_read) for item in value]]
        case torch.dtype() | torch.layout() | torch.memory_format():
            return [type(value).__name__, str(value)]
        case torch.device():
            return ["device", _place(value)]
        case torch.Generator():
            return ["generator"]
    raise _NoKey


def _place(device: torch.device) -> str:
    """Return the device's type, or "own" for the driver's device.

    Drivers with the same generator share plans, whatever their devices are called.
    """
    return "own" if device.type == torch._C._get_privateuse1_backend_name() else device.type


@functools.cache
def kind_of(device: int) -> dict[str, str]:
    """Return the part of keys that describes a device: its generator, with settings and code, and the machine."""
    generator = type(generators().eager())(generators().driver)
    generated = hashlib.sha256(json.dumps(sorted(generator.cache_key().items())).encode())
    for path in _files_of(type(generator)):
        generated.update(path.read_bytes())
    dialect = generator.dialect  # type: ignore[attr-defined]
    rounds = any(unit.is_rounded for unit in dialect.units)
    properties = get_device_properties(device)
    limits = GroupLimits.of(dialect, properties)
    return {
        **({} if limits.is_largest else {"group": f"{limits.items} items, {limits.memory} bytes"}),
        **({"rounds": "by torch's switches"} if rounds else {}),
        "generator": f"{type(generator).__module__}.{type(generator).__qualname__}",
        "generated_by": generated.hexdigest(),
        "machine": properties.machine,
    }


@functools.cache
def _memory_of(device: int) -> dict[str, str]:
    """Return a multiprocessor's memory if schedules depend on it: only with matrix units and dynamic memory."""
    dialect = type(generators().eager())(generators().driver).dialect  # type: ignore[attr-defined]
    memory = get_device_properties(device).shared_memory_per_multiprocessor if dialect.units and dialect.dynamic else 0
    return {_MEMORY: str(memory)} if memory else {}


def kind_with_memory(device: int) -> dict[str, str]:
    """Return the part of keys that describes a device for all plans, including plans with schedules."""
    return {**kind_of(device), **_memory_of(device)}


def serves(key: Mapping[str, Any], kind: Mapping[str, str]) -> bool:
    """Return True if a plan with this key is valid for a kind of device, which `kind_with_memory` returned."""
    general = {name: value for name, value in kind.items() if name != _MEMORY}
    return bool(key["kind"] == general and key.get(_MEMORY) in (None, kind.get(_MEMORY)))


def _files_of(generator: type) -> Iterator[Path]:
    """Yield the modules of a vendor's generator; a store's version covers this package's modules."""
    own = Path(__file__).parents[2]
    for kind in generator.__mro__:
        path = Path(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")
        if path.is_file() and own not in path.parents:
            yield path


def settings() -> list[str]:
    """Return the user's settings of Inductor: environment variables, and values set in the program."""
    switches = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("TORCHINDUCTOR_") and name != "TORCHINDUCTOR_CACHE_DIR"
    ]
    config: Any = sys.modules.get("torch._inductor.config")
    if config is not None:
        entries = config._config
        for name, value in config.get_config_copy().items():
            entry = entries[name]
            if entry.alias is None and value not in (entry.default, entry.env_value_default, entry.env_value_force):
                switches.append(f"{name} = {value!r}")
    return sorted(switches)
