# SPDX-License-Identifier: BSD-3-Clause
"""The parameters of the templates' schedules: what `outboard kernels tune` chooses from.

No value but the first of a parameter is taken unless it was measured on the device. Of values for groups of items none
needs more of the group's memory than the first, so that what is chosen at one size holds at all.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DTYPES", "PARAMETERS", "SCHEDULE", "Schedule", "default_of", "family_of", "is_schedule", "tuned_name"]

# Begins the line by which a kernel's text says what schedule it has.
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
_ATTENTION_STRIPS = {
    "width": (64, 32, 128),  # lanes of an item, or half as many where heads are large
    "block": (96, 48, 192),  # rows at a time; multiples of a strip's
}
_ATTENTION_TILES = {
    "steps": (16, 8),  # that a group brings at a time
}

# By a family of operators and the way in which they are computed; the first value of each is what is taken untuned.
PARAMETERS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    f"{family}.{way}": parameters
    for families, way, parameters in (
        (("product", "convolution", "convolution_gradients"), "strips", _STRIPS),
        (("product", "convolution", "convolution_gradients"), "tiles", _TILES),
        (("attention", "attention_gradients"), "strips", _ATTENTION_STRIPS),
        (("attention", "attention_gradients"), "tiles", _ATTENTION_TILES),
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
    """Gives the family of an operator, which is called as its schema calls it: "aten::mm"."""
    return _FAMILIES.get(operator.removeprefix("aten::"), "product")


def tuned_name(family: str, way: str, dtype: object) -> str:
    """Gives the name of a schedule: "product.tiles float32"."""
    return f"{family}.{way} {str(dtype).removeprefix('torch.')}"


def default_of(name: str) -> dict[str, int]:
    """Gives the schedule that is taken untuned."""
    return {parameter: values[0] for parameter, values in PARAMETERS[name.partition(" ")[0]].items()}


def is_schedule(name: str, given: object) -> bool:
    """Says whether a text's schedule is one of those that there are to choose from."""
    parameters = PARAMETERS.get(name.partition(" ")[0])
    return (
        parameters is not None
        and isinstance(given, dict)
        and given.keys() == parameters.keys()
        and all(type(given[one]) is int and given[one] in values for one, values in parameters.items())
    )
