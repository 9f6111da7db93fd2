# SPDX-License-Identifier: BSD-3-Clause
"""A complete driver in Python whose devices are in another process: memory out of reach, asynchronous streams.

    import torch_outboard
    torch_outboard.attach("other_process:OtherProcessDriver", devices=2)
    torch.ones(3, device="other_process") + 1

A driver for hardware behind a queue of commands, for a simulator, for a machine elsewhere has this shape: work is sent
and not waited for, and a question is sent and answered. device.py is the other end. Mistakes are found on this side,
since they must fail in the call that makes them.
"""

import ctypes
import itertools
import queue
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from torch_outboard import DeviceProperties, Driver, DriverError, Option, Status

from .device import ANSWER, OK, REQUEST, Op, receive

HOST = -1
DEVICE_PROGRAM = Path(__file__).with_name("device.py")


class Answer:
    """What comes back for a request, once it has come."""

    def __init__(self, number):
        self.number = number
        self.has_come = threading.Event()
        self.status, self.value, self.data = OK, 0, b""

    def come(self, status, value, data):
        self.status, self.value, self.data = status, value, data
        self.has_come.set()

    def is_there(self):
        return self.has_come.is_set() and self.wait() is self

    def wait(self):
        self.has_come.wait()
        if self.status != OK:
            raise DriverError(self.data.decode(), Status(self.status))
        return self


class Link:
    """The connection to the process with the devices, for any thread.

    A thread sends and another receives, so that no caller waits to be understood, and Ctrl-C cuts no message in two.
    """

    def __init__(self, memory):
        self.connection, theirs = socket.socketpair()
        command = [sys.executable, "-I", str(DEVICE_PROGRAM), str(theirs.fileno()), str(memory)]
        # A group of its own: Ctrl-C is for this process, and the other one ends with it.
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0)
        theirs.close()
        self.lock = threading.Lock()  # of the three below
        self.numbers = itertools.count(1)
        self.pending = {}  # number -> Answer
        self.loss = None  # why the devices are lost
        self.outbox = queue.SimpleQueue()
        for work in (self._send, self._receive):
            threading.Thread(target=work, daemon=True).start()

    def tell(self, op, *numbers, data=b""):
        """Sends what is not answered."""
        self._post(0, op, numbers, data)

    def ask(self, op, *numbers):
        """Sends what is answered, and gives the Answer to come."""
        with self.lock:
            answer = Answer(next(self.numbers))
            self.pending[answer.number] = answer
        self._post(answer.number, op, numbers, b"")
        return answer

    def close(self):
        self.connection.shutdown(socket.SHUT_WR)
        self.process.wait()

    def _post(self, number, op, numbers, data):
        if self.loss is not None:
            raise DriverError(self.loss, Status.DEVICE_LOST)
        four = (*numbers, 0, 0, 0, 0)[:4]
        self.outbox.put((REQUEST.pack(op, len(data), number, *four), data))

    def _send(self):
        try:
            while True:
                head, data = self.outbox.get()
                self.connection.sendall(head)
                self.connection.sendall(data)
        except OSError:
            pass  # _receive tells the loss

    def _receive(self):
        reader, last_words = self.connection.makefile("rb"), ""
        while (message := receive(reader, ANSWER)) is not None:
            (status, _, number, value), data = message
            with self.lock:
                answer = self.pending.pop(number, None)
            if answer is not None:
                answer.come(status, value, data)
            else:
                last_words = f": {data.decode()}"
        status = self.process.wait()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"
        with self.lock:
            self.loss = f"the process with the devices, {self.process.pid}, {how}{last_words}"
            lost, self.pending = self.pending, {}
        for answer in lost.values():
            answer.come(Status.DEVICE_LOST, 0, self.loss.encode())


def known(table, handle, kind):
    """Gives what the table has for a handle."""
    try:
        return table[handle]
    except KeyError:
        raise DriverError(f"{handle:#x} is no {kind}, or none any more", Status.INVALID_ARGUMENT) from None


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
        self.streams = {}  # handle -> device
        self.events = {}  # handle -> Answer to the latest mark, None before the first

    def device_count(self):
        return self.option_values["devices"]

    def device_properties(self, device):
        return DeviceProperties(name=f"Other process {device}", total_memory=self.option_values["memory"])

    def device_open(self, device):
        with self.opening:
            self.link = self.link or Link(self.option_values["memory"])

    def destroy(self):
        if self.link is not None:
            self.link.close()

    # Memory

    def mem_alloc(self, device, bytes):
        address = self.link.ask(Op.MEM_ALLOC, device, bytes).wait().value
        self.blocks[address] = bytes
        return address

    def mem_free(self, device, address):
        known(self.blocks, address, "allocation")
        self.link.tell(Op.MEM_FREE, address)
        del self.blocks[address]

    def mem_info(self, device):
        return self.link.ask(Op.MEM_INFO, device).wait().value, self.option_values["memory"]

    def copy_async(self, device, stream, dst, src, bytes, dst_device, src_device):
        known(self.streams, stream, "stream")
        for address, side in ((dst, dst_device), (src, src_device)):
            if side != HOST:
                self.check_range(address, bytes)
        if src_device == HOST:
            # Read at once: whoever wrote it is done, since a copy to the host waits.
            self.link.tell(Op.WRITE, stream, dst, data=ctypes.string_at(src, bytes))
        elif dst_device == HOST:
            ctypes.memmove(dst, self.link.ask(Op.READ, stream, src, bytes).wait().data, bytes)
        else:
            self.link.tell(Op.COPY, stream, dst, src, bytes)

    def fill_async(self, device, stream, dst, pattern, count):
        known(self.streams, stream, "stream")
        self.check_range(dst, len(pattern) * count)
        self.link.tell(Op.FILL, stream, dst, count, data=pattern)

    def check_range(self, address, bytes):
        if not any(base <= address and address + bytes <= base + size for base, size in list(self.blocks.items())):
            raise DriverError(
                f"the {bytes} bytes at {address:#x} are not inside an allocation", Status.INVALID_ARGUMENT
            )

    # Streams

    def stream_create(self, device, priority):
        stream = next(self.handles)
        self.link.tell(Op.STREAM_CREATE, stream)
        self.streams[stream] = device
        return stream

    def stream_destroy(self, device, stream):
        known(self.streams, stream, "stream")
        self.link.tell(Op.STREAM_DESTROY, stream)
        del self.streams[stream]

    def stream_query(self, device, stream):
        known(self.streams, stream, "stream")
        return bool(self.link.ask(Op.STREAM_QUERY, stream).wait().value)

    def stream_synchronize(self, device, stream):
        known(self.streams, stream, "stream")
        self.link.ask(Op.SYNCHRONIZE, stream).wait()

    def stream_wait_event(self, device, stream, event_device, event):
        known(self.streams, stream, "stream")
        mark = known(self.events, event, "event")
        if mark is not None:
            self.link.tell(Op.WAIT, stream, mark.number)

    # Events. A mark is a request that is answered when the stream gets there: who asks for it sends nothing.

    def event_create(self, device, flags):
        event = next(self.handles)
        self.events[event] = None
        return event

    def event_destroy(self, device, event):
        known(self.events, event, "event")
        del self.events[event]

    def event_record(self, device, stream, event):
        known(self.streams, stream, "stream")
        known(self.events, event, "event")
        self.events[event] = self.link.ask(Op.MARK, stream)

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
            raise DriverError("the event was not recorded, or its mark is not reached", Status.FAILED_PRECONDITION)
        return mark.value
