# SPDX-License-Identifier: BSD-3-Clause
"""The end of kernels with matrix units: a lane's sums are stored as results."""

from __future__ import annotations

import re

import torch

from torch_outboard.codegen.dialects.dialect import HALVES, STORAGE_TYPES, SUFFIXES
from torch_outboard.codegen.dialects.units import MatrixUnit
from torch_outboard.kernels.templates.product import End
from torch_outboard.kernels.templates.schedules.matrix_sides import wide

__all__ = ["stores"]


def stores(end: End, unit: MatrixUnit, names: tuple[str, str], across: int) -> dict[str, str]:
    """Return the words of the loops that store a lane's results: two at once, if the results have them adjacent.

    `names` are the names of rows and columns, `across` is the number of matrices in a row. The loops are the word
    `STORE`, and their words are those of a tiling.
    """
    fragment, size = unit.result, end.dtype.itemsize
    is_of_row = re.search(rf"\b{names[1]}\b", end.condition) is None
    if not (is_of_row and fragment.has_pairs and end.dense == names[1] and end.dtype in (*HALVES, torch.float32)):
        return {"STORE": _STORE, "END": end.store, "ENDS_ACROSS": str(across)}
    kind, suffix = STORAGE_TYPES[end.dtype], SUFFIXES[end.dtype]
    ended = "ended" if size == 4 else f"ob_to_{suffix}(ended)"
    pair = ("ob_u64", "(ob_u64)OB_AS_U32(pair[0]) | (ob_u64)OB_AS_U32(pair[1]) << 32")
    if size == 2:
        pair = ("ob_u32", "(ob_u32)pair[0] | (ob_u32)pair[1] << 16")
    return {
        "STORE": _STORE_PAIRS,
        "ENDS_ACROSS": str(across),
        "IS_WIDE": wide(end.pointer, end.multiples, 2, 2 * size),
        "CONDITION": f" && {end.condition}" if end.condition else "",
        "KIND": kind,
        "VALUE": end.value,
        "PLACE": end.place,
        "ENDED": ended,
        "WORD": pair[0],
        "PAIR": pair[1],
    }


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
    for (int j = 0; j < $ENDS_ACROSS; ++j) {
      $UNROLL
      for (int index = 0; index < $RESULTS; index += 2) {
        const ob_i64 $ROW = first_row + part_row + i * $UNIT_ROWS + ($RESULT_ROW);
        const ob_i64 first = first_column + part_column + j * $UNIT_COLUMNS + ($RESULT_COLUMN);
        if ($ROW < $ROWS && first < $COLUMNS$CONDITION) {
          $KIND pair[2];
          $UNROLL
          for (int one = 0; one < 2; ++one) {
            const ob_i64 $COLUMN = first + one < $COLUMNS ? first + one : first;
            const float value = sums[(i * $ENDS_ACROSS + j) * $RESULTS + index + one];
            const float ended = $VALUE;
            pair[one] = $ENDED;
          }
          if (is_wide && first + 1 < $COLUMNS) {
            const ob_i64 $COLUMN = first;
            *(OB_GLOBAL $WORD*)&$PLACE = $PAIR;
          } else {
            $UNROLL
            for (int one = 0; one < 2; ++one) {
              const ob_i64 $COLUMN = first + one;
              if ($COLUMN < $COLUMNS) $PLACE = pair[one];
            }
          }
        }
      }
    }
  }
"""
