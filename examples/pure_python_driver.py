# SPDX-License-Identifier: BSD-3-Clause
"""A complete driver in pure Python: devices whose memory is host memory, and whose work is done at once.

    import torch_outboard
    torch_outboard.attach("pure_python_driver:PythonDriver", devices=2)
    torch.ones(3, device="python") + 1

A driver for real hardware has the same shape: each method calls the vendor's runtime, and `copy_async` queues instead
of copying. A slow entry can move to C on its own; see torch_outboard/driver.py.
"""

import ctypes
import itertools
import time

from torch_outboard import DeviceProperties, Driver, DriverError, Option, Status

ALIGNMENT = 512


class PythonDriver(Driver):
    name = "python"
    options = {
        "devices": Option(int, 2, "Number of devices."),
        "memory": Option(int, 1 << 30, "Bytes of each device."),
    }
    autocast = "default"

    def __init__(self, **options):
        super().__init__(**options)
        self.devices = self.option_values["devices"]
        self.memory = self.option_values["memory"]
        self.used = [0] * self.devices
        self.blocks = {}  # address -> (ctypes buffer that owns the memory, bytes)
        self.handles = itertools.count(1)  # of streams and events, never 0
        self.recorded = {}  # event -> time of its latest record, None before the first

    def device_count(self):
        return self.devices

    def device_properties(self, device):
        return DeviceProperties(name=f"Pure Python {device}", total_memory=self.memory, is_integrated=True)

    # Memory. Only `blocks` refers to the buffers, so mem_free frees them at once.

    def mem_alloc(self, device, bytes):
        if self.used[device] + bytes > self.memory:
            raise MemoryError(f"{bytes} bytes asked for, {self.memory - self.used[device]} are free")
        buffer = ctypes.create_string_buffer(bytes + ALIGNMENT)
        address = -(-ctypes.addressof(buffer) // ALIGNMENT) * ALIGNMENT
        self.blocks[address] = buffer, bytes
        self.used[device] += bytes
        return address

    def mem_free(self, device, address):
        if address not in self.blocks:
            raise DriverError(f"nothing was allocated at {address:#x}", Status.INVALID_ARGUMENT)
        self.used[device] -= self.blocks.pop(address)[1]

    def mem_info(self, device):
        return self.memory - self.used[device], self.memory

    def host_address(self, device, address, bytes):
        return address

    def copy_async(self, device, stream, dst, src, bytes, dst_device, src_device):
        ctypes.memmove(dst, src, bytes)

    def fill_async(self, device, stream, dst, pattern, count):
        if len(pattern) == 1:
            ctypes.memset(dst, pattern[0], count)
        else:
            ctypes.memmove(dst, pattern * count, len(pattern) * count)

    # Streams. Work is done when it is queued: streams are only names, and always idle.

    def stream_create(self, device, priority):
        return next(self.handles)

    def stream_destroy(self, device, stream):
        pass

    def stream_synchronize(self, device, stream):
        pass

    def stream_query(self, device, stream):
        return True

    def stream_wait_event(self, device, stream, event_device, event):
        pass

    # Events

    def event_create(self, device, flags):
        event = next(self.handles)
        self.recorded[event] = None
        return event

    def event_destroy(self, device, event):
        del self.recorded[event]

    def event_record(self, device, stream, event):
        self.recorded[event] = time.monotonic_ns()

    def event_query(self, device, event):
        return True

    def event_timestamp(self, device, event):
        if self.recorded[event] is None:
            raise DriverError("the event was not recorded", Status.FAILED_PRECONDITION)
        return self.recorded[event]
