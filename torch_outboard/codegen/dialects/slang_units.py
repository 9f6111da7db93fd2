# SPDX-License-Identifier: BSD-3-Clause
"""The matrix units of devices whose drivers compile Slang: cooperative matrices, which a subgroup holds jointly.

The device's property `matrix_units` lists their sizes and types. Only the device's compiler knows which lane holds
which element, so matrices are loaded from the group's memory, and sums are stored through it.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from torch_outboard.codegen.dialects.slang import Slang
from torch_outboard.codegen.dialects.units import Load, MatrixUnit, Sums, distributed_sums, joint

__all__ = ["units_of", "with_units"]

_TYPES = {"float16": (torch.float16, "half"), "bfloat16": (torch.bfloat16, "BFloat16")}
_LANES = re.compile(r"([1-9]\d*) lanes")
_LISTED = re.compile(r"(\w+) (\d+)x(\d+)x(\d+)")
# Tiles have multiples of 64 rows and columns, and load multiples of 32 steps.
_MAX_ROWS_AND_COLUMNS = 64
_MAX_STEPS = 32
# Sums per lane. The sums of a group pass through its memory, which also holds the tiles.
_MAX_SUMS_PER_LANE = 8

# Number items by subgroup, whatever the device's own order of items.
_HEADER = """\
typedef linalg.CoopMat<$KIND, MemoryScope.Subgroup, $M, $K, linalg.CoopMatMatrixUse.MatrixA> ob_left_matrix;
typedef linalg.CoopMat<$KIND, MemoryScope.Subgroup, $K, $N, linalg.CoopMatMatrixUse.MatrixB> ob_right_matrix;
typedef linalg.CoopMat<float, MemoryScope.Subgroup, $M, $N, linalg.CoopMatMatrixUse.MatrixAccumulator> ob_sum_matrix;
ob_i32 ob_item_of_subgroups() {
  let number = spirv_asm { OpCapability GroupNonUniform; result:$$uint = OpLoad builtin(SubgroupId:uint) };
  let lane = spirv_asm { result:$$uint = OpLoad builtin(SubgroupLocalInvocationId:uint) };
  return (ob_i32)(number * $LANES + lane);
}
#undef OB_ITEM_OF_GROUP
#define OB_ITEM_OF_GROUP ob_item_of_subgroups()
float ob_of_lane(float value, ob_u32 bit) { return WaveReadLaneAt(value, WaveGetLaneIndex() ^ bit); }
void ob_meet_lanes() { spirv_asm { OpControlBarrier Subgroup Subgroup AcquireRelease|WorkgroupMemory }; }
"""
_LOAD = "$INTO = {kind}.Load<linalg.CoopMatMatrixLayout.{layout}>($ARRAY, (ob_u32)($AT), $APART);"


def _loads(kind: str, layouts: tuple[str, str]) -> tuple[Load, Load]:
    along, across = (Load(_LOAD.format(kind=kind, layout=layout), line="0", step="0") for layout in layouts)
    return along, across


def _is_usable(m: int, n: int, k: int, lanes: int) -> bool:
    """Return whether matrices of these sizes fit the tiles and the lanes of a subgroup."""
    divides = (
        min(m, n, k) >= 8
        and _MAX_ROWS_AND_COLUMNS % m == _MAX_ROWS_AND_COLUMNS % n == _MAX_STEPS % k == 0
        and m * n <= _MAX_SUMS_PER_LANE * lanes
    )
    return divides and lanes % (n // 2) == 0 and m % (lanes // (n // 2)) == 0


def units_of(listing: str) -> tuple[MatrixUnit, ...]:
    """Return a device's units: for each element type, the first listed unit that fits the tiles.

    `listing` has the size of a subgroup, and then the property `matrix_units`: "32 lanes, float16 16x16x16". Raises
    ValueError for anything else.
    """
    first, *listed = listing.split(", ")
    count = _LANES.fullmatch(first)
    if count is None:
        raise ValueError(f"matrix units begin with {first!r}, not with a number of lanes such as '32 lanes'")
    lanes = int(count[1])
    units: dict[torch.dtype, MatrixUnit] = {}
    for shape in listed:
        match = _LISTED.fullmatch(shape)
        if match is None:
            raise ValueError(f"matrix units have {shape!r} where a type and sizes such as 'float16 16x16x16' belong")
        m, n, k = (int(size) for size in match.groups()[1:])
        dtype, kind = _TYPES.get(match[1], (None, ""))
        if dtype is None or dtype in units or not _is_usable(m, n, k, lanes):
            continue
        header = _HEADER
        for word, text in (("KIND", kind), ("M", m), ("N", n), ("K", k), ("LANES", lanes)):
            header = re.sub(rf"(?<!\$)\${word}\b", str(text), header)
        units[dtype] = MatrixUnit(
            name=f"cooperative_{m}_{n}_{k}_{match[1]}",
            m=m,
            n=n,
            k=k,
            dtype=dtype,
            lanes=lanes,
            left=joint("ob_left_matrix"),
            right=joint("ob_right_matrix"),
            result=distributed_sums(m, n, lanes),
            multiply="$SUMS = linalg.coopMatMulAdd<float, false>($LEFT, $RIGHT, $SUMS);",
            header=header,
            load_left=_loads("ob_left_matrix", ("RowMajor", "ColumnMajor")),
            load_right=_loads("ob_right_matrix", ("ColumnMajor", "RowMajor")),
            exchange="ob_of_lane($VALUE, $BIT)",
            sums=Sums(
                "ob_sum_matrix",
                "ob_sum_matrix(0.0f)",
                "$SUMS.Store<linalg.CoopMatMatrixLayout.RowMajor>($ARRAY, (ob_u32)($AT), {n});".replace("{n}", str(n)),
                "ob_meet_lanes();",
            ),
        )
    return tuple(units.values())


def with_units(dialect: Slang, text: str) -> Slang:
    """Return the dialect with a device's units, or the same dialect if no unit fits the tiles."""
    units = units_of(text)
    return replace(dialect, name=f"{dialect.name}_units", units=units) if units else dialect
