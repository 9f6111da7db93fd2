# SPDX-License-Identifier: BSD-3-Clause
"""Facts about an operator that the core, or the code generator below the book, must know: plain values.

cmake/book.py writes them into the core when it is built. It reads the rows' text and loads only this module, so that a
build imports neither torch nor this package. csrc/ops/operator/facts.h describes what the fields mean to the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """Facts about an operator's CPU kernel, the calls that are refused, and its generated kernel.

    A fact of "aten::normal" holds for all overloads of this form, but not for `normal_`. Three facts also hold for the
    in-place form: rules for bad arguments, rules for bad values, and the values that the CPU's kernel accepts.

    Attributes
    ----------
    has_misleading_meta : bool
        The CPU kernel returns other shapes than the meta kernel, so only running it reveals them.
    keeps_shapes : bool
        The operator needs no meta kernel: it writes its arguments in place, whatever their shapes.
    has_shape_of_scalars : bool
        The result's shape depends on the values of Scalar arguments.
    checks_all_in_meta : bool
        The operator is structured, and once it accepts the dtypes, its CPU kernel checks no more than the meta kernel.
        The matrix of refusals (tests/operators/refusals) found this and enforces it.
    is_given_samples : bool
        The operator draws nothing although torch tags it as random: an argument holds the samples.
    has_bounds : bool
        Its integer arguments are bounds of random numbers and do not affect shapes.
    has_shape_of_masks : bool
        If an index is a mask, the result's shape depends on the mask's values.
    is_composed_first : bool
        Compose the operator from others before trying a plan: a plan for many tensors would need one launch per tensor.
    misreads_expanded : bool
        Its CPU kernel reads past an argument whose elements share memory, so it is passed a copy.
    raises_at_call : bool
        The operator raises value errors at the call on every device, so the caller waits.
    accepts : str
        Stand-in elements that its CPU kernel accepts: "zeros", "ones" (for divisors and pivots), or "identities" (for
        matrices that must be factorable). Found by running the CPU's kernels on zeros.
    checked_values : str
        Values that its CPU kernel checks, so that it is not tried on stand-ins: "nothing", "sums" (a sum that must not
        be 0, or must have a given value), "values" (assertions).
    known_warning : str
        The warning that can be predicted from the arguments (csrc/ops/call/known_warnings.cpp): "none", "degrees of
        freedom", "bound", "two bounds", "byte indices".
    layout : str
        The layout of its results: "as meta", "contiguous", "suggested" (the memory format suggested by the argument
        `like`), or "like" (as empty_like of that argument).
    like, layout_count : int
        The argument that suggests the layout, and the number of leading results to which the layout applies.
    dropout_argument : int
        The argument with the dropout probability of the operator or of its forward operator.
    correct : str
        The function of csrc/ops/operator/shape_corrections.h that corrects a call's shape.
    undeclared_writes : str
        Arguments that the operator writes although its schema does not declare it, separated by blanks.
    cpu_operator : str
        The operator whose CPU kernel is used instead, if torch has no CPU kernel for this operator.
    shape_rule : str
        For a single overload: the function of csrc/ops/operator/shape_rules.cpp that computes its shape.
    bad_numbers, bad_arguments, bad_dtypes : dict
        Argument names, each with the predicate (csrc/ops/call/bad_arguments.cpp) that is true if the CPU's kernel
        refuses them. `bad_numbers` checks numbers, or one-element tensors in their place. `bad_arguments` checks
        shapes, and dtypes that must match another argument's. `bad_dtypes` checks for dtypes that neither the CPU nor
        CUDA has kernels for.
    check_values : str
        The function of csrc/ops/call/bad_values.cpp that waits for values and refuses bad ones. docs/streams.md lists
        these operators.
    is_left_to_kernels : bool
        In a capture, which cannot wait, the kernel's own value check suffices.
    composed : str
        For a single overload: the function of csrc/ops/planned/composed.cpp that builds it from other operators.
    kernel_checks : bool
        Its generated kernel checks indices or conditions.
    kernel_divides : bool
        Its generated kernel divides, and an integer division by zero is an error.
    kernel_adds : bool
        In its generated kernel, several items add to the same memory.
    raises_runtime_error : bool
        For an out-of-bounds index, its CPU kernel raises RuntimeError instead of IndexError.
    """

    has_misleading_meta: bool = False
    keeps_shapes: bool = False
    has_shape_of_scalars: bool = False
    checks_all_in_meta: bool = False
    is_given_samples: bool = False
    has_bounds: bool = False
    has_shape_of_masks: bool = False
    is_composed_first: bool = False
    misreads_expanded: bool = False
    raises_at_call: bool = False
    accepts: str = "zeros"
    checked_values: str = "nothing"
    known_warning: str = "none"
    layout: str = "as meta"
    like: int = 0
    layout_count: int = 1
    dropout_argument: int = 0
    correct: str = ""
    undeclared_writes: str = ""
    cpu_operator: str = ""
    shape_rule: str = ""
    bad_numbers: Mapping[str, str] = field(default_factory=dict)
    bad_arguments: Mapping[str, str] = field(default_factory=dict)
    bad_dtypes: Mapping[str, str] = field(default_factory=dict)
    check_values: str = ""
    is_left_to_kernels: bool = False
    composed: str = ""
    kernel_checks: bool = False
    kernel_divides: bool = False
    kernel_adds: bool = False
    raises_runtime_error: bool = False
