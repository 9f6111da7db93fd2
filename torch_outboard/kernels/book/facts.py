# SPDX-License-Identifier: BSD-3-Clause
"""The facts of an operator that the core, or the code generator below the book, must know: plain values.

cmake/book.py writes them into the core when it is built. It reads the rows' text and loads this module alone, so that a
build imports neither torch nor this package. What the fields mean to the core: csrc/ops/operator/facts.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """What is known of an operator's CPU kernel, of calls that are refused, and of its generated kernel.

    A fact of "aten::normal" is one of all overloads of this form, not of `normal_`, except that rules of bad arguments
    and values, and what the CPU's kernel accepts, hold for the in-place form too.

    Attributes
    ----------
    has_misleading_meta : bool
        The CPU kernel's outputs have other shapes than the meta kernel's: only the kernel itself knows them.
    keeps_shapes : bool
        It needs no meta kernel: it writes its arguments in place, whatever their shapes.
    has_shape_of_scalars : bool
        The values of its Scalar arguments decide its result's shape.
    checks_all_in_meta : bool
        It is structured, and its CPU kernel checks no more than the meta kernel, once it accepts the dtypes. Found by
        the matrix of refusals (tests/operators/refusals), which enforces it.
    is_given_samples : bool
        It draws nothing although torch tags it as random: an argument has the numbers.
    has_bounds : bool
        Its integers are bounds of random numbers, which decide no shape.
    masks_decide : bool
        If an index is a mask, its values decide the result's shape.
    is_composed_first : bool
        It is composed of others before a plan is tried: a plan for many tensors would have a launch for each.
    misreads_expanded : bool
        Its CPU kernel reads past an argument whose elements share memory: it gets a copy.
    raises_at_call : bool
        It raises errors of values at the call on every device: the caller waits for it.
    accepts : str
        The elements that its CPU kernel accepts: "zeros", "ones" (integers divided by 0, pivots below 1), or
        "identities" (matrices that cannot be factored are refused). Found by running the CPU's kernels on zeros.
    judges : str
        Which values its CPU kernel judges, so that it is not tried on stand-ins: "nothing", "sums" (a sum that must not
        be 0, or must have a given value), "values" (assertions).
    warns : str
        The warning that its arguments predict (csrc/ops/call/known_warnings.cpp): "no", "of freedom", "of bound",
        "of two bounds", "of bytes".
    layout : str
        The layout of its results: "as meta", "contiguous", "suggested" (in the memory format that the argument `like`
        suggests), "like" (as empty_like of it).
    like, laid_out : int
        The argument that suggests the layout, and the number of leading results that it applies to.
    drops_at : int
        The argument with the probability by which it, or its forward operator, drops numbers.
    correct : str
        The function of csrc/ops/operator/shape_corrections.h that corrects a call's shape.
    written_in_secret : str
        The arguments that it writes although its schema does not declare it, separated by blanks.
    on_cpu : str
        The operator whose CPU kernel serves this one, if torch has no CPU kernel of it.
    shape_rule : str
        Of one overload: the function of csrc/ops/operator/shape_rules.cpp that computes its shape.
    bad_numbers, bad_arguments, bad_dtypes : dict
        Names of arguments, and the predicate that is true if the CPU's kernel refuses them
        (csrc/ops/call/bad_arguments.cpp): numbers, for which one element of a tensor stands in; shapes, and dtypes that
        must fit another's; dtypes that neither the CPU nor CUDA has kernels for.
    check_values : str
        The function of csrc/ops/call/bad_values.cpp that waits for values and refuses bad ones. docs/streams.md lists
        these operators.
    is_left_to_kernels : bool
        In a capture, which cannot wait, the kernel's own check of values suffices.
    composed : str
        Of one overload: the function of csrc/ops/planned/composed.cpp that builds it from other operators.
    kernel_checks : bool
        Its generated kernel checks indices or conditions.
    kernel_divides : bool
        Its generated kernel divides. A division of integers by zero is an error.
    kernel_adds : bool
        Its generated kernel adds to memory that several items write.
    raises_runtime_error : bool
        For an index out of bounds, its CPU kernel raises a RuntimeError, not an IndexError.
    """

    has_misleading_meta: bool = False
    keeps_shapes: bool = False
    has_shape_of_scalars: bool = False
    checks_all_in_meta: bool = False
    is_given_samples: bool = False
    has_bounds: bool = False
    masks_decide: bool = False
    is_composed_first: bool = False
    misreads_expanded: bool = False
    raises_at_call: bool = False
    accepts: str = "zeros"
    judges: str = "nothing"
    warns: str = "no"
    layout: str = "as meta"
    like: int = 0
    laid_out: int = 1
    drops_at: int = 0
    correct: str = ""
    written_in_secret: str = ""
    on_cpu: str = ""
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
