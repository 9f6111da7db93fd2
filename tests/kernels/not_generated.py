# SPDX-License-Identifier: BSD-3-Clause
"""Entries of torch's operator database, in float32, that need an operator without a generated kernel."""

from __future__ import annotations

import torch

__all__ = ["NOT_GENERATED"]

_FACTORS = """
linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve
"""

_COMPLEX = "chalf linalg.eig linalg.eigvals"

_VALUES_TELL_SIZES = "to_sparse"

_NOT_YET = """
_segment_reduce.lengths _segment_reduce.offsets hash_tensor histogram histogramdd
"""

# What later versions of torch decompose.
_SINCE_2_13 = "" if torch.__version__ >= (2, 13) else "nn.functional.adaptive_max_pool3d"

NOT_GENERATED = {
    name: reason
    for names, reason in (
        (_FACTORS, "factors of matrices, which Inductor leaves to libraries"),
        (_COMPLEX, "eigenvalues, and complex halves"),
        (_VALUES_TELL_SIZES, "values tell the size of the result"),
        (_SINCE_2_13, "this version of torch doesn't say what it is made of"),
        (_NOT_YET, "nobody wrote what it is made of"),
    )
    for name in names.split()
}
