# SPDX-License-Identifier: BSD-3-Clause
"""Drivers with faulty generated kernels, or without a device to run kernels."""

from __future__ import annotations

import os
from dataclasses import fields

from simt_drivers import DiscreteOpenCL

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.compile.simt.generator import OpenCLGenerator

from .toys import Toy


class _Dialect(Dialect):
    def source(self, kernel):
        if "ob_ends_the_process" in kernel:
            os._exit(9)
        return super().source(kernel)


class BadGenerator(OpenCLGenerator):
    """A generator with a wrong exp, an unknown function for sinh, and a cosh that ends the process that builds it."""

    dialect = _Dialect(
        **{field.name: getattr(OPENCL_C, field.name) for field in fields(Dialect)}
        | {
            "name": "bad",
            "language": "opencl_c",
            "float_functions": {},
            "functions": {"exp": "1.001f * exp", "sinh": "ob_is_nowhere", "cosh": "ob_ends_the_process"},
        }
    )


class Bad(DiscreteOpenCL):
    kernel_generator = BadGenerator


class Empty(Toy):
    """A driver with a generator and no device."""

    kernel_generator = "opencl_c"

    def device_count(self):
        return 0
