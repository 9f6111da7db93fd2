# SPDX-License-Identifier: BSD-3-Clause
"""Elementary functions of float32 in the prelude, compiled here and run on the host, are rounded as exact ones."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable

import pytest
import torch

from torch_outboard.codegen.dialects.dialect import FLOAT_FUNCTIONS
from torch_outboard.codegen.dialects.host_cpp import HOST_CPP
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C

_EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-45,
    -1e-45,
    1e-38,
    3.4e38,
    -3.4e38,
    8.0,
    100.0,
    1000.0,
]
_EDGES += [0.5, 0.25, 2.0, math.pi, math.pi / 2, 20.0, -20.0, 88.72, 88.73, -88.8, 90.0, 10.0, -10.0, 0.24999999]

# How far results may be from exact ones, in units of the last place: in loops, and by C's library.
_BOUNDS = {"in loops": 0.51, "of the library": 4}

Run = Callable[[str, torch.Tensor], tuple[torch.Tensor, float]]


@pytest.fixture(scope="module", params=_BOUNDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that calls a function for each element, and says how near its results must be.

    Undefined behaviour of C ends the process.
    """
    folder = tmp_path_factory.mktemp("elementary")
    loops = [
        f'extern "C" void {name}(const float* x, float* out, long n) {{\n'
        f"  for (long i = 0; i < n; ++i) out[i] = {spelling}(x[i]);\n}}\n"
        for name, spelling in FLOAT_FUNCTIONS.items()
    ]
    mark = "#define OB_IN_LOOPS 1\n" if request.param == "in loops" else ""
    # Names as `sin` are C's own.
    (folder / "all.cpp").write_text(mark + HOST_CPP.source("".join(loops).replace("void ", "void of_")))
    command = ["c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    command += ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    subprocess.run([*command, "all.cpp", "-o", "all.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "all.so"))

    def call(name: str, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        out = torch.empty_like(x)
        getattr(library, f"of_{name}")(*(ctypes.c_void_p(t.data_ptr()) for t in (x, out)), ctypes.c_long(x.numel()))
        return out, _BOUNDS["of the library" if name == "tanh" else request.param]

    return call


@pytest.mark.parametrize("name", FLOAT_FUNCTIONS)
def test_it_is_near(run: Run, name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    any_bits = torch.randint(-(2**31), 2**31, (40_000,), generator=generator).to(torch.int32).view(torch.float32)
    near = torch.randn(20_000, generator=generator)
    x = torch.cat([any_bits, near * 3, near * 60, 1 + near * 1e-3, near * 1e-4, torch.tensor(_EDGES)])
    (result, bound), exact = run(name, x), getattr(torch, name)(x.double())
    expected = exact.float()
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())
    there = ~expected.isnan()
    assert torch.equal(result[there].signbit(), expected[there].signbit())
    finite = expected.isfinite()
    size = expected.abs()
    unit = (size.nextafter(torch.tensor(math.inf)) - size).double()
    assert ((result.double() - exact).abs() / unit)[finite].max() <= bound


def test_opencl_calls_them() -> None:
    assert {name: OPENCL_C.function(name, torch.float32) for name in FLOAT_FUNCTIONS} == FLOAT_FUNCTIONS
    assert OPENCL_C.function("log", torch.float64) == OPENCL_C.function("log") == "OB_LIB(log)"
