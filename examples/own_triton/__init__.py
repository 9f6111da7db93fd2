# SPDX-License-Identifier: BSD-3-Clause
"""A driver for devices with a back end for Triton, which compiles the kernels of torch.compile.

    import torch, torch_outboard
    torch_outboard.attach("own_triton:OwnTritonDriver")
    torch.compile(lambda x: x.softmax(0) * 2)(torch.ones(3, device="own_triton"))

The base class has memory, streams and events. This class adds `triton_target`, the target that Triton compiles for, and
programs and launches. `backend.py` is the back end. `interpreter.py` stands for the device: it runs the back end's
output.
"""

import ctypes
import dataclasses
import itertools

from examples.pure_python_driver import PythonDriver
from torch_outboard import DriverError, Status
from torch_outboard.driver import TritonTarget

from . import interpreter


class OwnTritonDriver(PythonDriver):
    name = "own_triton"
    code_generator = "triton"
    # After a kernel's own arguments: memory for each block, and a null pointer.
    target = TritonTarget(
        backend="own_triton",
        arch="t1",
        language="own_triton_ir",
        warp_size=16,
        hidden=("spill", "log"),
        module=f"{__name__}.backend",
    )

    def __init__(self, **options):
        super().__init__(**options)
        self.numbers = itertools.count(1)  # of programs and kernels, never 0
        self.programs = {}  # program -> its text
        self.kernels = {}  # kernel -> (name, the function that runs it)

    def device_properties(self, device):
        # Inductor distributes work by these properties, and chooses
        # Triton's configurations by them.
        return dataclasses.replace(
            super().device_properties(device),
            multi_processor_count=4,
            warp_size=16,
            max_threads_per_block=512,
            max_threads_per_multi_processor=1024,
            regs_per_multiprocessor=65536,
        )

    def triton_target(self, device):
        return self.target

    def program_build(self, device, language, code, options):
        if language != self.target.language:
            raise DriverError(f"programs are in {self.target.language!r}, not in {language!r}", Status.INVALID_ARGUMENT)
        program = next(self.numbers)
        self.programs[program] = code.decode()
        return program

    def program_destroy(self, device, program):
        del self.programs[program]

    def kernel_get(self, device, program, name):
        if f"@{name}(" not in self.programs[program]:
            raise DriverError(f"the program has no kernel {name!r}", Status.NOT_FOUND)
        kernel = next(self.numbers)
        self.kernels[kernel] = name, interpreter.kernel(self.programs[program], name)
        return kernel

    def kernel_launch(self, device, stream, kernel, grid, block, args, shared_memory, cluster, is_cooperative):
        # Arguments are (0, an address) or (1, a number's bytes).
        name, function = self.kernels[kernel]
        *own, spill, log = args
        if len(own) != len(function.parameters) or log != (0, 0):
            raise DriverError(
                f"{name} takes {len(function.parameters)} arguments and two hidden ones, not {len(args)}",
                Status.INVALID_ARGUMENT,
            )
        numbers = [_number(value, kind) for (_, value), (_, kind) in zip(own, function.parameters, strict=True)]
        function(grid, numbers)


_TYPES = {"i1": ctypes.c_bool, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32}
_TYPES |= {"i64": ctypes.c_int64, "f32": ctypes.c_float, "f64": ctypes.c_double}


def _number(value, kind):
    if isinstance(value, int) != kind.startswith("!tt.ptr"):
        raise DriverError(f"an argument has type {kind}, but {value!r} was given", Status.INVALID_ARGUMENT)
    if isinstance(value, int):
        return value
    if len(value) != ctypes.sizeof(_TYPES[kind]):
        raise DriverError(f"an argument has type {kind}, but {len(value)} bytes were given", Status.INVALID_ARGUMENT)
    return _TYPES[kind].from_buffer_copy(value).value
