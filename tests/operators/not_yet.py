# SPDX-License-Identifier: BSD-3-Clause
"""Entries of the operator database that should pass a check but do not, by check and reason; strict.

A name stands for all tested element types, name:type,type for some of them. `python -m tests.operators.report` reports
a repaired entry as "listed and passed".
"""

from __future__ import annotations

from .gaps import Gap


def _listed(*groups: tuple[str, str]) -> dict[str, list[Gap]]:
    gaps: dict[str, list[Gap]] = {}
    for reason, words in groups:
        for word in words.split():
            name, _, dtypes = word.partition(":")
            gap = Gap(reason, frozenset(dtypes.split(",")) if dtypes else None)
            gaps.setdefault(name, []).append(gap)
    return gaps


CSR = "sparse CSR tensors cannot be made on a device of this package; dense and sparse COO tensors can"
DECOMPOSED = "torch makes it of other operators for every device but the CPU, and those take more"
IDENTITY = "the CPU's kernel compares addresses of references; CUDA's resizes the tensor, as this device does"
PROMOTED = (
    "the CPU casts an operand to the common type first, and lays the result out as the copy; CUDA does as this device"
)
EXPANDED = "beside an expanded tensor, the CPU's gradient has the strides of another tensor than the meta kernel's"
UNDEFINED = "the CPU's kernel gives memory that it has not written: two calls differ"
KEPT = "the CPU keeps a dimension at first, and its warning of outputs that are resized names the shape with it"
WORDS = "the CPU's words, as at the call; the database lists CUDA's"

# fmt: off
NOT_YET: dict[str, dict[str, list[Gap]]] = {
    "forward": _listed(
        (CSR, """
            sparse.mm.reduce sparse.sampled_addmm
            """),
    ),
    "layouts": _listed(
        (CSR, """
            sparse.mm.reduce sparse.sampled_addmm
            """),
        (PROMOTED, """
            nn.functional.normalize:complex64
            """),
        (UNDEFINED, """
            native_group_norm
            """),
    ),
    "layout-pairs": _listed(
        (CSR, """
            sparse.mm.reduce sparse.sampled_addmm
            """),
    )
    | {name: [Gap(EXPANDED, later=True)] for name in ("nn.functional.prelu", "renorm")}
    | {"native_group_norm": [Gap(UNDEFINED, later=True)]},
    "broadcasting": _listed(
        (DECOMPOSED, """
            ldexp:float32
            """),
    ),
    "out": _listed(
        (CSR, """
            sparse.sampled_addmm
            """),
        (KEPT, """
            kthvalue
            """),
        (PROMOTED, """
            nn.functional.normalize:complex64
            """),
    ),
    "inplace": _listed(
        (IDENTITY, """
            addr:float32
            """),
    ),
    "settings": _listed(
        (CSR, """
            sparse.mm.reduce sparse.sampled_addmm
            """),
    ),
    "errors": _listed(
        (WORDS, """
            narrow_copy
            """),
    ),
}
# fmt: on
