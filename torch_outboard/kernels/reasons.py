# SPDX-License-Identifier: BSD-3-Clause
"""Each reason why an operator has no generated kernel, with a code and a remedy.

Reasons are written where they arise, in a `Refusal` or in csrc/ops/planned/recipes.cpp; "…" stands for inserted text.
The table of docs/kernels.md has these rows, and a test compares them.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

__all__ = ["REASONS", "Row", "explained", "row_of"]

_OR = "or register a kernel of your own (torch_outboard.register_kernel)"
_REGISTER = "Register a kernel of your own (torch_outboard.register_kernel)"


class Row(NamedTuple):
    """A kind of reasons: its code, what to do, and the reasons as sentences."""

    code: str
    remedy: str
    reasons: tuple[str, ...]


REASONS: tuple[Row, ...] = (
    Row(
        "double",
        "Set has_double in the dialect if the language has doubles, or compute in float32.",
        ("it computes in float64, which the language of the devices lacks: needs has_double in the dialect",),
    ),
    Row(
        "element-type",
        f"Set has_double in the dialect for float64. For other types convert the tensors, {_OR}.",
        ("the dialect … has no …: float64 needs has_double, others a kernel of the driver",),
    ),
    Row(
        "reduction-ways",
        "Give the dialect `vectors`, for a CPU, or `has_groups`, for a GPU.",
        ("the dialect … has neither vectors nor groups of items that share memory: needs vectors or has_groups",),
    ),
    Row(
        "group-size",
        "Report max_threads_per_block and shared_memory_per_block of the device if it has more, or leave out "
        f"has_groups, {_OR}.",
        ("a group of … needs … items and … bytes of local memory, and the device allows … and …",),
    ),
    Row(
        "matrix-unit",
        "Give the dialect a unit whose sizes divide 64, by lanes of which 256 items are a multiple, or leave it out.",
        ("the matrix unit … of … by … by … and … lanes does not divide tiles of … by …",),
    ),
    Row(
        "recurrent-shapes",
        "Pass tensors of the shapes that torch.nn's recurrent layers pass: the CPU's kernel names those that don't.",
        (
            "the rows, the states and the weights of a recurrent layer do not fit",
            "the cells of a recurrent layer do not fit its kind, or its states",
        ),
    ),
    Row(
        "records",
        "Set `records` in the dialect, with OB_TAKE in its header.",
        (
            "its kernel checks what it is given: needs records in the dialect",
            "it divides integers, which may be by zero: needs records in the dialect",
        ),
    ),
    Row(
        "atomics",
        "Give the dialect ob_atomic_add of the type, or OB_CAS for halves, and the type's suffix in `atomics`.",
        ("it adds … to memory that items share: needs it in atomics of the dialect",),
    ),
    Row("function", f"Compute it by other functions, {_OR}.", ("generated kernels have no function …",)),
    Row(
        "storage-type",
        f"This type is memory alone: convert to another one first, {_OR}.",
        ("generated kernels have no …",),
    ),
    Row(
        "no-definition",
        f"Nothing says what it computes by operators that have kernels. {_REGISTER}, or move the call to the CPU.",
        (
            "there is no lowering of it, but a call of the operator",
            "it needs code that is no operator",
            "it is about storages",
            "it is called in a form that isn't functional",
            "it is no operator of single elements",
            "its single operator gives no single result",
            "it has no list of tensors",
            "its graph has constants",
            "torch drops it from a graph as dead code",
        ),
    ),
    Row(
        "mask-gradient",
        f"Detach the mask, or write attention by products and softmax (SDPBackend.MATH), {_OR}.",
        ("there is no gradient of the mask",),
    ),
    Row(
        "foreign",
        f"{_REGISTER}, or write it with runtime.h: docs/extensions.md.",
        ("it is no operator of torch's own",),
    ),
    Row(
        "products",
        f"No template has products of this type. Convert to float32, bfloat16 or float16 first, {_OR}.",
        (
            "there are no products of …",
            "there are no convolutions of …",
            "there is no attention of …",
            "there are no gradients of images of …",
            "there is no such loss of …",
            "there are no factors of …",
        ),
    ),
    Row(
        "mixed-types",
        f"Convert all its tensors to one type, float32, bfloat16 or float16 where it must be a float, {_OR}.",
        (
            "its numbers are of …",
            "its tensors are of several types",
            "its tensors have several types",
            "its lists are not of one floating point type",
            "a scale, or what says that it is too large, is no float32",
            "the scale, its tracker and what was found are not a float32, an int32 and a float32",
            "a result of … is written to tensors of …",
            "it writes bools",
            "of integers, it computes in float64",
        ),
    ),
    Row(
        "complex-formula",
        f"Compute it from the parts by operators that have a formula (torch.view_as_real, docs/kernels.md), {_OR}.",
        (
            "there is no formula of complex numbers for …",
            "its tensors are complex",
        ),
    ),
    Row(
        "fourier-length",
        f"Pad the signal to a length of small factors, {_OR}.",
        ("a transformed length has a prime factor above …",),
    ),
    Row(
        "rounding",
        f"A generated kernel would not return the CPU's values. Compute in float32, {_OR}.",
        (
            "of halves, the CPU's kernel and the decomposition round in different places",
            "of bytes, the CPU's kernel computes in integers",
            "the sums that it is given are not those of the generated kernels",
        ),
    ),
    Row(
        "wrong-call",
        "The call is probably wrong, and the CPU's kernel says what. Correct the arguments.",
        (
            "its number may be none of the tensor's type",
            "a factor of integers is no integer",
            "a factor is a …",
            "its number is a …",
            "the result has another shape than the tensor that is written",
            "the CPU's kernel refuses … with these numbers",
            "its tensors, or its result, are of a type that the CPU's kernels refuse",
            "of integers, the exponent decides whether there is a power",
            "a tensor has other sizes than the operator takes beside the others",
            "its output padding is not smaller than its stride or its dilation",
            "it shifts … dimensions by … numbers",
            "its padding is negative",
            "its stride is …, its padding … and its dilation …",
        ),
    ),
    Row(
        "number-for-tensor",
        "Give it a tensor of the device with dimensions, not a number.",
        (
            "all its tensors are numbers",
            "a number stands where a tensor is expected",
            "a number stands where a tensor is expected, and it has no functional form",
        ),
    ),
    Row(
        "list-shapes",
        "Leave out the call, or give lists that are not empty and single numbers beside them.",
        (
            "a list is empty",
            "there is nothing to compute",
            "a tensor beside its lists has several elements",
            "a tensor beside its lists has dimensions",
        ),
    ),
    Row("norm-order", f"Use the order 0, 1, 2 or inf, {_OR}.", ("its order is …",)),
    Row("out-dimensions", "Give `out` one dimension, and reshape the result.", ("it writes a tensor of … dimensions",)),
    Row("batch", "Give the input a batch, by unsqueeze(0).", ("its input has no batch",)),
    Row(
        "heads",
        f"Give it batches of heads, of 1 to 256 elements each, {_OR}.",
        (
            "it has no batches of heads",
            "heads of … and … elements are none of 1 to …",
        ),
    ),
    Row(
        "dropout",
        f"Give dropout a probability below 1, {_OR}.",
        ("it drops weights with a probability of …, which is not below 1",),
    ),
    Row("mask-write", "Use torch.where, or indices of integers in the place of the mask.", ("it writes by a mask",)),
    Row(
        "layout",
        "Pass a dense tensor of the device: x.clone(), x.to_dense(), x.resolve_conj() or x.to(device).",
        (
            "an argument is not a dense strided tensor",
            "an argument on the CPU has dimensions",
            "elements of an output share memory",
            "a tensor that it writes shares memory with another one",
        ),
    ),
    Row(
        "plan",
        f"A plan can't express what PyTorch made of the call. {_REGISTER}, and report the call with dtypes and shapes.",
        (
            "Inductor gives a result of another shape or type",
            "Inductor gives a result of other strides",
            "a kernel takes … as a number",
            "a kernel takes …, which is no buffer",
            "a plan can't name …",
            "a plan can't say …",
            "a result is an argument, or two results are one",
            "an operator that it calls gives lists of results",
            "it allocates more than it uses",
            "it calls … with a …",
            "it calls … without …",
            "it calls …, which gives other things than tensors",
            "it looks at memory as another type",
            "it needs memory on …",
            "it reads what it has written",
            "it returns a list with undefined tensors",
            "it returns a …",
            "it uses memory again for another type",
            "it uses several results as one",
            "the kernel … is not the device's",
            "the guards of its plan don't hold for the call that it was built for, or the plan's result has other "
            "strides than the operator's meta kernel",
        ),
    ),
    Row(
        "program",
        "The text behind the colon is the compiler's or the driver's. Repair the dialect or program_build.",
        ("its plan can't be used: …",),
    ),
    Row(
        "matrix-size",
        "Leave it to the CPU's library, which is faster on large matrices than a group of items.",
        ("a matrix has more than … rows and columns",),
    ),
    Row(
        "errors-wanted",
        "Catch the error of the functional form, or check `info`.",
        ("it waits for its values, to raise their errors",),
    ),
    Row(
        "values-decide",
        f"Compute it by operators whose sizes are known, {_OR}.",
        ("its result depends on values, and it has no decomposition",),
    ),
    Row(
        "cpu-alone",
        "Convert tensors and numbers to types that hold all values, or call it with the arguments that its forward "
        "operator has.",
        (
            "only the CPU's kernel defines the result for these arguments",
            "only the provider of the forward call knows which numbers were dropped",
        ),
    ),
    Row("pivots", "Factor with pivots.", ("it factors without pivots",)),
    Row(
        "no-generator",
        "Name `kernel_generator` in the Driver class.",
        ("nobody builds plans here",),
    ),
    Row(
        "no-thread",
        "Call it again when the process has memory and threads left, and before Python ends.",
        (
            "the process is ending, so no plan is built",
            "no thread can be started to build its plan: …",
            "the interpreter is about to go",
        ),
    ),
    Row(
        "upstream",
        f"PyTorch raised this where it decomposed or lowered the call. Correct the arguments if they are wrong, {_OR}.",
        ("building its plan raised …",),
    ),
)


def row_of(reason: str) -> Row | None:
    """Return the row of a reason; None if the table does not have it."""
    return next((row for pattern, row in _patterns() if pattern.fullmatch(reason)), None)


def explained(reason: str) -> str:
    """Return a reason with its code, and its remedy, as two sentences."""
    row = row_of(reason)
    return reason if row is None else f"{reason.rstrip('.')} [{row.code}]. {row.remedy}"


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], Row]]:
    """Return the pattern of each reason with its row, the longest reasons first."""
    reasons = [(reason, row) for row in REASONS for reason in row.reasons]
    reasons.sort(key=lambda one: len(one[0]), reverse=True)
    return [(re.compile(".*".join(map(re.escape, reason.split("…"))), re.DOTALL), row) for reason, row in reasons]
