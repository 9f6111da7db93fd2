# SPDX-License-Identifier: BSD-3-Clause
"""The parts of kernels in a dialect: constants, indices, the prelude, which is compiled here and run on the host."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, ModularIndexing

from torch_outboard.codegen.dialects import add_dialect, find_dialect
from torch_outboard.codegen.dialects.cuda_cpp import CUDA_CPP
from torch_outboard.codegen.dialects.dialect import STORAGE_TYPES, SUFFIXES
from torch_outboard.codegen.dialects.frame import Suffixes
from torch_outboard.codegen.dialects.host_cpp import HOST_CPP
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.kernel.checks import is_never_zero
from torch_outboard.codegen.kernel.indexing import IndexPrinter
from torch_outboard.codegen.mapping.parts import columns_of_item, parts_for_groups, parts_of_reduction
from torch_outboard.codegen.prelude import needed_by, prelude
from torch_outboard.testing.plugin import RunPython

DIALECTS = (HOST_CPP, OPENCL_C, CUDA_CPP)

# Each helper as a function of one name: of arrays, so that a test calls it once.
_WRAPPED = """
#define LOOP(name, to, from, call)                                                               \\
  extern "C" void test_##name(const from* x, [[maybe_unused]] const from* y, to* out, long n) {{ \\
    for (long i = 0; i < n; ++i) out[i] = call;                                                  \\
  }}
{loops}
"""

_BINARY = ("add", "sub", "mul", "maximum", "minimum", "div", "mod", "floordiv", "remainder", "pow", "shl", "shr")


def _loops() -> str:
    lines = [
        "LOOP(to_f16, ob_u16, float, ob_to_f16(x[i]))",
        "LOOP(from_f16, float, ob_u16, ob_from_f16(x[i]))",
        "LOOP(to_bf16, ob_u16, float, ob_to_bf16(x[i]))",
        "LOOP(from_bf16, float, ob_u16, ob_from_bf16(x[i]))",
        "LOOP(erf, float, float, ob_erf_f32(x[i]))",
        "LOOP(erfinv, double, double, ob_erfinv_f64(x[i]))",
        "LOOP(rand, float, ob_i64, ob_rand(x[i], y[i]))",
        "LOOP(randn, float, ob_i64, ob_randn(x[i], y[i]))",
        "LOOP(randint, ob_i64, ob_i64, ob_randint(x[i], y[i], -3, 9))",
    ]
    for dtype in (torch.int8, torch.int32, torch.int64, torch.uint8):
        kind, name = STORAGE_TYPES[dtype], SUFFIXES[dtype]
        lines += [f"LOOP({function}_{name}, {kind}, {kind}, ob_{function}_{name}(x[i], y[i]))" for function in _BINARY]
    for function in ("maximum", "minimum", "floordiv", "remainder", "fmax"):
        lines.append(f"LOOP({function}_f32, float, float, ob_{function}_f32(x[i], y[i]))")
    return "\n".join(lines)


Run = Callable[..., torch.Tensor]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that calls a helper of the prelude for each element; undefined behaviour ends the process."""
    folder: Path = tmp_path_factory.mktemp("prelude")
    (folder / "prelude.cpp").write_text(HOST_CPP.source(_WRAPPED.format(loops=_loops())))
    command = ["c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    command += ["-Wno-type-limits", "-Wno-bool-compare", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    subprocess.run([*command, "prelude.cpp", "-o", "prelude.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "prelude.so"))

    def call(name: str, x: torch.Tensor, y: torch.Tensor | None = None, to: torch.dtype | None = None) -> torch.Tensor:
        x = x.contiguous()
        y = x if y is None else y.contiguous()
        out = torch.empty(x.shape, dtype=to or x.dtype)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y, out)]
        getattr(library, f"test_{name}")(*pointers, ctypes.c_long(x.numel()))
        return out

    return call


@pytest.mark.parametrize(("name", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_halves_are_converted_as_torch_does(run: Run, name: str, dtype: torch.dtype) -> None:
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    floats = run(f"from_{name}", halves, to=torch.float32)
    torch.testing.assert_close(floats, halves.view(dtype).float(), equal_nan=True, rtol=0, atol=0)
    # Ties and their neighbours, the limit of too large numbers, and numbers of all sizes.
    generator = torch.Generator().manual_seed(1)
    finite = floats[floats.isfinite()].sort()[0]
    ties = ((finite[1:].double() + finite[:-1].double()) / 2).float()
    above, below = (torch.nextafter(ties, torch.tensor(sign * math.inf)) for sign in (1, -1))
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).to(torch.int32).view(torch.float32)
    edges = torch.tensor([65504.0, 65519.996, 65520.0, 3.4e38, math.inf, -math.inf, -0.0, 2**-24, 2**-25, 2**-26])
    values = torch.cat([finite, ties, above, below, bits, edges])
    got = run(f"to_{name}", values, to=torch.uint16).view(dtype)
    assert torch.equal(got.isnan(), values.isnan())
    known = ~values.isnan()
    assert torch.equal(got[known].view(torch.int16), values[known].to(dtype).view(torch.int16))


_EDGES = {
    torch.int8: [-128, -127, -2, -1, 0, 1, 2, 3, 7, 8, 127],
    torch.uint8: [0, 1, 2, 3, 7, 8, 127, 128, 254, 255],
    torch.int32: [-(2**31), -(2**31) + 1, -3, -1, 0, 1, 2, 5, 31, 32, 2**31 - 1],
    torch.int64: [-(2**63), -(2**63) + 1, -3, -1, 0, 1, 2, 5, 63, 64, 2**63 - 1],
}


@pytest.mark.parametrize("dtype", _EDGES, ids=str)
@pytest.mark.parametrize("name", _BINARY)
def test_integers_wrap_as_torch_does(run: Run, name: str, dtype: torch.dtype) -> None:
    numbers = torch.tensor(_EDGES[dtype], dtype=dtype)
    x, y = (tensor.reshape(-1) for tensor in torch.meshgrid(numbers, numbers, indexing="ij"))
    if name in ("div", "mod", "floordiv", "remainder"):
        # torch raises for a divisor of 0, and the processor for the least number divided by -1.
        kept = (y != 0) & ~((y == -1) & (x == numbers.min()) if dtype.is_signed else torch.zeros_like(x).bool())
        x, y = x[kept], y[kept]
    if name == "pow":
        kept = (y >= 0) & (y < 64)
        x, y = x[kept], y[kept]
    reference: dict[str, Callable[..., Any]] = {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "mod": torch.fmod,
        "floordiv": torch.floor_divide,
        "remainder": torch.remainder,
        "pow": torch.pow,
        "shl": torch.bitwise_left_shift,
        "shr": torch.bitwise_right_shift,
    }
    assert torch.equal(run(f"{name}_{SUFFIXES[dtype]}", x, y), reference[name](x, y))


@pytest.mark.parametrize("name", ["maximum", "minimum", "floordiv", "remainder", "fmax"])
def test_floats_at_their_edges(run: Run, name: str) -> None:
    numbers = torch.tensor([-math.inf, -7.5, -1.0, -0.0, 0.0, 0.1, 1.0, 3.0, 1e30, math.inf, math.nan, 1e-3])
    x, y = (tensor.reshape(-1) for tensor in torch.meshgrid(numbers, numbers, indexing="ij"))
    reference = torch.floor_divide if name == "floordiv" else getattr(torch, name)
    torch.testing.assert_close(run(f"{name}_f32", x, y), reference(x, y), rtol=0, atol=0, equal_nan=True)


def test_the_error_function_of_floats(run: Run) -> None:
    grid = torch.cat([torch.linspace(-5, 5, 200_001), torch.logspace(-38, 1, 100_001), torch.rand(100_000)])
    wanted = torch.erf(grid.double())
    unit = torch.nextafter(wanted.float().abs(), torch.tensor(math.inf)).double() - wanted.float().abs().double()
    assert ((run("erf", grid).double() - wanted).abs() / unit).max() < 1.5
    edges = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])
    result = run("erf", edges)
    assert result[:4].tolist() == [0, 0, 1, -1] and result[:2].signbit().tolist() == [False, True] and result[4].isnan()


def test_the_inverse_of_the_error_function(run: Run) -> None:
    x = torch.cat([torch.linspace(-1, 1, 1001, dtype=torch.float64), torch.tensor([1.5, math.nan, 1 - 1e-12])])
    torch.testing.assert_close(run("erfinv", x), torch.erfinv(x), equal_nan=True, rtol=1e-9, atol=1e-12)


def test_random_numbers_have_their_moments_and_are_independent(run: Run) -> None:
    count = 1 << 20
    seed, offset = torch.full((count,), 12345, dtype=torch.int64), torch.arange(count)
    uniform, normal = run("rand", seed, offset, torch.float32), run("randn", seed, offset, torch.float32)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean().item() - 0.5) < 5 / math.sqrt(12 * count)
    assert abs(uniform.var().item() - 1 / 12) < 1e-3
    assert abs(normal.mean().item()) < 5 / math.sqrt(count)
    assert abs(normal.var().item() - 1) < 1e-2
    assert abs((normal**4).mean().item() - 3) < 0.05
    next_seed = run("rand", seed + 1, offset, torch.float32)
    for shifted in (uniform.roll(1), uniform.roll(2), next_seed):
        assert abs(torch.corrcoef(torch.stack([uniform, shifted]))[0, 1].item()) < 5 / math.sqrt(count)
    drawn = run("randint", seed, offset, torch.int64)
    assert torch.equal(drawn.unique(), torch.arange(-3, 9))
    assert (torch.bincount(drawn + 3) - count / 12).abs().max() < 6 * math.sqrt(count / 12)


def test_random_numbers_stay_what_they_are(run: Run) -> None:
    """Every driver draws the same numbers, from one release to the next."""
    seed = torch.tensor([0, 1, -5])
    assert run("rand", seed, torch.tensor([0, 1, 2**40]), torch.float32).tolist() == EXPECTED


# Of Philox 4x32-10 by its authors: its first test vector begins with 0x6627e8d5.
EXPECTED = [word / 2**24 for word in (0x6627E8, 0xAC0814, 0x20B132)]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (True, torch.bool, "((bool)1)"),
        (3, torch.float32, "(3.0f)"),
        (0.1, torch.float32, "(0.10000000149011612f)"),
        (1e300, torch.float32, "((float)OB_INFINITY)"),
        (-math.inf, torch.float64, "(-(double)OB_INFINITY)"),
        (math.nan, torch.float16, "((float)OB_NAN)"),
        (-(2**63), torch.int64, "((ob_i64)(-9223372036854775807L - 1))"),
        (-1, torch.int8, "((ob_i8)(-1))"),
        (2**40, torch.int64, "((ob_i64)1099511627776L)"),
        (2**64 - 1, torch.uint64, "((ob_u64)18446744073709551615UL)"),
    ],
)
def test_constants(value: Any, dtype: torch.dtype, text: str) -> None:
    assert all(dialect.literal(value, dtype) == text for dialect in DIALECTS)


def test_indices() -> None:
    x = sympy.Symbol("x", integer=True, nonnegative=True)
    any_sign = sympy.Symbol("y", integer=True)
    index = sympy.Symbol("tmp3", integer=True)
    show = IndexPrinter(Suffixes()).doprint
    assert show(FloorDiv(x, 4)) == "((x) / (4))"
    assert show(FloorDiv(any_sign, 4)) == "ob_floordiv_i64(y, 4)"
    assert show(ModularIndexing(x, 3, 5)) == "(((x) / (3)) % (5))"
    assert show(Max(x, any_sign)) in ("ob_maximum_i64(x, y)", "ob_maximum_i64(y, x)")
    # A loaded index may be narrow, and its product with a stride not.
    assert show(index * 7) == "7*((ob_i64)tmp3)"
    assert show(x + 2**40) == "((ob_i64)(1099511627776L)) + x"


def test_long_rows_are_split_evenly_where_they_can_be() -> None:
    assert [columns_of_item(count) for count in (1, 1023, 1024)] == [16, 16, 64]
    assert parts_of_reduction(8191, 1) == 1
    assert parts_of_reduction(1 << 24, 1) == 1024
    assert parts_of_reduction(100_000, 1) == 20
    assert parts_of_reduction(1 << 24, 2000) == 1
    assert parts_of_reduction(1_000_003, 1) == 244


def test_what_is_never_zero() -> None:
    texts = {"a": "((ob_i64)7)", "b": "((ob_i64)0)", "c": "ob_maximum_i64(x, a)", "d": "ob_maximum_i64(x, b)", "e": "x"}
    assert [is_never_zero(name, texts) for name in "abcde"] == [True, False, True, False, False]
    assert is_never_zero("ob_maximum_i32(x, ((ob_i32)1))", texts)


def test_few_rows_are_split_for_groups() -> None:
    assert [parts_for_groups(row, 1, True) for row in (8192, 16384, 1 << 24)] == [1, 2, 1024]
    assert parts_for_groups(4096, 4096, True) == 1
    # Neighbouring columns are a group's.
    assert [parts_for_groups(4096, columns, False) for columns in (32, 4096, 1 << 16)] == [32, 8, 1]
    assert parts_for_groups(100, 32, False) == 1


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_program_without_double_has_none(dialect: Any) -> None:
    text = replace(dialect, has_double=False).source("")
    assert "#define OB_HAS_DOUBLE" not in text
    assert "#define OB_HAS_DOUBLE" in dialect.source("")
    assert not replace(dialect, has_double=False).supports(torch.float64)


def test_dialects_are_known_by_one_name() -> None:
    assert find_dialect("host_cpp") is HOST_CPP
    add_dialect(OPENCL_C)
    with pytest.raises(ValueError, match="the dialect name 'opencl_c' is taken"):
        add_dialect(replace(OPENCL_C, group=7))


def test_a_kernel_has_the_members_of_families_that_it_uses() -> None:
    text = "\n".join(needed_by("ob_rsqrt_f32(x)"))
    assert "OB_DEVICE float ob_rsqrt_f32(float a)" in text and "_f64" not in text and "family" not in text
    text_of_both = "\n".join(needed_by("ob_rsqrt_f32(x) ob_rsqrt_f64(x)"))
    assert "OB_DEVICE double ob_rsqrt_f64(double a)" in text_of_both
    # What a member uses comes with it, of the same type.
    assert "ob_log_rest_f64" in "\n".join(needed_by("ob_igamma_f64")) and needed_by("ob_nowhere_f32") == []


def test_no_line_of_the_prelude_continues_and_no_word_of_a_family_is_left() -> None:
    names = {name for file in prelude() for name in re.findall(r"ob_\w+", file)}
    members = (re.sub("_S$", f"_{suffix}", name) for name in names for suffix in SUFFIXES.values())
    everything = "\n".join(needed_by(" ".join(members)))
    assert len(everything) > 50_000
    assert "\\\n" not in everything and not re.search(r"ob_\w+_S\b|^OB_DEVICE T |\(T\)", everything)


WHOLE_PRELUDE = """
import re, torch_outboard
from torch_outboard import _C
from torch_outboard.codegen.dialects.dialect import SUFFIXES
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.prelude import prelude
from torch_outboard.codegen.program import KernelRecord

if torch_outboard.attach("opencl").device_count() == 0:
    raise SystemExit(3)
names = {name for file in prelude() for name in re.findall(r"ob_\\w+", file)}
members = {re.sub("_S$", f"_{suffix}", name) for name in names for suffix in SUFFIXES.values()}
text = OPENCL_C.source("__kernel void empty(__global float* x) { /* " + "() ".join(sorted(members)) + " */ }")
record = KernelRecord("empty", "opencl_c", text.encode(), "", "empty", "w", ("1",) * 6 + ("0",))
_C.build_kernel(_C.device_kernel(record), 0)
"""


def test_the_prelude_compiles_in_opencl_c_without_a_word(run_python: RunPython, tmp_path: Path) -> None:
    """PoCL's compiler counts its warnings on the user's console."""
    answer = run_python(WHOLE_PRELUDE, env={"POCL_CACHE_DIR": str(tmp_path)}, status=None)
    if answer.returncode == 3:
        pytest.skip("capability: an OpenCL device")
    assert (answer.returncode, answer.stderr) == (0, "")
