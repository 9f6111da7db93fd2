# SPDX-License-Identifier: BSD-3-Clause
"""Drivers for tests of the contract in Python. They do nothing, and can be made to fail."""

from __future__ import annotations

import itertools

from torch_outboard import Driver, Option
from torch_outboard.driver import Check


class Toy(Driver):
    """Every required entry, as methods that do nothing, with memory that nothing accesses."""

    name = "toy"
    options = {"devices": Option(int, 2, "Number of devices.")}

    def __init__(self, **options):
        super().__init__(**options)
        self.handles = itertools.count(1)
        self.opened = []

    def device_count(self):
        return self.option_values["devices"]

    def device_properties(self, device):
        return {"name": f"Toy {device}", "total_memory": 1 << 30}

    def device_open(self, device):
        self.opened.append(device)

    def mem_alloc(self, device, bytes):
        return next(self.handles) << 32

    def mem_free(self, device, address):
        pass

    def copy_async(self, device, stream, dst, src, bytes, dst_device, src_device):
        pass

    def stream_create(self, device, priority):
        return next(self.handles)

    def stream_destroy(self, device, stream):
        pass

    def stream_synchronize(self, device, stream):
        pass

    def event_create(self, device, flags):
        return next(self.handles)

    def event_destroy(self, device, event):
        pass

    def event_record(self, device, stream, event):
        pass

    def event_query(self, device, event):
        return True

    def stream_wait_event(self, device, stream, event_device, event):
        pass


class Checked(Toy):
    """A driver that has something to say to `outboard doctor`."""

    def checks(self):
        return [Check("firmware", "wrong", "it is too old", "flash it")]
