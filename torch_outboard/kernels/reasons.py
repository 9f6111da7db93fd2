# SPDX-License-Identifier: BSD-3-Clause
"""Remedies if an operator has no generated kernel, by the code of the reason.

A reason is written where it arises, in a `Refusal` or in csrc/ops/planned, and ends with its code: "its graph has
constants [no-definition]". docs/kernels.md lists all codes in a table, which a test compares with this module.
"""

from __future__ import annotations

import re

__all__ = ["REMEDIES", "code_of", "explained"]

_OR = "or register a kernel of your own (torch_outboard.register_kernel)"
_REGISTER = "Register a kernel of your own (torch_outboard.register_kernel)"

REMEDIES = {
    "double": "Set has_double in the dialect if the language has doubles, or compute in float32.",
    "element-type": (
        "Set has_double in the dialect for float64, has_int16 for int16 and uint16. For other types convert the "
        f"tensors, {_OR}."
    ),
    "reduction-ways": "Set `vectors` in the dialect for a CPU, or `has_groups` for a GPU.",
    "group-size": (
        "If the device has more, report its max_threads_per_block and shared_memory_per_block; otherwise remove "
        f"has_groups, {_OR}."
    ),
    "matrix-unit": (
        "Use a matrix unit whose sizes divide 64 and whose lane count divides 256, or remove it from the dialect."
    ),
    "recurrent-shapes": (
        "Pass tensors of the shapes that torch.nn's recurrent layers pass. The CPU kernel's error names the wrong "
        "tensor."
    ),
    "records": "Set `records` in the dialect, and define OB_TAKE in its header.",
    "atomics": (
        "Define ob_atomic_add for the type (OB_CAS for half and bfloat16) in the dialect, and add its suffix to "
        "`atomics`."
    ),
    "function": f"Use other functions, {_OR}.",
    "storage-type": f"The type can be stored but not computed with: convert to another one first, {_OR}.",
    "no-definition": (f"It has no decomposition into supported operators. {_REGISTER}, or move the call to the CPU."),
    "mask-gradient": f"Detach the mask, or compute attention from matmul and softmax (SDPBackend.MATH), {_OR}.",
    "foreign": f"{_REGISTER}, or write it with runtime.h: docs/extensions.md.",
    "products": f"Convert to float32, bfloat16 or float16 first, {_OR}.",
    "mixed-types": (
        f"Convert all tensors to one dtype (a floating-point one must be float32, bfloat16 or float16), {_OR}."
    ),
    "complex-formula": (f"Compute with real and imaginary parts (torch.view_as_real, docs/kernels.md), {_OR}."),
    "fourier-length": f"Pad the signal to a length with small prime factors, {_OR}.",
    "rounding": f"A generated kernel would return other values than the CPU. Compute in float32, {_OR}.",
    "wrong-call": "The arguments are probably wrong. Run the call on the CPU to see PyTorch's own error.",
    "number-for-tensor": "Pass a device tensor with at least one dimension instead of a number.",
    "list-shapes": "Pass non-empty lists, and numbers or zero-dimensional tensors beside them.",
    "norm-order": f"Use order 0, 1, 2 or inf, {_OR}.",
    "out-dimensions": "Pass an `out` with that number of dimensions, and reshape the result.",
    "batch": "Add a batch dimension with unsqueeze(0).",
    "heads": f"Pass (batch, heads, length, head size) with head sizes from 1 to 256, {_OR}.",
    "dropout": f"Use a dropout probability below 1, {_OR}.",
    "mask-write": "Use torch.where, or integer indices instead of the mask.",
    "layout": "Pass a dense tensor on the device: x.clone(), x.to_dense(), x.resolve_conj() or x.to(device).",
    "plan": (
        f"A plan can't express how PyTorch lowers this call. {_REGISTER}, and report the call with its dtypes "
        "and shapes."
    ),
    "program": "The text after the colon comes from the compiler or the driver. Fix the dialect or program_build.",
    "matrix-size": "Compute it on the CPU, which is faster than one thread block for matrices of this size.",
    "errors-wanted": "Call the form without check_errors, and look at `info`.",
    "values-decide": f"Use operators whose result sizes don't depend on values, {_OR}.",
    "cpu-alone": (
        "Convert tensors and numbers to dtypes that hold all values, or pass the arguments of the forward operator."
    ),
    "pivots": "Set pivot=True.",
    "no-generator": "Set `kernel_generator` in the Driver class.",
    "no-thread": "Call it again when the process can start threads, and before Python exits.",
    "upstream": (
        f"PyTorch raised this while decomposing or lowering the call. Correct the arguments if they are wrong, {_OR}."
    ),
}

_CODED = re.compile(r"(.*?)\.* \[([a-z-]+)\]", re.DOTALL)


def code_of(reason: str) -> str:
    """Return the code at the end of a reason, or "" if there is no code with a remedy."""
    match = _CODED.fullmatch(reason)
    return match[2] if match is not None and match[2] in REMEDIES else ""


def explained(reason: str) -> str:
    """Return a reason with its code and its remedy, as two sentences."""
    match = _CODED.fullmatch(reason)
    return f"{match[1]} [{match[2]}]. {REMEDIES[match[2]]}" if match is not None and match[2] in REMEDIES else reason
