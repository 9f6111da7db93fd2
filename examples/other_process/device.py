# SPDX-License-Identifier: BSD-3-Clause
"""The devices: a process that owns their memory and executes their streams. It knows nothing of torch.

    python device.py SOCKET BYTES

A request is a header of numbers with data behind it. An answer has the same form, and carries the request's number. The
process takes requests one at a time, in the order in which they were sent. Each stream has its own thread for its work,
so a request never waits for a stream here. The process ends when its socket closes, however the other process has
ended.
"""

import ctypes
import enum
import mmap
import queue
import socket
import struct
import sys
import tempfile
import threading
import time


class Op(enum.IntEnum):
    """The operations of requests. The comment names the numbers that each takes, and its answer behind a colon."""

    MEM_ALLOC = 1  # device, bytes: the address
    MEM_FREE = 2  # address
    MEM_INFO = 3  # device: the free bytes
    STREAM_CREATE = 4  # stream
    STREAM_DESTROY = 5  # stream
    SYNCHRONIZE = 6  # stream: nothing, or its first failure, once all before is done
    WRITE = 7  # stream, address, and the data
    READ = 8  # stream, address, bytes: the data, once all before is done
    COPY = 9  # stream, dst, src, bytes
    FILL = 10  # stream, address, count, and the pattern
    MARK = 11  # stream: when it was reached, in nanoseconds of CLOCK_MONOTONIC, which processes share
    WAIT = 12  # stream, number of a MARK
    HOST_MAP = 13  # address, bytes, and the path of host memory that the devices use by that address
    # Requests for programs, for drivers that launch kernels.
    PROGRAM_LOAD = 14  # program, and the library: nothing
    PROGRAM_DESTROY = 15  # program
    KERNEL_GET = 16  # program, kernel, and the function's name: 1, or 0 if there is none
    LAUNCH = 17  # stream, kernel, items, and each argument behind its ARGUMENT


REQUEST = struct.Struct("=IQQQQQQ")  # Op, bytes of the data, number (0: nobody waits for an answer), four numbers
ANSWER = struct.Struct("=IQQQ")  # status, bytes of the data or of the failure's text, number of the request, a number
ARGUMENT = struct.Struct("=II")  # 0 for an address or 1 for a value, and its size in bytes

# Of driver.h.
OK, OUT_OF_MEMORY, INTERNAL = 0, 8, 13
HOST = -1

SPACING = 1 << 21  # addresses of allocations are multiples of it, and are never reused


def receive(reader, header):
    """Return the next message's numbers and data, or None once the other side has ended."""
    try:
        head = reader.read(header.size)
        if len(head) == header.size:
            numbers = header.unpack(head)
            data = reader.read(numbers[1])
            if len(data) == numbers[1]:
                return numbers, data
    except ConnectionError:
        pass
    return None


class Stream:
    """A queue with a thread that executes it. The next synchronization raises the first failure."""

    def __init__(self):
        self.work = queue.SimpleQueue()
        self.failure = None
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while (work := self.work.get()) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the next synchronization raises it
                self.failure = self.failure or error

    def raise_failure(self):
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


class Devices:
    def __init__(self, connection, memory):
        self.connection = connection
        self.sending = threading.Lock()
        self.memory = memory  # bytes of each device
        self.blocks = {}  # address -> (device, memory); replaced and never changed, since streams read it
        self.next_address = SPACING
        self.streams = {}
        self.programs = {}  # program -> its library
        self.kernels = {}  # kernel -> its function
        self.running = threading.Lock()  # one kernel at a time: additions to memory are not atomic
        self.marks = {}  # number -> threading.Event, of marks that are not reached

    def serve(self):
        reader = self.connection.makefile("rb")
        while (request := receive(reader, REQUEST)) is not None:
            (op, _, number, *numbers), data = request
            if number == 0:
                self.take(op, number, numbers, data)  # a failure is a bug in the driver: see main
            else:
                self.answer_or_fail(number, self.take, op, number, numbers, data)

    def answer(self, number, value=0, data=b"", status=OK):
        with self.sending:
            self.connection.sendall(ANSWER.pack(status, len(data), number, value) + data)

    def answer_or_fail(self, number, work, *arguments):
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - the answer carries it
            status = OUT_OF_MEMORY if isinstance(error, MemoryError) else INTERNAL
            self.answer(number, data=f"{type(error).__name__}: {error}".encode(), status=status)

    def take(self, op, number, numbers, data):
        a, b, c, d = numbers
        match op:
            case Op.MEM_ALLOC:
                self.answer(number, self.allocate(device=a, bytes=b))
            case Op.MEM_FREE:
                self.blocks = {base: block for base, block in self.blocks.items() if base != a}
            case Op.MEM_INFO:
                self.answer(number, self.free_bytes(a))
            case Op.HOST_MAP:
                with open(data, "r+b") as file:
                    self.blocks = {**self.blocks, a: (HOST, mmap.mmap(file.fileno(), b))}
                self.answer(number)
            case Op.STREAM_CREATE:
                self.streams[a] = Stream()
            case Op.STREAM_DESTROY:
                self.streams.pop(a).work.put(None)
            case Op.PROGRAM_LOAD:
                self.programs[a] = load(data)
                self.answer(number)
            case Op.PROGRAM_DESTROY:
                del self.programs[a]
            case Op.KERNEL_GET:
                self.kernels[b] = getattr(self.programs[a], data.decode(), None)
                self.answer(number, self.kernels[b] is not None)
            case _:
                stream = self.streams[a]
                stream.work.put(self.work(op, stream, number, (b, c, d), data))

    def work(self, op, stream, number, numbers, data):
        """Return the function that the stream has to call."""
        a, b, c = numbers
        match op:
            case Op.SYNCHRONIZE:
                return lambda: self.answer_or_fail(number, lambda: (stream.raise_failure(), self.answer(number)))
            case Op.WRITE:
                return lambda: self.write(a, data)
            case Op.READ:
                return lambda: self.read(number, a, b)
            case Op.COPY:
                return lambda: self.write(a, self.view(b, c))
            case Op.FILL:
                return lambda: self.write(a, data * b)
            case Op.MARK:
                self.marks[number] = threading.Event()
                return lambda: self.reach(number)
            case Op.WAIT:
                mark = self.marks.get(a)  # looked up now; None if it is already reached
                return mark.wait if mark is not None else lambda: None
            case Op.LAUNCH:
                return lambda: self.launch(self.kernels[a], b, data)
        raise ValueError(f"{op} is not an Op")

    def reach(self, number):
        self.answer(number, time.monotonic_ns())
        self.marks.pop(number).set()

    # Memory. These requests wait for no stream.

    def allocate(self, device, bytes):
        if bytes > self.free_bytes(device):
            raise MemoryError(f"{bytes} bytes asked for, {self.free_bytes(device)} of {self.memory} are free")
        address, self.next_address = self.next_address, self.next_address + -(-bytes // SPACING) * SPACING
        self.blocks = {**self.blocks, address: (device, bytearray(bytes))}
        return address

    def free_bytes(self, device):
        return self.memory - sum(len(memory) for owner, memory in self.blocks.values() if owner == device)

    def view(self, address, bytes):
        """Return the memory at an address, which may lie inside an allocation."""
        memory, offset = self.find(address, bytes)
        return memoryview(memory)[offset : offset + bytes]

    def find(self, address, bytes):
        """Return the allocation that contains this memory, and the offset in it."""
        for base, (_, memory) in self.blocks.items():
            if base <= address and address + bytes <= base + len(memory):
                return memory, address - base
        raise ValueError(f"the {bytes} bytes at {address:#x} are not memory of a device")

    def write(self, address, data):
        self.view(address, len(data))[:] = data

    def read(self, number, address, bytes):
        data = b""  # if there is no such memory, which the stream's next synchronization reports
        try:
            data = self.view(address, bytes).tobytes()
        finally:
            self.answer(number, data=data)

    # Programs are libraries. A launch translates the device's
    # addresses to addresses of this process.

    def launch(self, function, items, data):
        arguments, at = [], 0
        while at < len(data):
            kind, size = ARGUMENT.unpack_from(data, at)
            at += ARGUMENT.size
            value = data[at : at + size]
            at += size
            if kind == 0 and (address := int.from_bytes(value, sys.byteorder)) != 0:
                memory, offset = self.find(address, 1)
                arguments.append(ctypes.c_uint64(ctypes.addressof(ctypes.c_char.from_buffer(memory)) + offset))
            else:
                arguments.append(ctypes.create_string_buffer(value, size))
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        with self.running:
            function(ctypes.c_int64(items), places)


def load(library):
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        return ctypes.CDLL(file.name)


def main(handle, memory):
    devices = Devices(socket.socket(fileno=handle), memory)
    try:
        devices.serve()
    except BrokenPipeError:
        pass  # no process reads the answer
    except Exception as error:
        # Last words: the driver reports them to the next call that uses its devices.
        devices.answer(0, data=f"{type(error).__name__}: {error}".encode(), status=INTERNAL)
        raise


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
