# SPDX-License-Identifier: BSD-3-Clause
"""Drivers that run kernels with NVIDIA's matrix units on the CPU, for `pytest --driver=tests.warp_drivers:Warps`.

warps.h emulates the GPU. A program in CUDA C++ or OpenCL C is compiled as C++, and calls replace its inline PTX.
"""

import atexit
import ctypes
import functools
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from examples.pure_python_driver import PythonDriver
from torch_outboard import DeviceProperties, Driver, DriverError, Status
from torch_outboard.codegen.dialects.cuda_cpp import CUDA_CPP
from torch_outboard.codegen.dialects.ptx_units import PTX_CUDA_CPP
from torch_outboard.compile.simt.generator import SimtGenerator

WORDS = Path(__file__).with_name("warps.h")
KERNEL = re.compile(r'^(?:extern "C" __global__|__kernel) void (\w+)\((.*)\) \{', re.MULTILINE)
ENTRY = """
static void of_%(name)s(void* const* arguments) { %(name)s(%(values)s); }
extern "C" const char* run_%(name)s(int groups, int items, void* const* arguments, int dynamic_bytes) {
  return warps::run(of_%(name)s, arguments, groups, items, dynamic_bytes);
}
"""
FLAGS = (
    "-std=c++20",
    "-O1",
    "-U_FORTIFY_SOURCE",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-w",
)
COMPILER = os.environ.get("CXX", "c++")
ASSEMBLY = re.compile(r"\basm( volatile)?\(((?:[^;\"]|\"[^\"]*\")*)\);")


@functools.cache
def precompiled(defined):
    """Return a copy of the header beside what the compiler made of it, which takes longer than most programs."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    header = shutil.copy(WORDS, folder.name)
    flags = [flag for flag in FLAGS if flag != "-shared"]
    subprocess.run([COMPILER, defined, *flags, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return header


def called(match):
    """Return the call that replaces a statement of inline assembly.

    The operands stand in the instruction in their order. A multiplication names its sums twice.
    """
    texts = re.split(r":(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", match[2])
    instruction = "".join(re.findall(r'"([^"]*)"', texts[0]))
    operands = [operand for text in texts[1:3] for operand in re.findall(r'"[=+]?[a-z]"\((.*?)\)(?=\s*(?:,|$))', text)]
    places = [int(number) for number in re.findall(r"%(\d+)", instruction)]
    wanted = list(range(len(operands)))
    name, is_product = instruction.split()[0].rstrip(";").lower(), instruction.startswith("mma")
    if places != wanted + (wanted[:4] if is_product else []):
        raise DriverError(f"{instruction} has the operands {operands}", Status.INVALID_ARGUMENT)
    return f"ptx_{re.sub('[^a-z0-9]', '_', name)}({', '.join(operands)});"


def host_text(text):
    """Return a program as C++ for the host."""
    entries = []
    for name, parameters in KERNEL.findall(text):
        kinds = [re.sub(r"\w+\s*$", "", parameter) for parameter in parameters.split(",")]
        values = ", ".join(f"*({kind.replace('OB_RESTRICT', '')}*)arguments[{i}]" for i, kind in enumerate(kinds))
        entries.append(ENTRY % {"name": name, "values": values})
    text = re.sub("^  OB_LOCAL ", "  static OB_LOCAL ", ASSEMBLY.sub(called, text), flags=re.MULTILINE)
    text = text.replace(CUDA_CPP.dynamic, "ob_u8* const ob_dynamic = warps::dynamic;")
    return "".join([text, *entries])


class WarpsGenerator(SimtGenerator):
    """Units of bfloat16 as they are, of float16 without the instructions that load and copy."""

    dialect = replace(
        PTX_CUDA_CPP,
        name="cuda_cpp_warps",
        units=tuple(
            replace(unit, load_left=none, load_right=none, copies=None) if unit.dtype == torch.float16 else unit
            for none, unit in itertools.product([(None, None)], PTX_CUDA_CPP.units)
        ),
    )


class Warps(PythonDriver):
    name = "warps"
    kernel_generator = WarpsGenerator
    host_address = Driver.host_address  # the host's addresses are not the devices'

    def __init__(self, **options):
        super().__init__(**options)
        self.numbers = itertools.count(1)
        self.programs, self.kernels = {}, {}

    def device_properties(self, device):
        memory = {"shared_memory_per_block": 48 << 10, "shared_memory_per_multiprocessor": 228 << 10}
        properties = {"total_memory": self.memory, **memory}
        return DeviceProperties(name=f"Warps {device}", machine="gpu", **properties)

    def program_build(self, device, language, code, options):
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "program.cpp"), Path(folder, "program.so")
            source.write_text(host_text(bytes(code).decode()))
            defined = f"-DWARPS_{language.upper()}"
            command = [COMPILER, defined, "-include", precompiled(defined), source, "-o", library, *FLAGS]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise DriverError(done.stderr, Status.PROGRAM_REFUSED)
            program = next(self.numbers)
            self.programs[program] = ctypes.CDLL(str(library))
            return program

    def program_destroy(self, device, program):
        del self.programs[program]

    def kernel_get(self, device, program, name):
        function = self.programs[program][f"run_{name}"]
        function.restype = ctypes.c_char_p
        kernel = next(self.numbers)
        self.kernels[kernel] = function
        return kernel

    def kernel_launch(self, device, stream, kernel, grid, block, args, shared_memory, cluster, is_cooperative):
        contents = [value.to_bytes(8, "little") if kind == 0 else value for kind, value in args]
        buffers = [ctypes.create_string_buffer(content, len(content)) for content in contents]
        places = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        assert grid[1:] == block[1:] == (1, 1), (grid, block)
        if failure := self.kernels[kernel](grid[0], block[0], places, shared_memory):
            raise DriverError(failure.decode(), Status.INTERNAL)


class OpenCLWarps(Warps):
    """As `Warps`, with programs in NVIDIA's OpenCL C."""

    kernel_generator = "ptx_opencl_c"
