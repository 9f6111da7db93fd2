# SPDX-License-Identifier: BSD-3-Clause
"""Drivers whose kernels come from the generator 'simt', for `pytest --driver=tests.simt_drivers:HostCpp`."""

from dataclasses import replace

import torch

from torch_outboard._discovery import find_driver
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.dialects.units import reference
from torch_outboard.compile.simt.generator import OpenCLGenerator


class HostCpp(find_driver("sim")):
    code_generator = "host_cpp"


class OpenCLC(find_driver("opencl")):
    code_generator = "opencl_c"


class Apart(find_driver("opencl")):
    """OpenCL devices whose memory the host cannot reach, so that operators run as generated kernels.

    The driver stores no programs: PoCL has its own store, and compiles each kernel again for a binary that it returns.
    """

    def __init__(self, **options):
        super().__init__(**{"host_access": False, "cache": False, **options})


class GroupsGenerator(OpenCLGenerator):
    """A generator as for a GPU: items of a group reduce rows together. The language's vectors stay unused."""

    dialect = replace(OPENCL_C, name="opencl_c_groups", language="opencl_c", vectors="")


class Groups(Apart):
    """As `Apart`, with the kernels of a GPU."""

    kernel_generator = GroupsGenerator
    code_generator = GroupsGenerator


class UnitsGenerator(OpenCLGenerator):
    """A generator as for a GPU with matrix units, which are in plain C and of a different size for each type."""

    dialect = replace(
        GroupsGenerator.dialect,
        name="opencl_c_reference",
        unroll="#pragma nounroll",  # PoCL compiles four times as fast
        units=(
            reference(torch.bfloat16),
            reference(torch.float16, has_copies=True),
            reference(torch.float32, m=8, n=4, k=2, lanes=4),
        ),
    )


class Units(Apart):
    """As `Groups`, with matrix units."""

    kernel_generator = UnitsGenerator
    code_generator = UnitsGenerator


class FloatsGenerator(OpenCLGenerator):
    """A generator as for a chip without doubles: the mere word is an error in its language."""

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
