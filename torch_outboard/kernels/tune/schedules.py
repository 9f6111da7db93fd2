# SPDX-License-Identifier: BSD-3-Clause
"""The parameters of the templates' schedules: the values that `outboard kernels tune` chooses from.

Values other than a parameter's first are used only if they were measured on the device. No value needs more of a
group's memory than the first value, so a choice at one size is valid at all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DTYPES", "PARAMETERS", "SCHEDULE", "Schedule", "default_of", "family_of", "is_schedule", "tuned_name"]

# Begins the line in a kernel's text that names its schedule.
SCHEDULE = "// schedule "

# Element types whose schedules are tuned.
DTYPES = ("float32", "bfloat16", "float16")

# Parameter values by name.
Schedule = Mapping[str, int]

_STRIPS = {
    "block": (96, 48, 192),  # rows per item, a multiple of the rows of a strip
    "panels": (4, 2, 8),  # panels of columns per item
    "steps": (256, 128, 512),  # steps that an item packs at a time
}
_TILES = {
    "many": (256, 64, 1024),  # number of large tiles that suffices
    "steps": (16, 8),  # steps that a group loads at a time
}
_MATRIX = {
    "many": (128, 64, 512),  # number of tiles that suffices
    "steps": (32, 16),  # two-byte steps that a group loads at a time
}
_ATTENTION_STRIPS = {
    "width": (64, 32, 128),  # lanes per item, half as many for large heads
    "block": (96, 48, 192),  # rows at a time, a multiple of the rows of a strip
}
_ATTENTION_TILES = {
    "steps": (16, 8),  # steps that a group loads at a time
}

_ATTENTION_MATRIX = {
    "keys": (64, 32),  # keys per tile
}

# Operator family and way of computing it -> parameters. The first value of each parameter is the
# untuned one.
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
    """Return the family of an operator with a schema name such as "aten::mm"."""
    return _FAMILIES.get(operator.removeprefix("aten::"), "product")


def tuned_name(family: str, way: str, dtype: object) -> str:
    """Return the name of a schedule, such as "product.tiles float32"."""
    return f"{family}.{way} {str(dtype).removeprefix('torch.')}"


def default_of(name: str) -> dict[str, int]:
    """Return the untuned schedule."""
    return {parameter: values[0] for parameter, values in PARAMETERS[name.partition(" ")[0]].items()}


def is_schedule(name: str, value: object) -> bool:
    """Return True if a parsed schedule has the right parameters, each with one of its values."""
    parameters = PARAMETERS.get(name.partition(" ")[0])
    return (
        parameters is not None
        and isinstance(value, dict)
        and value.keys() == parameters.keys()
        and all(
            type(value[parameter]) is int and value[parameter] in values for parameter, values in parameters.items()
        )
    )
