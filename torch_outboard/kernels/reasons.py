# SPDX-License-Identifier: BSD-3-Clause
"""The remedies for reasons why an operator has no generated kernel, by the codes of the reasons.

A reason is written where it arises, in a `Refusal` or in csrc/ops/planned, and ends with its code: "its graph has
constants [no-definition]". The table of docs/kernels.md has them all, and a test compares it.
"""

from __future__ import annotations

import re

__all__ = ["REMEDIES", "code_of", "explained"]

_OR = "or register a kernel of your own (torch_outboard.register_kernel)"
_REGISTER = "Register a kernel of your own (torch_outboard.register_kernel)"

REMEDIES = {
    "double": "Set has_double in the dialect if the language has doubles, or compute in float32.",
    "element-type": f"Set has_double in the dialect for float64. For other types convert the tensors, {_OR}.",
    "reduction-ways": "Give the dialect `vectors`, for a CPU, or `has_groups`, for a GPU.",
    "group-size": (
        "Report max_threads_per_block and shared_memory_per_block of the device if it has more, or leave out "
        f"has_groups, {_OR}."
    ),
    "matrix-unit": (
        "Give the dialect a unit whose sizes divide 64, by lanes of which 256 items are a multiple, or leave it out."
    ),
    "recurrent-shapes": (
        "Pass tensors of the shapes that torch.nn's recurrent layers pass: the CPU's kernel names those that don't."
    ),
    "records": "Set `records` in the dialect, with OB_TAKE in its header.",
    "atomics": "Give the dialect ob_atomic_add of the type, or OB_CAS for halves, and the type's suffix in `atomics`.",
    "function": f"Compute it by other functions, {_OR}.",
    "storage-type": f"This type is memory alone: convert to another one first, {_OR}.",
    "no-definition": (
        f"Nothing says what it computes by operators that have kernels. {_REGISTER}, or move the call to the CPU."
    ),
    "mask-gradient": f"Detach the mask, or write attention by products and softmax (SDPBackend.MATH), {_OR}.",
    "foreign": f"{_REGISTER}, or write it with runtime.h: docs/extensions.md.",
    "products": f"No template has products of this type. Convert to float32, bfloat16 or float16 first, {_OR}.",
    "mixed-types": (
        f"Convert all its tensors to one type, float32, bfloat16 or float16 where it must be a float, {_OR}."
    ),
    "complex-formula": (
        f"Compute it from the parts by operators that have a formula (torch.view_as_real, docs/kernels.md), {_OR}."
    ),
    "fourier-length": f"Pad the signal to a length of small factors, {_OR}.",
    "rounding": f"A generated kernel would not return the CPU's values. Compute in float32, {_OR}.",
    "wrong-call": "The call is probably wrong, and the CPU's kernel says what. Correct the arguments.",
    "number-for-tensor": "Give it a tensor of the device with dimensions, not a number.",
    "list-shapes": "Leave out the call, or give lists that are not empty and single numbers beside them.",
    "norm-order": f"Use the order 0, 1, 2 or inf, {_OR}.",
    "out-dimensions": "Give `out` one dimension, and reshape the result.",
    "batch": "Give the input a batch, by unsqueeze(0).",
    "heads": f"Give it batches of heads, of 1 to 256 elements each, {_OR}.",
    "dropout": f"Give dropout a probability below 1, {_OR}.",
    "mask-write": "Use torch.where, or indices of integers in the place of the mask.",
    "layout": "Pass a dense tensor of the device: x.clone(), x.to_dense(), x.resolve_conj() or x.to(device).",
    "plan": (
        f"A plan can't express what PyTorch made of the call. {_REGISTER}, and report the call with dtypes and shapes."
    ),
    "program": "The text behind the colon is the compiler's or the driver's. Repair the dialect or program_build.",
    "matrix-size": "Leave it to the CPU's library, which is faster on large matrices than a group of items.",
    "errors-wanted": "Catch the error of the functional form, or check `info`.",
    "values-decide": f"Compute it by operators whose sizes are known, {_OR}.",
    "cpu-alone": (
        "Convert tensors and numbers to types that hold all values, or call it with the arguments that its forward "
        "operator has."
    ),
    "pivots": "Factor with pivots.",
    "no-generator": "Name `kernel_generator` in the Driver class.",
    "no-thread": "Call it again when the process has memory and threads left, and before Python ends.",
    "upstream": (
        f"PyTorch raised this where it decomposed or lowered the call. Correct the arguments if they are wrong, {_OR}."
    ),
}

_CODED = re.compile(r"(.*?)\.* \[([a-z-]+)\]", re.DOTALL)


def code_of(reason: str) -> str:
    """Return the code at the end of a reason, or "" if it has none with a remedy."""
    match = _CODED.fullmatch(reason)
    return match[2] if match is not None and match[2] in REMEDIES else ""


def explained(reason: str) -> str:
    """Return a reason with its code, and its remedy, as two sentences."""
    match = _CODED.fullmatch(reason)
    return f"{match[1]} [{match[2]}]. {REMEDIES[match[2]]}" if match is not None and match[2] in REMEDIES else reason
