# SPDX-License-Identifier: BSD-3-Clause
"""The generator 'simt': kernels in a dialect of the device's own language."""

from __future__ import annotations

import functools
import re
from typing import Any, ClassVar

from torch_outboard.codegen.dialects.cuda_cpp import CUDA_CPP
from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.host_cpp import HOST_CPP
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.dialects.ptx_units import PTX_CUDA_CPP, PTX_OPENCL_C
from torch_outboard.codegen.dialects.slang import SLANG, SLANGS, with_subgroups
from torch_outboard.codegen.dialects.slang_units import with_units
from torch_outboard.codegen.prelude import prelude
from torch_outboard.compile.cpp.generator import WrappingGenerator
from torch_outboard.compile.generator import CodeGenerator

__all__ = [
    "CudaGenerator",
    "CudaUnitsGenerator",
    "HostGenerator",
    "OpenCLGenerator",
    "OpenCLUnitsGenerator",
    "SimtGenerator",
    "SlangGenerator",
    "slang_generator",
]


_SUBGROUPS = re.compile(r"subgroups of ([1-9]\d*)")


class SimtGenerator(WrappingGenerator):
    """A generator of kernels in a dialect, which a subclass sets."""

    name = "simt"
    dialect: ClassVar[Dialect]

    def scheduling(self) -> type[Any]:
        from torch_outboard.codegen.scheduling import scheduling_for

        return scheduling_for(self.driver.name, self.dialect)

    # Host code exists only to test the generator, so only the Python wrapper calls it.

    def cpp_wrapper(self) -> type[Any]:
        return CodeGenerator.cpp_wrapper(self) if self.dialect.runs_on_host else super().cpp_wrapper()

    def model_header(self) -> str | None:
        return None if self.dialect.runs_on_host else super().model_header()

    def fx_wrapper(self) -> type[Any]:
        return CodeGenerator.fx_wrapper(self) if self.dialect.runs_on_host else super().fx_wrapper()

    def prepare_graph(self, gm: Any) -> None:
        from torch_outboard.codegen.refused import mark_unsupported

        mark_unsupported(gm, self.driver.name, self.dialect)

    def cache_key(self) -> dict[str, str]:
        return {"dialect": self.dialect.described(), "prelude": "".join(prelude(self.dialect.library))}


class OpenCLGenerator(SimtGenerator):
    """Kernels in opencl_c, for every device whose driver builds programs in this language."""

    dialect = OPENCL_C


class CudaGenerator(SimtGenerator):
    """Kernels in CUDA C++, for every device whose driver builds programs in the language "cuda"."""

    dialect = CUDA_CPP


class OpenCLUnitsGenerator(SimtGenerator):
    """Kernels in opencl_c, with matrix units through inline PTX."""

    dialect = PTX_OPENCL_C


class CudaUnitsGenerator(SimtGenerator):
    """Kernels in CUDA C++, with matrix units through inline PTX."""

    dialect = PTX_CUDA_CPP


class SlangGenerator(SimtGenerator):
    """Kernels in Slang, for devices with doubles and 16-bit types whose driver compiles Slang to SPIR-V."""

    dialect = SLANG


@functools.cache
def slang_generator(name: str, units: str = "") -> type[SimtGenerator]:
    """Return the generator of kernels in a dialect of `SLANGS`, optionally for devices with subgroups or matrix units.

    The text is a size of subgroups, such as "subgroups of 32", or matrix units, such as "32 lanes, float16 16x16x16".

    Raises
    ------
    ValueError
        If the text has another form.
    """
    dialect = SLANGS[name]
    if subgroups := _SUBGROUPS.fullmatch(units):
        dialect = with_subgroups(dialect, int(subgroups[1]))
    elif units:
        dialect = with_units(dialect, units)
    kind = f"{dialect.name.title().replace('_', '')}Generator"
    return type(kind, (SlangGenerator,), {"dialect": dialect, "__module__": __name__})


class HostGenerator(SimtGenerator):
    """Kernels in C++ for memory that the host can reach. They run items one after the other, to test generated code."""

    dialect = HOST_CPP
