# SPDX-License-Identifier: BSD-3-Clause
"""The epilogues of kernels with matrix units: storing a lane's sums as results."""

from __future__ import annotations

import re

import torch

from torch_outboard.codegen.dialects.dialect import HALVES, STORAGE_TYPES, SUFFIXES
from torch_outboard.codegen.dialects.units import MatrixUnit
from torch_outboard.kernels.templates.product import Epilogue, filled
from torch_outboard.kernels.templates.schedules.matrix_sides import wide

__all__ = ["stores"]


def stores(epilogue: Epilogue, unit: MatrixUnit, names: tuple[str, str], across: int) -> dict[str, str]:
    """Return the placeholder texts of the loops that store a lane's results, two at once if these are adjacent.

    For four matrices side by side, four lanes exchange halves, so that each lane stores eight adjacent results. `names`
    are the names of rows and columns; `across` is the number of matrices in a row. `STORE` has the loops, which contain
    the placeholders of a tiling.
    """
    fragment, size = unit.result, epilogue.dtype.itemsize
    is_of_row = re.search(rf"\b{names[1]}\b", epilogue.condition) is None
    if not (
        is_of_row and fragment.has_pairs and epilogue.dense == names[1] and epilogue.dtype in (*HALVES, torch.float32)
    ):
        return {"STORE": _STORE, "END": epilogue.store, "ENDS_ACROSS": str(across)}
    kind, suffix = STORAGE_TYPES[epilogue.dtype], SUFFIXES[epilogue.dtype]
    ended = "ended" if size == 4 else f"ob_to_{suffix}(ended)"
    low, high = "pairs[next * 2]", "pairs[next * 2 + 1]"
    pair = ("ob_u64", f"(ob_u64)OB_AS_U32({low}) | (ob_u64)OB_AS_U32({high}) << 32")
    if size == 2:
        pair = ("ob_u32", f"(ob_u32){low} | (ob_u32){high} << 16")
    in_eights = size == 2 and across % 4 == 0 and _are_eights(unit)
    return {
        "STORE": _STORE_PAIRS,
        "ENDS_ACROSS": str(across),
        "ENDS": "4" if in_eights else "1",
        "IS_WIDE": wide(epilogue.pointer, epilogue.multiples, 2, 2 * size),
        "STORE_EIGHTS": _STORE_EIGHTS if in_eights else "",
        "IS_WIDEST": wide(epilogue.pointer, epilogue.multiples, 8, 16),
        "EXCHANGE": f"OB_AS_U32({filled(unit.exchange, {'VALUE': 'OB_AS_F32(sent)', 'BIT': 'bit'})})",
        "CONDITION": f" && {epilogue.condition}" if epilogue.condition else "",
        "KIND": kind,
        "VALUE": epilogue.value,
        "PLACE": epilogue.place,
        "ENDED": ended,
        "WORD": pair[0],
        "PAIR": pair[1],
    }


def _are_eights(unit: MatrixUnit) -> bool:
    """Return whether four adjacent lanes hold eight columns of a row, two each, and can exchange them."""
    places = [(lane, index) for lane in range(unit.lanes) for index in range(0, unit.result.elements, 2)]
    return (
        unit.exchange != ""
        and unit.n == 8
        and unit.result.lanes_of_row(unit.lanes) % 4 == 0
        and all(unit.result.place(lane, index)[1] == lane % 4 * 2 for lane, index in places)
    )


_STORE = """\
  $UNROLL
  for (int i = 0; i < $DOWN; ++i) {
    $UNROLL
    for (int j = 0; j < $ENDS_ACROSS; ++j) {
      $UNROLL
      for (int index = 0; index < $RESULTS; ++index) {
        const ob_i64 $ROW = first_row + part_row + i * $UNIT_ROWS + ($RESULT_ROW);
        const ob_i64 $COLUMN = first_column + part_column + j * $UNIT_COLUMNS + ($RESULT_COLUMN);
        if ($ROW < $ROWS && $COLUMN < $COLUMNS) {
          const float value = sums[(i * $ENDS_ACROSS + j) * $RESULTS + index];
          $END
        }
      }
    }
  }
"""

_STORE_PAIRS = """\
  const bool is_wide = $IS_WIDE;
  $UNROLL
  for (int i = 0; i < $DOWN; ++i) {
    $UNROLL
    for (int j = 0; j < $ENDS_ACROSS; j += $ENDS) {
      $UNROLL
      for (int index = 0; index < $RESULTS; index += 2) {
        const ob_i64 $ROW = first_row + part_row + i * $UNIT_ROWS + ($RESULT_ROW);
        const ob_i64 block = first_column + part_column + j * $UNIT_COLUMNS;
        const bool is_there = $ROW < $ROWS$CONDITION;
        $KIND pairs[$ENDS * 2];
        $UNROLL
        for (int next = 0; next < $ENDS; ++next) {
          const ob_i64 first = block + next * $UNIT_COLUMNS + ($RESULT_COLUMN);
          $UNROLL
          for (int in_pair = 0; in_pair < 2; ++in_pair) {
            pairs[next * 2 + in_pair] = 0;
            if (is_there && first < $COLUMNS) {
              const ob_i64 $COLUMN = first + in_pair < $COLUMNS ? first + in_pair : first;
              const float value = sums[(i * $ENDS_ACROSS + j + next) * $RESULTS + index + in_pair];
              const float ended = $VALUE;
              pairs[next * 2 + in_pair] = $ENDED;
            }
          }
        }
$STORE_EIGHTS
        $UNROLL
        for (int next = 0; next < $ENDS; ++next) {
          const ob_i64 first = block + next * $UNIT_COLUMNS + ($RESULT_COLUMN);
          if (is_there && is_wide && first + 1 < $COLUMNS) {
            const ob_i64 $COLUMN = first;
            *(OB_GLOBAL $WORD*)&$PLACE = $PAIR;
          } else if (is_there) {
            $UNROLL
            for (int in_pair = 0; in_pair < 2; ++in_pair) {
              const ob_i64 $COLUMN = first + in_pair;
              if ($COLUMN < $COLUMNS) $PLACE = pairs[next * 2 + in_pair];
            }
          }
        }
      }
    }
  }
"""

# Before the exchange, lane q of four has columns 2 * q and 2 * q + 1 of four matrices; afterwards
# it has all columns of the q-th matrix.
_STORE_EIGHTS = """\
        if ($IS_WIDEST && block + 4 * $UNIT_COLUMNS <= $COLUMNS) {
          ob_u32 words[4];
          $UNROLL
          for (int next = 0; next < 4; ++next) {
            words[next] = $PAIR;
          }
          $UNROLL
          for (int bit = 1; bit <= 2; bit *= 2) {
            const bool is_upper = (lane & bit) != 0;
            $UNROLL
            for (int next = 0; next < 4; ++next) {
              if ((next & bit) != 0) continue;
              const ob_u32 sent = is_upper ? words[next] : words[next | bit];
              const ob_u32 got = $EXCHANGE;
              words[next] = is_upper ? got : words[next];
              words[next | bit] = is_upper ? words[next | bit] : got;
            }
          }
          const ob_i64 $COLUMN = block + lane % 4 * $UNIT_COLUMNS;
          const uint4 eight = {words[0], words[1], words[2], words[3]};
          if (is_there) *(OB_GLOBAL uint4*)&$PLACE = eight;
          continue;
        }"""
