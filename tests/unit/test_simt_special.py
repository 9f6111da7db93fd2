# SPDX-License-Identifier: BSD-3-Clause
"""Special functions of the prelude, compiled here and run on the host, return the results of the CPU's operators."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torch_outboard.codegen.dialects.host_cpp import HOST_CPP
from torch_outboard.codegen.kernel.overrides import special_functions

_KINDS = {torch.float32: ("float", "f32"), torch.float64: ("double", "f64")}
_OF_TWO = ("gammainc", "gammaincc", "igamma", "igammac", "polygamma", "zeta")
_BOUNDS = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-7, "atol": 1e-7}}
_EDGES = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    -1.0,
    -2.0,
    -2.5,
    0.5,
    1e-30,
    -1e-30,
    1e-8,
    1e30,
    -1e30,
    5.0,
    8.0,
]
_EDGES += [2.0, 1e4, 1e5, 80.0, -80.0, -26.0, 50.0, 0.1353352832366127, 0.99, 1e-20, -0.999]


def _takes_two(name: str) -> bool:
    return name in _OF_TWO or "polynomial" in name


def _reference(name: str) -> Callable[..., torch.Tensor]:
    if name == "polygamma":
        return lambda n, x: torch.stack([torch.polygamma(int(k), values) for k, values in zip(n, x, strict=True)])
    named = {"igamma": "gammainc", "igammac": "gammaincc"}
    function: Callable[..., torch.Tensor] = getattr(torch.special, named.get(name, name))
    return function


Run = Callable[..., torch.Tensor]


def _library(folder: Path, dtype: torch.dtype) -> ctypes.CDLL:
    """Compile all functions of a type; those of float as for a device without double, with float constants too."""
    kind, suffix = _KINDS[dtype]
    dialect = replace(HOST_CPP, has_double=dtype == torch.float64)
    loops = [
        f'extern "C" void {name}_{suffix}(const {kind}* x, [[maybe_unused]] const {kind}* y, {kind}* out, long n) {{\n'
        f"  for (long i = 0; i < n; ++i) out[i] = ob_{name}_{suffix}(x[i]{', y[i]' if _takes_two(name) else ''});\n}}\n"
        for name in special_functions
    ]
    (folder / f"{suffix}.cpp").write_text(dialect.source("".join(loops)))
    command = ["c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    command += ["-fsanitize=undefined,float-cast-overflow", "-fsanitize-undefined-trap-on-error"]
    command += [] if dialect.has_double else ["-fsingle-precision-constant"]
    subprocess.run([*command, f"{suffix}.cpp", "-o", f"{suffix}.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / f"{suffix}.so"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that calls a special function for each element; undefined behaviour of C ends the process."""
    folder: Path = tmp_path_factory.mktemp("special")
    libraries = {dtype: _library(folder, dtype) for dtype in _KINDS}

    def call(name: str, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.empty_like(x)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, x if y is None else y, out)]
        getattr(libraries[x.dtype], f"{name}_{_KINDS[x.dtype][1]}")(*pointers, ctypes.c_long(x.numel()))
        return out

    return call


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("dtype", _KINDS, ids=str)
@pytest.mark.parametrize("name", [name for name in special_functions if not _takes_two(name)])
def test_of_one_number(run: Run, name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    normal, uniform = torch.randn(4000, generator=generator), torch.rand(4, 2000, generator=generator)
    sizes = [normal * 3, uniform[0] * 100, uniform[1] * 1000, uniform[2] * -20, uniform[2], 10 ** (uniform[3] * 10 - 8)]
    x = torch.cat([*sizes, torch.tensor(_EDGES)]).to(dtype)
    torch.testing.assert_close(run(name, x), _reference(name)(x), equal_nan=True, **_BOUNDS[dtype])


@pytest.mark.parametrize("dtype", _KINDS, ids=str)
@pytest.mark.parametrize("name", _OF_TWO)
def test_of_two_numbers(run: Run, name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    edges = torch.cartesian_prod(torch.tensor(_EDGES), torch.tensor(_EDGES)).T
    u, v = torch.rand(2, 3, 2000, generator=generator)
    if name == "polygamma":
        x, y = (
            torch.randint(0, 6, (2000,), generator=generator).float(),
            torch.cat([v[0, :1000] * 10, v[1, :1000] * -9]),
        )
    elif name == "zeta":
        x, y = (
            torch.cat([*pair]) for pair in ((u[0] * 10 + 1, u[1] * 3 + 1, edges[0]), (v[0] * 20, v[1] * 1e4, edges[1]))
        )
    else:
        # Of the last ones, up to 10^5, the second lies within a few
        # widths of where the result changes.
        large = 10 ** (u[2] * 7 - 2)
        near = (large + torch.randn(2000, generator=generator) * large.sqrt()).abs()
        x = torch.cat([u[0] * 5, u[1] * 100, large, edges[0]])
        y = torch.cat([v[0] * 5, v[1] * 100, near, edges[1]])
    x, y = x.to(dtype), y.to(dtype)
    if name == "zeta":
        kept = ~((x > 1e20) & (y > 1))  # 0, for which torch gives NaN
        x, y = x[kept], y[kept]
    torch.testing.assert_close(run(name, x, y), _reference(name)(x, y), equal_nan=True, **_BOUNDS[dtype])


@pytest.mark.parametrize("dtype", _KINDS, ids=str)
@pytest.mark.parametrize("name", [name for name in special_functions if "polynomial" in name])
def test_polynomials(run: Run, name: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    # Hermite polynomials of higher degrees are differences of large numbers.
    degrees = 6 if "hermite" in name else 12
    uniform, normal = torch.rand(3000, generator=generator) * 2 - 1, torch.randn(2000, generator=generator) * 2
    edges = torch.cartesian_prod(torch.tensor([0.0, 1.0, -1.0, 0.5]), torch.arange(-1.0, 300, 30)).T
    x = torch.cat([uniform, normal, edges[0]]).to(dtype)
    n = torch.cat([torch.randint(0, degrees, (5000,), generator=generator), edges[1]]).to(dtype)
    # torch leaves open what comes of degrees that are no numbers, and of NaN from degree 2 on.
    want = _reference(name)(x, n)
    if "hermite" in name:
        kept = n < (12 if dtype == torch.float64 else degrees)
        x, n, want = x[kept], n[kept], want[kept]
    torch.testing.assert_close(run(name, x, n), want, equal_nan=True, **_BOUNDS[dtype])
    assert run(name, torch.full((3,), math.nan, dtype=dtype), torch.tensor([1.0, 2.0, 9.0], dtype=dtype)).isnan().all()


def test_a_kernel_gets_what_it_needs_and_no_more() -> None:
    text = HOST_CPP.source("ob_modified_bessel_k0_f32(x)")
    assert "float ob_modified_bessel_k0_f32(float x)" in text and "float ob_modified_bessel_i0_f32(float x)" in text
    assert "_f64" not in text.removeprefix(HOST_CPP.source("")) and "_k1_" not in text and "ob_philox" not in text
    assert HOST_CPP.source("x + 1").endswith(HOST_CPP.header + "\nx + 1")
