# SPDX-License-Identifier: BSD-3-Clause
"""A complete driver in Python whose devices are in another process: memory out of reach, asynchronous streams.

    import torch_outboard
    torch_outboard.attach("other_process:OtherProcessDriver", devices=2)
    torch.ones(3, device="other_process") + 1

Drivers for hardware behind a command queue, for a simulator or for a remote machine have the same structure. Work is
sent and not waited for; a question is sent and answered. link.py is the connection, device.py the other end.

This side checks arguments, because a mistake must fail in the call that makes it. A query never waits: it reads the
answers that have arrived.
"""

import ctypes
import itertools
import mmap
import os
import threading

from torch_outboard import DeviceProperties, Driver, DriverError, Option, Status

from .device import Op
from .link import Link, Stream

HOST = -1


def known(table, handle, kind):
    """Return the table's entry for a handle; raise DriverError for an unknown handle."""
    try:
        return table[handle]
    except KeyError:
        raise DriverError(f"{handle:#x} is not a live {kind}", Status.INVALID_ARGUMENT) from None


def is_within(sizes, address, bytes):
    """Return whether all these bytes lie within one allocation; `sizes` maps addresses to bytes."""
    return any(base <= address and address + bytes <= base + size for base, size in sizes.items())


class OtherProcessDriver(Driver):
    name = "other_process"
    options = {
        "devices": Option(int, 2, "Number of devices."),
        "memory": Option(int, 1 << 30, "Bytes of each device."),
    }
    autocast = "default"

    def __init__(self, **options):
        super().__init__(**options)
        self.opening = threading.Lock()
        self.link = None
        self.handles = itertools.count(1)  # of streams and events, never 0
        self.blocks = {}  # address -> bytes
        self.pinned = {}  # address of host memory -> the memory, which the devices map too
        self.streams = {}  # handle -> Stream
        self.events = {}  # handle -> Answer to the latest mark, None before the first

    def device_count(self):
        return self.option_values["devices"]

    def device_properties(self, device):
        return DeviceProperties(name=f"Other process {device}", total_memory=self.option_values["memory"])

    def device_open(self, device):
        self.opened()

    def opened(self):
        with self.opening:
            self.link = self.link or Link(self.option_values["memory"])
        return self.link

    def destroy(self):
        if self.link is not None:
            self.link.close()

    # Memory

    def mem_alloc(self, device, bytes):
        address = self.link.request(Op.MEM_ALLOC, device, bytes).wait().value
        self.blocks[address] = bytes
        return address

    def mem_free(self, device, address):
        known(self.blocks, address, "allocation")
        self.link.notify(Op.MEM_FREE, address)
        del self.blocks[address]

    def mem_info(self, device):
        return self.link.request(Op.MEM_INFO, device).wait().value, self.option_values["memory"]

    def host_alloc(self, bytes):
        link, file = self.opened(), os.memfd_create("pinned")
        try:
            os.truncate(file, bytes)
            memory = mmap.mmap(file, bytes)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            link.request(Op.HOST_MAP, address, bytes, data=f"/proc/{os.getpid()}/fd/{file}".encode()).wait()
        finally:
            os.close(file)
        self.pinned[address] = memory
        return address

    def host_free(self, pointer):
        known(self.pinned, pointer, "host memory")
        self.link.notify(Op.MEM_FREE, pointer)
        del self.pinned[pointer]

    def is_pinned(self, address, bytes):
        return is_within({start: len(memory) for start, memory in list(self.pinned.items())}, address, bytes)

    def copy_async(self, device, stream, dst, src, bytes, dst_device, src_device):
        queue = known(self.streams, stream, "stream")
        for address, side in ((dst, dst_device), (src, src_device)):
            if side != HOST:
                self.check_range(address, bytes)
        host = dst if dst_device == HOST else src if src_device == HOST else None
        if host is None or self.is_pinned(host, bytes):
            queue.notify(Op.COPY, dst, src, bytes)
        elif src_device == HOST:
            # Read at once: earlier writes are done, since the host
            # waits for each copy to such memory.
            queue.notify(Op.WRITE, dst, data=ctypes.string_at(src, bytes))
        else:
            queue.request(Op.READ, src, bytes, then=lambda data: ctypes.memmove(dst, data, len(data)))

    def fill_async(self, device, stream, dst, pattern, count):
        queue = known(self.streams, stream, "stream")
        self.check_range(dst, len(pattern) * count)
        queue.notify(Op.FILL, dst, count, data=pattern)

    def check_range(self, address, bytes):
        if not is_within(dict(self.blocks), address, bytes):
            raise DriverError(
                f"the {bytes} bytes at {address:#x} are not inside an allocation", Status.INVALID_ARGUMENT
            )

    # Streams

    def stream_create(self, device, priority):
        stream = next(self.handles)
        self.streams[stream] = Stream(self.link, stream)
        return stream

    def stream_destroy(self, device, stream):
        known(self.streams, stream, "stream").notify(Op.STREAM_DESTROY)
        del self.streams[stream]

    def stream_query(self, device, stream):
        return known(self.streams, stream, "stream").is_idle()

    def stream_synchronize(self, device, stream):
        known(self.streams, stream, "stream").request(Op.SYNCHRONIZE).wait()

    def stream_wait_event(self, device, stream, event_device, event):
        queue = known(self.streams, stream, "stream")
        mark = known(self.events, event, "event")
        if mark is not None:
            queue.notify(Op.WAIT, mark.number)

    # Events. A mark is a request that is answered when the stream
    # reaches it: a query sends nothing.

    def event_create(self, device, flags):
        event = next(self.handles)
        self.events[event] = None
        return event

    def event_destroy(self, device, event):
        known(self.events, event, "event")
        del self.events[event]

    def event_record(self, device, stream, event):
        known(self.events, event, "event")
        self.events[event] = known(self.streams, stream, "stream").request(Op.MARK)

    def event_query(self, device, event):
        mark = known(self.events, event, "event")
        return mark is None or mark.is_there()

    def event_synchronize(self, device, event):
        mark = known(self.events, event, "event")
        if mark is not None:
            mark.wait()

    def event_timestamp(self, device, event):
        mark = known(self.events, event, "event")
        if mark is None or not mark.is_there():
            raise DriverError("the event was not recorded, or is not complete", Status.FAILED_PRECONDITION)
        return mark.value
