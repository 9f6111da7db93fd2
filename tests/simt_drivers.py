# SPDX-License-Identifier: BSD-3-Clause
"""Drivers whose kernels come from the generator 'simt', for `pytest --driver=tests.simt_drivers:HostCpp`."""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import torch

from examples.pure_python_driver import PythonDriver
from tests.words import foreign_words
from torch_outboard import DeviceProperties, Driver, DriverError, Status
from torch_outboard._discovery import find_driver
from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.frame import LocalArray, Parameter
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.dialects.units import reference, reference_of_joint
from torch_outboard.compile.simt.generator import OpenCLGenerator


class HostCpp(find_driver("sim")):
    code_generator = "host_cpp"


class OpenCLC(find_driver("opencl")):
    code_generator = "opencl_c"


class DiscreteOpenCL(find_driver("opencl")):
    """OpenCL devices whose memory the host cannot reach, so that operators run as generated kernels.

    The driver stores no programs: PoCL has its own store, and compiles each kernel again for a binary that it returns.
    """

    def __init__(self, **options):
        super().__init__(**{"host_access": False, "cache": False, **options})


class Unbuilt(PythonDriver):
    """A GPU that builds no program and computes nothing, to see which plans a program needs."""

    name = "unbuilt"
    kernel_generator = "opencl_c"
    host_address = Driver.host_address  # the host's addresses are not the device's

    def __init__(self, **options):
        super().__init__(**{"memory": 8 << 30, **options})  # training steps of 100 million parameters take 1.6 GB

    def device_properties(self, device):
        sizes = {"max_threads_per_block": 1024, "shared_memory_per_block": 48 << 10, "multi_processor_count": 64}
        return DeviceProperties(
            name="unbuilt", total_memory=self.memory, machine="gpu", follows_addresses=True, **sizes
        )

    def program_build(self, device, language, code, options):
        return next(self.handles)

    def program_destroy(self, device, program):
        pass

    def kernel_get(self, device, program, name):
        return next(self.handles)

    def kernel_launch(self, *arguments, follows_addresses=False):
        pass


class AheadOfTimeGpu(Unbuilt):
    """As `Unbuilt`, of a chip "one" whose programs are compiled elsewhere: it takes the compiler's output alone."""

    architectures = {
        name: {"max_threads_per_block": 1024, "shared_memory_per_block": 48 << 10, "machine": "gpu"}
        for name in ("one", "two")
    }

    def device_properties(self, device):
        return DeviceProperties(
            name="a chip", architecture="one", total_memory=self.memory, **self.architectures["one"]
        )

    def compile_program(self, architecture, language, code, options):
        if language != "opencl_c" or b"__kernel" not in code:
            raise DriverError(f"there is no kernel in this text in {language!r}", Status.PROGRAM_REFUSED)
        return f"{architecture} {options} ".encode() + code

    def program_build(self, device, language, code, options):
        if language != "binary" or not code.startswith(f"one {options} ".encode()):
            raise DriverError(f"there is no compiler here for {language!r}", Status.PROGRAM_REFUSED)
        return next(self.handles)


class GroupsGenerator(OpenCLGenerator):
    """A generator as for a GPU: items of a group reduce rows together. The language's vectors stay unused."""

    dialect = replace(OPENCL_C, name="opencl_c_groups", language="opencl_c", vectors="")


class Groups(DiscreteOpenCL):
    """As `DiscreteOpenCL`, with the kernels of a GPU."""

    kernel_generator = GroupsGenerator
    code_generator = GroupsGenerator


class LateStoresGenerator(OpenCLGenerator):
    """As `GroupsGenerator`, for a language that can't say that pointers point to different memory."""

    dialect = replace(GroupsGenerator.dialect, name="opencl_c_late", has_restrict=False)


class LateStores(DiscreteOpenCL):
    """As `Groups`, with stores that come after the loads of several elements."""

    kernel_generator = LateStoresGenerator
    code_generator = LateStoresGenerator


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


class Units(DiscreteOpenCL):
    """As `Groups`, with matrix units."""

    kernel_generator = UnitsGenerator
    code_generator = UnitsGenerator


class JointGenerator(OpenCLGenerator):
    """As `UnitsGenerator`, with units whose lanes hold matrices jointly."""

    dialect = replace(
        UnitsGenerator.dialect,
        name="opencl_c_joint",
        units=(reference_of_joint(torch.bfloat16), reference_of_joint(torch.float16, n=8, k=8)),
    )


class Joint(DiscreteOpenCL):
    """As `Units`, with units whose lanes hold matrices jointly."""

    kernel_generator = JointGenerator
    code_generator = JointGenerator


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


class Floats(DiscreteOpenCL):
    """As `DiscreteOpenCL`, without float64."""

    kernel_generator = FloatsGenerator
    code_generator = FloatsGenerator


class StrictDialect(Dialect):
    """OpenCL C with the words that docs/vendor-questions.md lists, for a chip with little room.

    A text with another word raises, and so does a kernel that declares more local memory. In a launch of more items
    than the chip has, several items have the same number, so that elements stay uncomputed.
    """

    def frame(self, name: str, parameters: Iterable[Parameter], body: str, arrays: Iterable[LocalArray] = ()) -> str:
        arrays = tuple(arrays)
        if (memory := sum(array.bytes for array in arrays)) > LOCAL_MEMORY:
            raise ValueError(f"{name} declares {memory} bytes of local memory")
        return super().frame(name, parameters, body, arrays)

    def source(self, kernel: str) -> str:
        text = super().source(kernel)
        _, _, written = text.partition(self.header)
        if strange := foreign_words(written, self):
            raise ValueError(f"words that no language must have: {', '.join(sorted(strange))}")
        return text


LOCAL_MEMORY = 16 << 10


def strict(items: int) -> StrictDialect:
    settings = {field.name: getattr(FloatsGenerator.dialect, field.name) for field in fields(Dialect)}
    of_group, item = "((ob_i32)get_local_id(0))", f"(ob_i32)(get_local_id(0) % {items}u)"
    settings |= {
        "name": f"opencl_c_strict_{items}",
        "header": settings["header"].replace(of_group, f"({item})"),
        "item": f"((ob_i64)get_group_id(0) * (ob_i64)get_local_size(0) + {item})",
        "group": items,
        "vectors": "",
    }
    return StrictDialect(**settings)


class StrictGenerator(OpenCLGenerator):
    """A generator as for a chip with groups of 64 items and no doubles, whose language has no more than it must."""

    dialect = strict(64)


class Strict(DiscreteOpenCL):
    """As `Floats`, with groups of 64 items that have 16 KiB of local memory, and a strict compiler."""

    kernel_generator = StrictGenerator
    code_generator = StrictGenerator

    def device_properties(self, device: int) -> dict[str, Any]:
        return {
            "name": "strict",
            "architecture": "strict",
            "total_memory": 4 << 30,
            "max_threads_per_block": type(self).kernel_generator.dialect.group,
            "shared_memory_per_block": LOCAL_MEMORY,
            "machine": "gpu",
        }


class Strict32Generator(OpenCLGenerator):
    """As `StrictGenerator`, with groups of 32 items."""

    dialect = strict(32)


class Strict32(Strict):
    """As `Strict`, with groups of 32 items."""

    kernel_generator = Strict32Generator
    code_generator = Strict32Generator
