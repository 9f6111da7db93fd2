# SPDX-License-Identifier: BSD-3-Clause
"""The parameters of the templates' schedules: the values that `outboard kernels tune` chooses from.

A value other than a parameter's first is used only if it was measured on the device. For groups of items, no value
needs more of the group's memory than the first. A choice at one size is therefore valid at all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DTYPES", "PARAMETERS", "SCHEDULE", "Schedule", "default_of", "family_of", "is_schedule", "tuned_name"]

# Begins the line of a kernel's text that names its schedule.
SCHEDULE = "// schedule "

# Types of elements whose schedules are tuned.
DTYPES = ("float32", "bfloat16", "float16")

# A schedule's parameters by their names.
Schedule = Mapping[str, int]

_STRIPS = {
    "block": (96, 48, 192),  # rows of an item; multiples of a strip's
    "panels": (4, 2, 8),  # of columns of an item
    "steps": (256, 128, 512),  # that an item packs at a time
}
_TILES = {
    "many": (256, 64, 1024),  # large tiles that are enough
    "steps": (16, 8),  # that a group brings at a time
}
_MATRIX = {
    "many": (128, 64, 512),  # tiles that are enough
    "steps": (32, 16),  # of two bytes that a group brings at a time
}
_ATTENTION_STRIPS = {
    "width": (64, 32, 128),  # lanes of an item, or half as many where heads are large
    "block": (96, 48, 192),  # rows at a time; multiples of a strip's
}
_ATTENTION_TILES = {
    "steps": (16, 8),  # that a group brings at a time
}

_ATTENTION_MATRIX = {
    "keys": (64, 32),  # of a tile
}

# Family of operators and way of computing them -> parameters. The first
# value of each is the untuned one.
PARAMETERS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    f"{family}.{way}": parameters
    for families, way, parameters in (
        (("product", "convolution", "convolution_gradients"), "strips", _STRIPS),
        (("product", "convolution", "convolution_gradients"), "tiles", _TILES),
        (("product", "convolution", "convolution_gradients"), "matrix", _MATRIX),
        (("attention", "attention_gradients"), "strips", _ATTENTION_STRIPS),
        (("attention", "attention_gradients"), "tiles", _ATTENTION_TILES),
        (("attention", "attention_gradients"), "matrix", _ATTENTION_MATRIX),
    )
    for family in families
}

_FAMILIES = {
    "convolution": "convolution",
    "convolution_backward": "convolution_gradients",
    "_scaled_dot_product_fused_attention_overrideable": "attention",
    "_scaled_dot_product_fused_attention_overrideable_backward": "attention_gradients",
}


def family_of(operator: str) -> str:
    """Return the family of an operator, which is named as in its schema: "aten::mm"."""
    return _FAMILIES.get(operator.removeprefix("aten::"), "product")


def tuned_name(family: str, way: str, dtype: object) -> str:
    """Return the name of a schedule: "product.tiles float32"."""
    return f"{family}.{way} {str(dtype).removeprefix('torch.')}"


def default_of(name: str) -> dict[str, int]:
    """Return the untuned schedule."""
    return {parameter: values[0] for parameter, values in PARAMETERS[name.partition(" ")[0]].items()}


def is_schedule(name: str, given: object) -> bool:
    """Return True if a parsed schedule has the right parameters, each with a value to choose from."""
    parameters = PARAMETERS.get(name.partition(" ")[0])
    return (
        parameters is not None
        and isinstance(given, dict)
        and given.keys() == parameters.keys()
        and all(type(given[one]) is int and given[one] in values for one, values in parameters.items())
    )
