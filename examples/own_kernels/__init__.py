# SPDX-License-Identifier: BSD-3-Clause
"""A driver for devices with a language of their own, whose operators run as generated kernels.

    import torch_outboard
    torch_outboard.attach("own_kernels:OwnKernelsDriver")
    torch.ones(3, device="own_kernels").softmax(0)

The base class has memory, streams and events. This class adds programs and launches. `dialect.py` tells the generator
how the language spells its constructs, and `compiler.py` stands for a vendor's compiler. The host cannot reach the
memory of these devices. An operator without a kernel therefore runs on copies on the CPU; under OUTBOARD_FALLBACK=error
it is an error.
"""

import itertools
import threading

from examples.pure_python_driver import PythonDriver
from torch_outboard import DeviceProperties, Driver, DriverError, Status

from . import compiler
from .dialect import OwnKernelsGenerator
from .programs import ADDRESS, compiled, items_of


class OwnKernelsDriver(PythonDriver):
    name = "own_kernels"
    kernel_generator = OwnKernelsGenerator  # of operators that are called
    code_generator = OwnKernelsGenerator  # of what torch.compile compiles

    # The host's addresses are not valid on the device.
    host_address = Driver.host_address

    def __init__(self, **options):
        super().__init__(**options)
        self.numbers = itertools.count(1)  # of programs and kernels, never 0
        self.programs = {}  # program -> its library
        self.entries = {}  # kernel -> (name, function)
        self.running = threading.Lock()

    def device_properties(self, device):
        # "cpu": one item after the other computes, with vectors. With "gpu" items share rows.
        return DeviceProperties(name=f"Own kernels {device}", total_memory=self.memory, machine="cpu")

    def program_build(self, device, language, code, options):
        program = next(self.numbers)
        self.programs[program] = compiler.load(compiled(language, code, options))
        return program

    def program_destroy(self, device, program):
        del self.programs[program]

    def kernel_get(self, device, program, name):
        function = compiler.find(self.programs[program], name)
        if function is None:
            raise DriverError(f"the program has no kernel {name!r}", Status.NOT_FOUND)
        kernel = next(self.numbers)
        self.entries[kernel] = name, function
        return kernel

    def kernel_launch(self, device, stream, kernel, grid, block, args, shared_memory, cluster, is_cooperative):
        name, function = self.entries[kernel]
        items = items_of(name, grid, block, args, shared_memory)
        given = [value.to_bytes(8, "little") if kind == ADDRESS else value for kind, value in args]
        with self.running:  # one at a time: additions to memory are not atomic
            compiler.launch(function, items, given)
