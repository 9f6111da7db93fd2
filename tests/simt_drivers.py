# SPDX-License-Identifier: BSD-3-Clause
"""Drivers whose kernels come from the generator 'simt', for `pytest --driver=tests.simt_drivers:HostCpp`."""

from dataclasses import replace

from torch_outboard._discovery import find_driver
from torch_outboard.codegen.opencl_c import OPENCL_C
from torch_outboard.compile.simt.generator import OpenCLGenerator


class HostCpp(find_driver("sim")):
    code_generator = "host_cpp"


class OpenCLC(find_driver("opencl")):
    code_generator = "opencl_c"


class Apart(find_driver("opencl")):
    """OpenCL devices whose memory the host can't reach, so that operators run as generated kernels.

    The driver keeps no programs: PoCL keeps its own, and compiles each kernel once more for a binary that it hands out.
    """

    def __init__(self, **options):
        super().__init__(**{"host_access": False, "cache": False, **options})


class GroupsGenerator(OpenCLGenerator):
    """As for a GPU: items of a group reduce rows together. The language has vectors, of which this knows nothing."""

    dialect = replace(OPENCL_C, name="opencl_c_groups", language="opencl_c", vectors="")


class Groups(Apart):
    """As `Apart`, with the kernels of a GPU."""

    kernel_generator = GroupsGenerator
    code_generator = GroupsGenerator


class FloatsGenerator(OpenCLGenerator):
    """As for a chip without doubles: the word alone is a mistake in its language."""

    dialect = replace(
        OPENCL_C,
        name="opencl_c_floats",
        language="opencl_c",
        header="#define double there_is_no_double\n" + OPENCL_C.header,
        atomics=OPENCL_C.atomics - {"f64"},
        has_double=False,
    )


class Floats(Apart):
    """As `Apart`, without float64."""

    kernel_generator = FloatsGenerator
    code_generator = FloatsGenerator
