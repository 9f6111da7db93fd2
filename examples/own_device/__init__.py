# SPDX-License-Identifier: BSD-3-Clause
"""A driver for the common chip: asynchronous, memory out of the host's reach, kernels in its own language.

    import torch_outboard
    torch_outboard.attach("own_device:OwnDeviceDriver")
    torch.ones(3, device="own_device").softmax(0)

The base class has memory, streams and events, on devices in another process. This class adds programs and launches. A
stand-in for a vendor's compiler builds a program on this side. The devices get the binary, and a launch is sent like
other work.
"""

import platform
import sys

from examples.other_process import OtherProcessDriver, known
from examples.other_process.device import ARGUMENT, Op
from examples.own_kernels.dialect import OwnKernelsGenerator
from examples.own_kernels.programs import ADDRESS, LIMIT, compiled, items_of
from torch_outboard import DeviceProperties, DriverError, Status

BINARY = "binary"


class OwnDeviceDriver(OtherProcessDriver):
    name = "own_device"
    kernel_generator = OwnKernelsGenerator  # of operators that are called
    code_generator = OwnKernelsGenerator  # of what torch.compile compiles

    def __init__(self, **options):
        super().__init__(**options)
        self.programs = {}  # program -> its binary, until program_binary has returned it
        self.entries = {}  # kernel -> its name

    def device_properties(self, device):
        # A stored program is used by devices with equal properties. "cpu": one item after the other
        # computes, with vectors. With "gpu" items share rows.
        return DeviceProperties(
            name=f"Own device {device}",
            architecture=platform.machine(),
            total_memory=self.option_values["memory"],
            max_threads_per_block=LIMIT,
            machine="cpu",
            addresses_host_memory=True,
        )

    # Programs

    def program_build(self, device, language, code, options):
        binary = code if language == BINARY else compiled(language, code, options)
        program = next(self.handles)
        self.link.request(Op.PROGRAM_LOAD, program, data=binary).wait()
        self.programs[program] = binary if language != BINARY else None
        return program

    def program_binary(self, device, program):
        binary, self.programs[program] = known(self.programs, program, "program"), None
        return binary

    def program_destroy(self, device, program):
        known(self.programs, program, "program")
        self.link.notify(Op.PROGRAM_DESTROY, program)
        del self.programs[program]

    def kernel_get(self, device, program, name):
        known(self.programs, program, "program")
        kernel = next(self.handles)
        if not self.link.request(Op.KERNEL_GET, program, kernel, data=f"run_{name}".encode()).wait().value:
            raise DriverError(f"the program has no kernel {name!r}", Status.NOT_FOUND)
        self.entries[kernel] = name
        return kernel

    def kernel_launch(self, device, stream, kernel, grid, block, args, shared_memory, cluster, is_cooperative):
        name = known(self.entries, kernel, "kernel")
        items = items_of(name, grid, block, args, shared_memory)
        given = [(kind, value.to_bytes(8, sys.byteorder) if kind == ADDRESS else value) for kind, value in args]
        data = b"".join(ARGUMENT.pack(kind, len(value)) + value for kind, value in given)
        known(self.streams, stream, "stream").notify(Op.LAUNCH, kernel, items, data=data)
