# SPDX-License-Identifier: BSD-3-Clause
"""Elementwise arithmetic that takes its numbers by value, so that a new number needs no new kernel, and rounding.

Numbers that a row does not name are written into the kernels, because some of torch's lowerings branch on a number,
such as an exponent. The numbers named here change from step to step in training, or from layer to layer. Their formulas
take each number as a one-element tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_outboard.codegen.dialects.dialect import HALVES
from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.rounding import ROUNDED_BETWEEN, rounded, widened
from torch_outboard.kernels.book.row import Numbers, Operator
from torch_outboard.kernels.refusal import other_sizes

__all__ = ["OPERATORS"]


def _combine(*operands: Any, compute: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Compute in the operator's computation type. The last operand is the number."""
    # This imports sympy. A process that reads all its plans from disk does not need sympy.
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    computed, result = elementwise_dtypes(*operands[:-1], type_promotion_kind=kind)
    return compute(*(operand.to(computed) for operand in operands)).to(result)


def _factor(self: torch.Tensor, other: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """Return the factor of a sum as the CPU's kernels use it: for halves, rounded to the tensor's type."""
    common = torch.result_type(self, other)
    return rounded(alpha.to(common)) if common in HALVES else alpha


def _add(self: torch.Tensor, other: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return _combine(self, other, _factor(self, other, alpha), compute=lambda x, y, a: x + y * a)


def _sub(self: torch.Tensor, other: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return _combine(self, other, _factor(self, other, alpha), compute=lambda x, y, a: x - y * a)


def _addcmul(self: torch.Tensor, first: torch.Tensor, second: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return _combine(self, first, second, value, compute=lambda x, y, z, v: x + v * y * z)


def _addcdiv(self: torch.Tensor, first: torch.Tensor, second: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return _combine(self, first, second, value, compute=lambda x, y, z, v: x + v * y / z)


def _lerp(self: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    # Interpolate from the nearer end, as torch's kernels do.
    def compute(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.where(w.abs() < 0.5, x + w * (y - x), y - (y - x) * (1 - w))

    return _combine(self, end, weight, compute=compute)


def _typed(self: torch.Tensor, *numbers: torch.Tensor | None) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Convert a tensor and numbers to their common type, promoting by category."""
    common = self.dtype
    for number in numbers:
        if number is not None and number.dtype.is_floating_point and not common.is_floating_point:
            common = torch.get_default_dtype()
        elif number is not None and common == torch.bool:
            common = number.dtype
    return self.to(common), [None if number is None else number.to(common) for number in numbers]


def _clamp(self: torch.Tensor, low: torch.Tensor | None, high: torch.Tensor | None) -> torch.Tensor:
    if low is not None and self.dtype == torch.uint8 and low.dtype == torch.int64 and torch.__version__ >= "2.15":
        low = low.clamp_min(0)  # a bound below the type has no effect; before torch 2.15 it wraps
    x, (low, high) = _typed(self, low, high)
    # If its operands are equal, maximum returns the second: -0.0 survives, as in the CPU's kernel.
    x = x if low is None else torch.maximum(low, x)
    return x if high is None else torch.minimum(high, x)


def _clamp_min(self: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    return _clamp(self, low, None)


def _clamp_max(self: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return _clamp(self, None, high)


def _pow(self: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    if self.is_complex() or exponent.is_complex():
        dtype = torch.result_type(self, 1j)
        return torch.ops.aten.pow.Tensor_Tensor(self.to(dtype), exponent.to(dtype))  # type: ignore[no-any-return]
    x, (power,) = _typed(self, exponent)
    assert power is not None
    result: torch.Tensor = torch.ops.aten.pow.Tensor_Tensor(x, rounded(power) if x.dtype in HALVES else power)
    return result


def _power(self: torch.Tensor, exponent: Any) -> Any:
    """Compute powers of 0.5 and -0.5 as roots, also for -0.0 and -inf. Float16 uses pow, as in the CPU's kernel."""
    common = torch.result_type(self, exponent)
    if abs(exponent) != 0.5 or not common.is_floating_point:
        return NotImplemented
    x = self.to(common)
    if common == torch.float16:
        return torch.pow(x, torch.full_like(x, exponent))
    return x.sqrt() if exponent > 0 else x.rsqrt()


def _power_of_number(self: Any, exponent: torch.Tensor) -> Any:
    """Raise a number to integer powers through pow.Tensor_Tensor; Inductor's own decomposition calls a library."""
    common = torch.result_type(self, exponent)
    if common.is_floating_point or common.is_complex or common == torch.bool:
        return NotImplemented
    base = torch.full((), self, dtype=common, device=exponent.device)
    return torch.ops.aten.pow.Tensor_Tensor(base, exponent.to(common))


def _hardtanh(self: torch.Tensor, min_val: float = -1, max_val: float = 1) -> Any:
    if not self.is_floating_point():
        return NotImplemented
    low, high = (torch.full((), limit, dtype=self.dtype, device=self.device) for limit in (min_val, max_val))
    return torch.minimum(high, torch.maximum(low, self))


def _sigmoid_backward(grad_output: torch.Tensor, output: torch.Tensor) -> Any:
    if output.is_complex():
        return NotImplemented
    common = torch.result_type(grad_output, output)
    grad, y = widened(grad_output), widened(output)
    return (grad * (1 - y) * y).to(common)


def _divide(a: torch.Tensor, b: torch.Tensor, *, rounding_mode: str | None) -> Any:
    """Compute a floored floating-point division through the remainder, as ATen's kernels do.

    Inductor's lowering computes floor(a / b), which is one too large if the quotient rounds up to a whole number.
    """
    common = torch.result_type(a, b)
    if rounding_mode != "floor" or not common.is_floating_point:
        return NotImplemented
    wide = torch.float64 if common == torch.float64 else torch.float32
    a, b = a.to(wide), b.to(wide)
    rest = torch.fmod(a, b)
    quotient = (a - rest) / b
    quotient = torch.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    below = quotient.floor()
    whole = torch.where(quotient - below > 0.5, below + 1, below)
    plain = a / b
    signed = torch.where(quotient == 0, torch.copysign(torch.zeros_like(plain), plain), whole)
    return torch.where(b == 0, plain, signed).to(common)


def _shrink_backward(grad: torch.Tensor, self: torch.Tensor, lambd: float) -> torch.Tensor:
    return torch.where((self >= -lambd) & (self <= lambd), 0, grad)


def _of_inputs_type(name: str) -> Callable[..., torch.Tensor]:
    """Wrap torch's decomposition of a gradient to return the input's element type if the types in a call differ.

    Torch's decomposition returns the common type; the CPU's kernel allocates its result in the input's type.
    """

    def gradient(grad_output: torch.Tensor, self: torch.Tensor, *rest: Any) -> torch.Tensor:
        operator = getattr(torch.ops.aten, name).default
        result: torch.Tensor = torch._decomp.decomposition_table[operator](grad_output, self, *rest)
        return result.to(self.dtype)

    return gradient


def _dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute in the operands' common type: torch's decomposition converts the mask to the gradient's type."""
    return (grad_output * mask * scale).clone(memory_format=torch.contiguous_format)


def _prelu_backward(
    grad_output: torch.Tensor, self: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute both gradients in the shape to which all three tensors are broadcast."""
    size = torch.broadcast_shapes(grad_output.shape, self.shape, weight.shape)  # type: ignore[no-untyped-call]
    grad_output, self, weight = (tensor.expand(size) for tensor in (grad_output, self, weight))
    is_positive = self > 0
    return torch.where(is_positive, grad_output, weight * grad_output), torch.where(is_positive, 0, self * grad_output)


# Calls over lists that the CPU's kernel refuses, decided from the arguments and a list's type.


def _not_floating(_: Sequence[Any], dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point


def _of_bools(_: Sequence[Any], dtype: torch.dtype) -> bool:
    return dtype == torch.bool


def _to_no_power(arguments: Sequence[Any], dtype: torch.dtype) -> bool:
    """Return True if elements of a type cannot be raised to the call's numeric exponent."""
    exponent = arguments[1]
    if dtype.is_floating_point:
        return math.isfinite(exponent) and abs(exponent) > torch.finfo(dtype).max
    if dtype == torch.bool or isinstance(exponent, float):
        return not isinstance(exponent, float) and exponent < 0
    return not 0 <= exponent <= torch.iinfo(dtype).max


def _check_half(grad_output: torch.Tensor, self: torch.Tensor, dim: int) -> None:
    half = [*self.shape]
    half[dim] = half[dim] // 2
    if list(grad_output.shape) != half:
        raise other_sizes()


def _check_noise(self: torch.Tensor, noise: torch.Tensor, *_: Any, **__: Any) -> None:
    if self.shape != noise.shape:
        raise other_sizes()


OPERATORS = (
    Operator("aten::_prelu_kernel.default", facts=Facts(shape_rule="prelu")),
    Operator("aten::_prelu_kernel_backward.default", decomposition=_prelu_backward),
    Operator("aten::abs", facts=Facts(bad_dtypes={"self": "is_boolean"})),
    Operator("aten::abs.out", facts=Facts(shape_rule="abs_out")),
    Operator(
        "aten::add",
        computed=Numbers(_add, ("alpha",)),
        facts=Facts(bad_numbers={"self other alpha": "factor_does_not_fit"}),
    ),
    Operator("aten::add_.Tensor", facts=Facts(composed="add_sparse")),
    Operator(
        "aten::addcdiv",
        computed=Numbers(_addcdiv, ("value",)),
        refuses_list=_not_floating,
        facts=Facts(bad_dtypes={"tensor1 tensor2": "are_integral"}),
    ),
    Operator(
        "aten::addcmul",
        computed=Numbers(_addcmul, ("value",)),
        refuses_list=_of_bools,
        facts=Facts(bad_dtypes={"tensor1 tensor2": "are_boolean"}),
    ),
    Operator("aten::angle.default", facts=Facts(shape_rule="angle")),
    Operator("aten::angle.out", facts=Facts(shape_rule="angle_out")),
    Operator(
        "aten::atan2 aten::copysign aten::erfinv aten::fmax aten::fmin aten::heaviside aten::maximum "
        "aten::minimum aten::sign",
        facts=Facts(bad_dtypes={"self": "has_complex_type"}),
    ),
    Operator(
        "aten::bitwise_and aten::bitwise_or aten::bitwise_xor",
        facts=Facts(bad_dtypes={"self other": "has_no_integral_types"}),
    ),
    Operator(
        "aten::bitwise_left_shift aten::bitwise_right_shift aten::gcd aten::lcm",
        facts=Facts(bad_dtypes={"self other": "has_boolean_or_no_integral_types"}),
    ),
    Operator("aten::bitwise_not", facts=Facts(bad_dtypes={"self": "has_no_integral_type"})),
    Operator(
        "aten::ceil aten::floor aten::hypot aten::nextafter aten::relu aten::trunc",
        facts=Facts(bad_dtypes={"self": "is_boolean_or_complex"}),
    ),
    Operator(
        "aten::clamp",
        computed=Numbers(_clamp, ("min", "max")),
        facts=Facts(bad_dtypes={"self": "is_boolean_or_complex"}),
    ),
    Operator(
        "aten::clamp_max", computed=Numbers(_clamp_max, ("max",)), facts=Facts(bad_dtypes={"self max": "are_boolean"})
    ),
    Operator("aten::clamp_max.Tensor aten::clamp_min.Tensor aten::sub.Tensor", refuses_list=_of_bools),
    Operator(
        "aten::clamp_min", computed=Numbers(_clamp_min, ("min",)), facts=Facts(bad_dtypes={"self min": "are_boolean"})
    ),
    Operator(
        "aten::complex", facts=Facts(bad_arguments={"real imag": "dtypes_differ<2>", "real out": "is_bad_complex_type"})
    ),
    Operator("aten::complex.out aten::polar.out", facts=Facts(shape_rule="complex_out")),
    Operator("aten::conj_physical.out", facts=Facts(shape_rule="conj_physical_out")),
    Operator(
        "aten::div",
        takes_float=True,
        facts=Facts(accepts="ones", bad_numbers={"self other rounding_mode": "divides_by_zero"}, kernel_divides=True),
    ),
    Operator("aten::div.Tensor_mode", decomposition=_divide),
    Operator("aten::elu_backward", facts=Facts(bad_numbers={"alpha is_result": "slope_of_result_is_negative"})),
    Operator(
        "aten::floor_divide",
        takes_float=True,
        promotes=True,
        facts=Facts(
            accepts="ones",
            bad_numbers={"self other": "divides_by_zero"},
            bad_dtypes={"self other": "are_boolean"},
            kernel_divides=True,
        ),
    ),
    Operator("aten::floor_divide.default", facts=Facts(shape_rule="floor_divide")),
    Operator(
        "aten::fmod aten::remainder",
        rounds_numbers=True,
        facts=Facts(
            accepts="ones",
            bad_numbers={"self other": "divides_by_zero"},
            bad_dtypes={"self": "is_boolean_or_complex"},
            kernel_divides=True,
        ),
    ),
    Operator(
        "aten::frac aten::leaky_relu aten::logit_.default aten::silu",
        facts=Facts(bad_dtypes={"self": "has_integral_type"}),
    ),
    Operator("aten::frac.default aten::lerp.Scalar aten::lerp.Tensor", refuses_list=_not_floating),
    Operator("aten::frexp.Tensor_out", facts=Facts(shape_rule="frexp_out")),
    Operator(
        "aten::gelu",
        facts=Facts(bad_arguments={"approximate": "is_bad_approximation"}, bad_dtypes={"self": "has_integral_type"}),
    ),
    Operator("aten::glu_backward aten::mse_loss_backward", facts=Facts(layout="contiguous")),
    Operator("aten::glu_backward.default", check=_check_half),
    Operator("aten::hardshrink_backward.default aten::softshrink_backward.default", decomposition=_shrink_backward),
    Operator("aten::hardswish.default", facts=Facts(shape_rule="hardswish")),
    Operator("aten::hardswish_backward aten::hardtanh_backward", facts=Facts(correct="correct_iterated")),
    Operator("aten::hardtanh", facts=Facts(bad_dtypes={"self": "is_boolean_or_unsigned"})),
    Operator("aten::hardtanh.default", decomposition=_hardtanh, facts=Facts(shape_rule="hardtanh")),
    Operator("aten::hardtanh.out", facts=Facts(shape_rule="hardtanh_out")),
    Operator("aten::isnan.default", facts=Facts(shape_rule="isnan")),
    Operator(
        "aten::leaky_relu_backward",
        facts=Facts(bad_numbers={"negative_slope self_is_result": "slope_of_result_is_negative"}),
    ),
    Operator("aten::lerp", computed=Numbers(_lerp, ("weight",)), facts=Facts(bad_dtypes={"self": "has_integral_type"})),
    Operator("aten::log_sigmoid_backward", facts=Facts(layout="like")),
    Operator("aten::log_sigmoid_forward", facts=Facts(layout="contiguous", layout_count=2)),
    Operator("aten::log_sigmoid_forward.default", facts=Facts(shape_rule="log_sigmoid_forward")),
    Operator("aten::logical_and.out aten::logical_or.out aten::logical_xor.out", facts=Facts(shape_rule="binary_out")),
    Operator("aten::logical_not.out", facts=Facts(shape_rule="unary_out")),
    Operator("aten::logit", refused=ROUNDED_BETWEEN),
    Operator("aten::logit.default", facts=Facts(shape_rule="logit")),
    Operator("aten::logit.out", facts=Facts(shape_rule="logit_out")),
    Operator("aten::mish_backward.default", decomposition=_of_inputs_type("mish_backward")),
    Operator("aten::mse_loss_backward.default", decomposition=_of_inputs_type("mse_loss_backward")),
    Operator("aten::mul", takes_float=True),
    Operator("aten::nan_to_num", rounds_numbers=True),
    Operator("aten::nan_to_num.out", facts=Facts(shape_rule="nan_to_num_out")),
    Operator(
        "aten::native_dropout_backward.default",
        decomposition=_dropout_backward,
        facts=Facts(shape_rule="native_dropout_backward"),
    ),
    Operator("aten::neg", facts=Facts(bad_arguments={"self out": "dtypes_differ<2>"})),
    Operator("aten::polar", facts=Facts(bad_arguments={"abs angle": "dtypes_differ<2>"})),
    Operator(
        "aten::pow",
        computed=Numbers(_pow, ("exponent",)),
        rounds_numbers=True,
        facts=Facts(bad_numbers={"self exponent": "is_integer_to_negative_power"}),
    ),
    Operator("aten::pow.Scalar", decomposition=_power_of_number),
    Operator("aten::pow.Tensor_Tensor", lowering="lowerings:power"),
    Operator("aten::pow.Tensor_Scalar", decomposition=_power, refuses_list=_to_no_power),
    Operator("aten::relu.default", facts=Facts(shape_rule="relu")),
    Operator(
        "aten::rrelu_with_noise",
        facts=Facts(layout="contiguous", bad_numbers={"lower upper": "is_bad_scalar_interval"}),
    ),
    Operator("aten::rrelu_with_noise.default aten::rrelu_with_noise_functional.default", check=_check_noise),
    Operator(
        "aten::rsub", facts=Facts(bad_numbers={"self other alpha": "factor_does_not_fit", "self other": "has_boolean"})
    ),
    Operator("aten::rsub.Tensor", facts=Facts(shape_rule="rsub")),
    Operator("aten::sigmoid_backward.default", decomposition=_sigmoid_backward),
    Operator("aten::softshrink", facts=Facts(bad_numbers={"lambd": "is_bad_threshold"})),
    Operator(
        "aten::sub",
        computed=Numbers(_sub, ("alpha",)),
        facts=Facts(bad_numbers={"self other alpha": "factor_does_not_fit", "self other": "has_boolean"}),
    ),
    Operator("aten::where.self", facts=Facts(shape_rule="where")),
    Operator("aten::where.self_out", facts=Facts(shape_rule="where_out")),
)
