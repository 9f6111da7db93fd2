# SPDX-License-Identifier: BSD-3-Clause
"""A vendor with its own chip: the example's chip, which records launches and has limits."""

from __future__ import annotations

import ctypes
import dataclasses

from examples.own_triton import OwnTritonDriver
from examples.own_triton.backend import SPILL
from torch_outboard import DriverError, Status

SHARED = 4096


class ToyDriver(OwnTritonDriver):
    """A driver whose target names a hidden pointer that the back end's metadata lacks."""

    name = "toychip"
    target = dataclasses.replace(OwnTritonDriver.target, hidden=("spill", "log", "absent"))
    refuses = staticmethod(lambda grid, shared: shared > SHARED)

    def __init__(self, **options):
        super().__init__(**options)
        self.built = []  # (device, language, options)
        self.launched = []  # (kernel's name, grid, block, bytes of shared memory, arguments)

    def program_build(self, device, language, code, options):
        self.built.append((device, language, options))
        return super().program_build(device, language, code, options)

    def kernel_launch(self, device, stream, kernel, grid, block, args, shared_memory, cluster, is_cooperative):
        if self.refuses(grid, shared_memory):
            raise DriverError(
                f"{shared_memory} bytes of shared memory are more than there are", Status.INVALID_ARGUMENT
            )
        self.launched.append((self.kernels[kernel][0], grid, block, shared_memory, args))
        ctypes.memset(args[-2][1], 0x5A, SPILL * grid[0] * grid[1] * grid[2])
        super().kernel_launch(device, stream, kernel, grid, block, args, shared_memory, cluster, is_cooperative)
