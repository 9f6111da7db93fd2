# SPDX-License-Identifier: BSD-3-Clause
"""Inductor's operations on single values, printed as C.

Every variable has a type, and each operation casts its operands explicitly, because C promotes types differently from
PyTorch. Results match PyTorch's CPU kernels, including NaN, signed zeros and overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.codegen.common import OpOverrides, pointwise_overrides_data
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler, promote_types
from torch._inductor.utils import get_bounds_index_expr
from torch._inductor.virtualized import V, ops

from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, FLOAT8, HALVES, NARROW, STORAGE_TYPES, SUFFIXES
from torch_outboard.codegen.kernel.values import cast, literal, plain, suffix, type_of

__all__ = ["SimtOverrides"]

_UNARY = "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh erfc"
unary_functions = (*_UNARY.split(), "lgamma")
_SPECIAL = """
    airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 digamma erfcx gammainc gammaincc i0 i0e i1 i1e igamma igammac
    log_ndtr modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtr ndtri polygamma
    scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0 zeta
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l
    legendre_polynomial_p
"""
# Functions whose helpers in the prelude have the same name.
special_functions = tuple(_SPECIAL.split())


def _result(name: str, *args: Any) -> torch.dtype:
    # A single shared object, which cannot be created before Inductor's lowerings are imported.
    dtype: torch.dtype = getattr(DtypePropagationOpsHandler(), name)(*args)
    return torch.float32 if dtype in NARROW else dtype


def _common(*args: Any) -> torch.dtype:
    dtype: torch.dtype = promote_types([plain(arg) for arg in args])
    return torch.float32 if dtype in NARROW else dtype


def _library(name: str, dtype: torch.dtype | None = None) -> str:
    return V.kernel.dialect.function(name, dtype)  # type: ignore[no-any-return]


def _of_library(name: str, function: str | None = None) -> Callable[..., str]:
    """Return an operation that calls a C library function. All operands are cast to the result's type."""

    def call(*args: Any) -> str:
        dtype = _result(name, *args)
        if not dtype.is_floating_point:
            dtype = torch.float32
        return f"{_library(function or name, dtype)}({', '.join(cast(x, dtype) for x in args)})"

    return call


def _of_prelude(name: str, helper: str | None = None) -> Callable[..., str]:
    def call(*args: Any) -> str:
        dtype = _result(name, *args)
        if name in special_functions and not dtype.is_floating_point:
            dtype = torch.float32
        return f"ob_{helper or name}_{suffix(dtype)}({', '.join(cast(x, dtype) for x in args)})"

    return call


def _of_kind(name: str, function: str, helper: str) -> Callable[..., str]:
    """Return an operation that calls a C library function for floating point, and a helper for integers."""

    def call(*args: Any) -> str:
        dtype = _result(name, *args)
        called = _library(function) if dtype.is_floating_point else f"ob_{helper}_{suffix(dtype)}"
        return f"{called}({', '.join(cast(x, dtype) for x in args)})"

    return call


def _of_division(name: str, helper: str, of_floating: Callable[[str, str], str] | None = None) -> Callable[..., str]:
    """Return a division or remainder: `of_floating` for floats, else a helper, which checks integers for zero."""

    def call(a: Any, b: Any) -> str:
        dtype = _result(name, a, b)
        dividend, divisor = cast(a, dtype), cast(b, dtype)
        if not dtype.is_floating_point:
            V.kernel.check_divisor(divisor)
        elif of_floating is not None:
            return of_floating(dividend, divisor)
        return f"ob_{helper}_{suffix(dtype)}({dividend}, {divisor})"

    return call


def _of_operator(name: str, sign: str, helper: str) -> Callable[..., str]:
    """Return an arithmetic operation: a C operator for floating point, a helper with wrap-around for integers."""

    def call(a: Any, b: Any) -> str:
        dtype = _result(name, a, b)
        if dtype.is_floating_point:
            return V.kernel.dialect.arithmetic(sign, cast(a, dtype), cast(b, dtype), dtype)  # type: ignore[no-any-return]
        if dtype == torch.bool:
            return f"(bool)({cast(a, torch.int32)} {sign} {cast(b, torch.int32)})"
        return f"ob_{helper}_{suffix(dtype)}({cast(a, dtype)}, {cast(b, dtype)})"

    return call


def _of_comparison(sign: str) -> Callable[..., str]:
    def call(a: Any, b: Any) -> str:
        dtype = _common(a, b)
        if dtype == torch.bool and sign not in ("==", "!="):
            dtype = torch.int32  # Slang turns it into a comparison of integers, which SPIR-V refuses
        return f"({cast(a, dtype)} {sign} {cast(b, dtype)})"

    return call


def _of_bits(name: str, sign: str) -> Callable[..., str]:
    def call(a: Any, b: Any) -> str:
        dtype = _result(name, a, b)
        return f"(({COMPUTE_TYPES[dtype]})({cast(a, dtype)} {sign} {cast(b, dtype)}))"

    return call


def _of_rounding(name: str, function: str) -> Callable[..., str]:
    def call(x: Any) -> str:
        dtype = type_of(x)
        return f"{_library(function)}({cast(x, dtype)})" if dtype.is_floating_point else str(x)

    return call


def _to_int(function: str) -> Callable[..., str]:
    def call(x: Any, dtype: torch.dtype) -> str:
        return f"(({COMPUTE_TYPES[dtype]}){_library(function)}({x}))"

    return call


class SimtOverrides(OpOverrides):
    """Inductor's operations in C. An operation missing here raises NotImplementedError with its name."""

    @staticmethod
    def constant(value: Any, dtype: torch.dtype) -> str:
        return literal(value, dtype)

    @staticmethod
    def to_dtype(x: Any, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = True) -> str:
        V.kernel.check_dtype(dtype)
        text = cast(x, dtype)
        if dtype in FLOAT8 or (dtype in HALVES and not use_compute_types):
            name = SUFFIXES[dtype]
            return f"ob_from_{name}(ob_to_{name}({text}))"
        return text

    @staticmethod
    def to_dtype_bitcast(x: Any, dtype: torch.dtype, src_dtype: torch.dtype) -> str:
        for kind in (dtype, src_dtype):
            V.kernel.check_dtype(kind)
        if src_dtype in NARROW:
            bits = f"ob_to_{SUFFIXES[src_dtype]}({x})"
        elif src_dtype.is_floating_point:
            bits = f"OB_AS_U{src_dtype.itemsize * 8}({x})"
        else:
            bits = str(x)
        if dtype in NARROW:
            return f"ob_from_{SUFFIXES[dtype]}(({STORAGE_TYPES[dtype]}){bits})"
        if dtype.is_floating_point:
            return f"OB_AS_F{dtype.itemsize * 8}((ob_u{dtype.itemsize * 8}){bits})"
        return f"({bits} != 0)" if dtype == torch.bool else f"(({COMPUTE_TYPES[dtype]}){bits})"

    @staticmethod
    def index_expr(expr: sympy.Expr, dtype: torch.dtype) -> Any:
        kernel = V.kernel
        text = kernel.index_to_str(kernel.prepare_indexing(expr))
        # Sizes also occur in fractions, such as 1 / N in the gradient of a mean.
        kind, known = ("ob_i64", torch.int64) if expr.is_integer else ("ob_real", kernel.dialect.real)
        variable = kernel.cse.generate(
            kernel.compute, f"({kind})({text})", bounds=get_bounds_index_expr(expr), dtype=known, shape=()
        )
        return ops.to_dtype(variable, dtype)

    @staticmethod
    def value_expr(expr: sympy.Expr, dtype: torch.dtype) -> Any:
        return SimtOverrides.index_expr(expr, dtype)

    @staticmethod
    def masked(mask: Any, body: Callable[[], Any], other: Any) -> Any:
        return V.kernel.masked(mask, body, other)

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> str:
        dtype = _result("where", condition, yes, no)
        return f"({cast(condition, torch.bool)} ? {cast(yes, dtype)} : {cast(no, dtype)})"

    # Arithmetic.

    add = staticmethod(_of_operator("add", "+", "add"))
    sub = staticmethod(_of_operator("sub", "-", "sub"))
    mul = staticmethod(_of_operator("mul", "*", "mul"))
    mul_rn = staticmethod(_of_operator("mul_rn", "*", "mul"))

    @staticmethod
    def truediv(a: Any, b: Any) -> str:
        dtype = _common(a, b)
        dtype = dtype if dtype.is_floating_point else torch.float32
        return f"({cast(a, dtype)} / {cast(b, dtype)})"

    int_truediv = truediv
    div_rn = truediv  # type: ignore[assignment]

    fma = staticmethod(_of_library("fma"))

    @staticmethod
    def neg(x: Any) -> str:
        dtype = type_of(x)
        return f"(-{x})" if dtype.is_floating_point else f"ob_neg_{suffix(dtype)}({x})"

    @staticmethod
    def abs(x: Any) -> str:
        dtype = type_of(x)
        if dtype == torch.bool:
            return str(x)
        return f"{_library('fabs')}({x})" if dtype.is_floating_point else f"ob_abs_{suffix(dtype)}({x})"

    mod = staticmethod(_of_division("mod", "mod", lambda a, b: f"{_library('fmod')}({a}, {b})"))
    fmod = staticmethod(_of_division("fmod", "mod", lambda a, b: f"{_library('fmod')}({a}, {b})"))
    truncdiv = staticmethod(_of_division("truncdiv", "div", lambda a, b: f"{_library('trunc')}({a} / {b})"))
    floordiv = staticmethod(_of_division("floordiv", "floordiv"))
    remainder = staticmethod(_of_division("remainder", "remainder"))
    pow = staticmethod(_of_kind("pow", "pow", "pow"))

    @staticmethod
    def maximum(a: Any, b: Any) -> str:
        return _extreme("maximum", "||", a, b)

    @staticmethod
    def minimum(a: Any, b: Any) -> str:
        return _extreme("minimum", "&&", a, b)

    @staticmethod
    def fmaximum(a: Any, b: Any) -> str:
        dtype = _common(a, b)
        name = "fmax" if dtype.is_floating_point else "maximum"
        return f"ob_{name}_{suffix(dtype)}({cast(a, dtype)}, {cast(b, dtype)})"

    @staticmethod
    def sign(x: Any) -> str:
        dtype = type_of(x)
        return str(x) if dtype == torch.bool else f"ob_sign_{suffix(dtype)}({x})"

    @staticmethod
    def relu(x: Any) -> str:
        dtype = type_of(x)
        if dtype == torch.bool:
            return str(x)
        if dtype.is_floating_point:
            return f"ob_relu_{suffix(dtype)}({x})"
        return f"ob_maximum_{suffix(dtype)}({x}, 0)"

    # Comparisons, logic, bits.

    eq = staticmethod(_of_comparison("=="))
    ne = staticmethod(_of_comparison("!="))
    lt = staticmethod(_of_comparison("<"))
    le = staticmethod(_of_comparison("<="))
    gt = staticmethod(_of_comparison(">"))
    ge = staticmethod(_of_comparison(">="))

    @staticmethod
    def logical_and(a: Any, b: Any) -> str:
        return f"({cast(a, torch.bool)} && {cast(b, torch.bool)})"

    @staticmethod
    def logical_or(a: Any, b: Any) -> str:
        return f"({cast(a, torch.bool)} || {cast(b, torch.bool)})"

    @staticmethod
    def logical_xor(a: Any, b: Any) -> str:
        return f"({cast(a, torch.bool)} != {cast(b, torch.bool)})"

    @staticmethod
    def logical_not(a: Any) -> str:
        return f"(!{cast(a, torch.bool)})"

    and_ = bitwise_and = staticmethod(_of_bits("bitwise_and", "&"))
    or_ = bitwise_or = staticmethod(_of_bits("bitwise_or", "|"))
    xor = bitwise_xor = staticmethod(_of_bits("bitwise_xor", "^"))

    @staticmethod
    def bitwise_not(x: Any) -> str:
        dtype = type_of(x)
        return f"(!{x})" if dtype == torch.bool else f"(({COMPUTE_TYPES[dtype]})~{x})"

    lshift = bitwise_left_shift = staticmethod(_of_prelude("bitwise_left_shift", "shl"))
    rshift = bitwise_right_shift = staticmethod(_of_prelude("bitwise_right_shift", "shr"))

    @staticmethod
    def isnan(x: Any) -> str:
        dtype = type_of(x)
        return f"ob_isnan_{suffix(dtype)}({x})" if dtype.is_floating_point else "((bool)0)"

    @staticmethod
    def isinf(x: Any) -> str:
        dtype = type_of(x)
        return f"ob_isinf_{suffix(dtype)}({x})" if dtype.is_floating_point else "((bool)0)"

    @staticmethod
    def signbit(x: Any) -> str:
        dtype = type_of(x)
        return f"ob_signbit_{suffix(dtype)}({x})" if dtype.is_floating_point else f"({x} < 0)"

    # Rounding.

    floor = staticmethod(_of_rounding("floor", "floor"))
    ceil = staticmethod(_of_rounding("ceil", "ceil"))
    trunc = staticmethod(_of_rounding("trunc", "trunc"))
    round = staticmethod(_of_rounding("round", "rint"))
    floor_to_int = staticmethod(_to_int("floor"))
    ceil_to_int = staticmethod(_to_int("ceil"))
    trunc_to_int = staticmethod(_to_int("trunc"))
    round_to_int = staticmethod(_to_int("rint"))

    # Functions.

    rsqrt = staticmethod(_of_prelude("rsqrt"))
    sigmoid = staticmethod(_of_prelude("sigmoid"))
    erf = staticmethod(_of_prelude("erf"))
    erfinv = staticmethod(_of_prelude("erfinv"))
    atan2 = staticmethod(_of_library("atan2"))
    copysign = staticmethod(_of_library("copysign"))
    hypot = staticmethod(_of_library("hypot"))
    nextafter = staticmethod(_of_library("nextafter"))

    @staticmethod
    def ldexp(x: Any, n: Any) -> str:
        return f"{_library('ldexp')}({x}, (int){n})"

    @staticmethod
    def frexp(x: Any) -> Any:
        kernel = V.kernel
        key = f"frexp({x})"
        if (known := kernel.cse.try_get(key)) is not None:
            return known
        dtype = torch.float32 if type_of(x) in NARROW else type_of(x)
        mantissa = kernel.cse.newvar(dtype=dtype, shape=())
        exponent = kernel.cse.newvar(dtype=torch.int32, shape=())
        written = kernel.dialect.written_by_call(str(exponent))
        kernel.compute.writeline(f"int {exponent};")
        kernel.compute.writeline(f"{COMPUTE_TYPES[dtype]} {mantissa} = {_library('frexp')}({x}, {written});")
        kernel.cse.put(key, (mantissa, exponent))
        return mantissa, exponent

    # Random numbers.

    @staticmethod
    def rand(seed: Any, offset: Any) -> str:
        return f"ob_rand({seed}, {offset})"

    @staticmethod
    def randn(seed: Any, offset: Any) -> str:
        return f"ob_randn({seed}, {offset})"

    @staticmethod
    def randint64(seed: Any, offset: Any, low: Any, high: Any) -> str:
        return f"ob_randint({seed}, {offset}, {low}, {high})"


def _extreme(name: str, of_bool: str, a: Any, b: Any) -> str:
    dtype = _result(name, a, b)
    if dtype == torch.bool:
        return f"({cast(a, dtype)} {of_bool} {cast(b, dtype)})"
    return f"ob_{name}_{suffix(dtype)}({cast(a, dtype)}, {cast(b, dtype)})"


def _missing(name: str) -> Callable[..., Any]:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"the code generator 'simt' has no ops.{name}")

    missing.is_unimplemented = True  # type: ignore[attr-defined]
    return missing


for _name in unary_functions:
    setattr(SimtOverrides, _name, staticmethod(_of_library(_name)))
for _name in special_functions:
    setattr(SimtOverrides, _name, staticmethod(_of_prelude(_name)))
for _name in pointwise_overrides_data:
    if _name not in vars(SimtOverrides):
        setattr(SimtOverrides, _name, staticmethod(_missing(_name)))
