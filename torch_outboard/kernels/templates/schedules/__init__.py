# SPDX-License-Identifier: BSD-3-Clause
"""The schedules of products and attention, which this module registers."""

from __future__ import annotations

from torch_outboard.codegen.dialects.group_limits import GroupLimits
from torch_outboard.codegen.dialects.units import unit_of
from torch_outboard.kernels.templates.schedules import (
    attention_matrix,
    attention_strips,
    attention_tiles,
    matrix,
    strips,
    tiles,
)
from torch_outboard.kernels.templates.schedules.registry import ATTENTION, PRODUCTS, Device

__all__: list[str] = []


def _has_groups(device: Device) -> bool:
    return device.dialect.has_groups


def _has_unit(device: Device) -> bool:
    """Return True if the device has a matrix unit for the type, and groups as large as tilings need."""
    has_items = device.limits.items == GroupLimits().items
    return device.dialect.has_groups and has_items and unit_of(device.dialect.units, device.dtype) is not None


def _has_unit_of_lanes(device: Device) -> bool:
    """Return True if it is known which elements each lane of the device's matrix unit holds.

    Attention rescales its sums in every turn. If lanes hold the sums jointly, they pass through the group's memory each
    time. Plain tiles are then faster: 1.4 ms instead of 4.1 ms on a large GPU.
    """
    unit = unit_of(device.dialect.units, device.dtype)
    return _has_unit(device) and unit is not None and unit.sums is None


def _has_vectors(device: Device) -> bool:
    """Return True for CPUs with vectors, and for other devices whose dialect has vectors but no groups."""
    return bool(device.dialect.vectors) and (device.is_cpu or not device.dialect.has_groups)


# If several ways serve a device, the one registered last is used.
PRODUCTS.register("tiles", tiles, _has_groups)
PRODUCTS.register("strips", strips, _has_vectors)
PRODUCTS.register("matrix", matrix, _has_unit)
ATTENTION.register("tiles", attention_tiles, _has_groups)
ATTENTION.register("strips", attention_strips, _has_vectors)
ATTENTION.register("matrix", attention_matrix, _has_unit_of_lanes)
