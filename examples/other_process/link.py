# SPDX-License-Identifier: BSD-3-Clause
"""The connection to the process with the devices: requests with and without an answer, and the order of each stream."""

import itertools
import queue
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from torch_outboard import DriverError, Status

from .device import ANSWER, OK, REQUEST, Op, receive

DEVICE_PROGRAM = Path(__file__).with_name("device.py")


class Answer:
    """The answer to a request, once it has arrived. `then` is called with the data before a waiting thread wakes."""

    def __init__(self, number, then):
        self.number = number
        self.then = then
        self.has_come = threading.Event()
        self.status, self.value, self.data = OK, 0, b""

    def come(self, status, value, data):
        self.status, self.value, self.data = status, value, data
        if status == OK and self.then is not None:
            self.then(data)
        self.has_come.set()

    def is_there(self):
        return self.has_come.is_set() and self.wait() is self

    def wait(self):
        self.has_come.wait()
        if self.status != OK:
            raise DriverError(self.data.decode(), Status(self.status))
        return self


class Link:
    """The connection, for any thread.

    One thread sends and another one receives. No caller waits until the devices read a request, and Ctrl-C cuts no
    message in two.
    """

    def __init__(self, memory):
        self.connection, theirs = socket.socketpair()
        command = [sys.executable, "-I", str(DEVICE_PROGRAM), str(theirs.fileno()), str(memory)]
        # A separate process group: Ctrl-C interrupts this process only,
        # and the other one ends with it.
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0)
        theirs.close()
        self.lock = threading.Lock()  # guards the three below
        self.numbers = itertools.count(1)
        self.pending = {}  # number -> Answer
        self.loss = None  # why the devices are lost
        self.outbox = queue.SimpleQueue()
        for work in (self._send, self._receive):
            threading.Thread(target=work, daemon=True).start()

    def notify(self, op, *numbers, data=b""):
        """Send a request that is not answered."""
        self._post(0, op, numbers, data)

    def request(self, op, *numbers, data=b"", then=None):
        """Send a request that is answered, and return the Answer to come."""
        with self.lock:
            answer = Answer(next(self.numbers), then)
            self.pending[answer.number] = answer
        self._post(answer.number, op, numbers, data)
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
            pass  # _receive reports the loss

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


class Stream:
    """The sender of one stream's work. It knows without a request whether the last work is done: queries never wait."""

    def __init__(self, link, handle):
        self.link, self.handle = link, handle
        self.lock = threading.Lock()  # guards `last`, the newest work
        self.last = None  # its Answer, None if it has none
        link.notify(Op.STREAM_CREATE, handle)

    def notify(self, op, *numbers, data=b""):
        with self.lock:
            self.link.notify(op, self.handle, *numbers, data=data)
            self.last = None

    def request(self, op, *numbers, then=None):
        with self.lock:
            self.last = self.link.request(op, self.handle, *numbers, then=then)
            return self.last

    def is_idle(self):
        with self.lock:
            if self.last is None:
                self.last = self.link.request(Op.MARK, self.handle)
            return self.last.has_come.is_set()
