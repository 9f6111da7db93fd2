# SPDX-License-Identifier: BSD-3-Clause
"""The programs that the driver tests build, in the tested driver's language."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_outboard.driver import Driver

if TYPE_CHECKING:
    from torch_outboard.codegen.dialects.dialect import Dialect

__all__ = ["TestPrograms", "programs_of"]


@dataclass(frozen=True)
class TestPrograms:
    """Programs in a driver's language, which `outboard test` builds and launches.

    A driver whose generators have a `Dialect` needs no test programs: the tests write them in that dialect. Other
    drivers set `test_programs` in their Driver class to a TestPrograms. Without test programs, the tests of programs
    are skipped.

    Attributes
    ----------
    language : str
        For `program_build`.
    scale : str
        A program with a kernel `scale`. Its parameters are pointers to floats x, b and out, a 32-bit integer n, a float
        a and a 64-bit integer shift. It writes out[i] = a * x[i] + b[0] + shift for each i < n. The launch has groups
        of 16 items; items beyond n write nothing.
    refused : str
        A program that the compiler refuses, with the word "unknown" in its message.
    sums : str
        A program with a kernel `sums`, whose parameters are pointers to floats x and out and a 32-bit integer n. For
        each group of 16 of the n elements of x, it writes their sum to out, using memory that the group shares. "": the
        language has no such memory.
    sums_by_argument : bool
        Whether the shared memory is another argument of the kernel, as in some languages. If not, the launch sets its
        size.
    many : callable or None
        A function that takes a number n and returns a program with a kernel `many` of n + 1 pointers to floats,
        launched with one item. The kernel sets element i of the first pointer to 1 more than the only element of
        pointer i + 1. None: kernels take few arguments.
    options : str
        For `program_build`.
    """

    language: str
    scale: str
    refused: str
    sums: str = ""
    sums_by_argument: bool = False
    many: Callable[[int], str] | None = None
    options: str = ""

    __test__ = False  # pytest would otherwise collect a class with this name


def programs_of(driver: Driver) -> TestPrograms | None:
    """Return the driver's own programs, else programs in its generators' dialect, or None if there are neither."""
    own: TestPrograms | None = driver.test_programs
    if own is not None:
        return own
    from torch_outboard.compile.generators import Generators

    kinds = Generators(driver)
    generators = [kinds.eager()] if kinds.has_eager else [] if kinds.is_by_device else [kinds.of(0)]
    dialects = [getattr(generator, "dialect", None) for generator in generators]
    return next(
        (_in_dialect(dialect) for dialect in dialects if dialect is not None and not dialect.runs_on_host), None
    )


_SCALE = "const ob_i64 i = {item}; if (i < n) out[i] = a * x[i] + b[0] + (float)shift;"

# Memory whose size the launch sets: no dialect covers this.
_SUMS = {
    "opencl_c": """
__kernel void sums(__global const float* x, __global float* out, int n, __local float* held) {
  const int item = get_local_id(0);
  held[item] = get_global_id(0) < n ? x[get_global_id(0)] : 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item == 0) {
    float sum = 0;
    for (int i = 0; i < (int)get_local_size(0); ++i) sum += held[i];
    out[get_group_id(0)] = sum;
  }
}
""",
    "cuda": """
extern "C" __global__ void sums(const float* x, float* out, int n) {
  extern __shared__ float held[];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  held[threadIdx.x] = i < n ? x[i] : 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int item = 0; item < (int)blockDim.x; ++item) sum += held[item];
    out[blockIdx.x] = sum;
  }
}
""",
}


def _in_dialect(dialect: Dialect) -> TestPrograms:
    from torch_outboard.codegen.dialects.frame import Parameter

    def program(name: str, parameters: list[Parameter], body: str) -> str:
        return dialect.source(dialect.frame(name, parameters, f"  {body}\n"))

    def many(count: int) -> str:
        names = [f"x{i}" for i in range(count)]
        body = " ".join(f"out[{i}] = *{name} + 1;" for i, name in enumerate(names))
        return program("many", [out, *(Parameter(name, "float", is_pointer=True) for name in names)], body)

    out = Parameter("out", "float", is_pointer=True, is_written=True)
    parameters = [*(Parameter(name, "float", is_pointer=True) for name in ("x", "b")), out]
    parameters += [Parameter("n", "ob_i32"), Parameter("a", "float"), Parameter("shift", "ob_i64")]
    scale = program("scale", parameters, _SCALE.format(item=dialect.item))
    language = dialect.language or dialect.name
    return TestPrograms(
        language=language,
        scale=scale,
        refused=scale.replace("a * x", "unknown * x"),
        sums=_SUMS.get(language, ""),
        sums_by_argument=language == "opencl_c",
        many=many,
        options=dialect.options,
    )
