# SPDX-License-Identifier: BSD-3-Clause
"""Kernels that report errors: in memory that the host reaches, in their own memory, or through copies."""

from __future__ import annotations

import pytest

BEGIN = """
import ctypes, sys, threading, pytest, torch, torch_outboard
from torch_outboard import _C, CaptureError, Driver
from unit.programs import ProgramDriver
from torch_outboard.codegen.program import KernelRecord

# As codegen/prelude/failure.h writes it.
TEXT = '''
import ctypes
class Record(ctypes.Structure):
    _fields_ = [("taken", ctypes.c_uint32), ("check", ctypes.c_uint32), ("ticket", ctypes.c_uint64),
                ("index", ctypes.c_int64), ("size", ctypes.c_int64), ("which", ctypes.c_uint32),
                ("erased", ctypes.c_uint32), ("seal", ctypes.c_uint64)]
def f(x, index, at, ticket, which):
    ticket, which, index = (int.from_bytes(value, "little", signed=True) for value in (ticket, which, index))
    record = Record.from_address(at)
    if index < 8 or record.taken != record.erased:
        return
    check = 1 if index == 99 else 0
    record.taken += 1
    record.check, record.ticket, record.which = check, ticket, which
    record.index, record.size = index, 8
    record.seal = ticket ^ index ^ 8 ^ which << 32 ^ check ^ 0x6f7574626f617264
'''

class Reached(ProgramDriver):
    copies = 0
    is_lost = False
    destroyed = None

    def before_record_copy(self):
        pass

    def copy_async(self, device, stream, dst, src, bytes, dst_device, src_device):
        self.copies += bytes == 64
        if bytes == 64:
            self.before_record_copy()
        if stream == self.destroyed:
            raise torch_outboard.DriverError("there is no such stream", torch_outboard.Status.INVALID_ARGUMENT)
        if self.is_lost:
            raise torch_outboard.DriverError("it is gone", torch_outboard.Status.DEVICE_LOST)
        super().copy_async(device, stream, dst, src, bytes, dst_device, src_device)

class Copied(Reached):
    host_address = Driver.host_address

class Pinned(Copied):
    def __init__(self, **options):
        super().__init__(**options)
        self.pinned = []

    def device_properties(self, device):
        return {"name": "pinned", "total_memory": self.memory, "addresses_host_memory": True, "machine": "gpu"}

    def host_alloc(self, bytes):
        block = ctypes.create_string_buffer(bytes + 64)
        self.pinned.append(block)  # each device's records live in a block of its own
        return -(-ctypes.addressof(block) // 64) * 64

    def host_free(self, pointer):
        raise AssertionError("records are kept")

kind = {"reached": Reached, "copied": Copied, "pinned": Pinned}[sys.argv[1]]
driver = kind()
module = torch_outboard.attach(driver)
checks = ("index aten::index", "assert all is well")
kernel = _C.device_kernel(KernelRecord("kernel", "python", TEXT.encode(), "", "f", "wie", ("1",) * 6 + ("0",), checks))
plain = _C.device_kernel(KernelRecord("plain", "python", b"def f(*values): pass", "", "f", "wi", ("1",) * 6 + ("0",)))
x = torch.zeros(8, device="programs")
INDEX = "aten::index: index {} is out of bounds for a dimension of size 8 .*in the kernel kernel"

def raises(index, wait):
    with pytest.raises(IndexError, match=INDEX.format(index)):
        wait()
"""

PLACES = ("reached", "copied", "pinned")


@pytest.mark.parametrize("place", PLACES)
def test_a_wait_raises_the_first_failure_once(run_python, place):
    run_python(
        BEGIN
        + """
memory = dict(driver.blocks)
plain(x, 9)
module.synchronize()
assert driver.blocks == memory and driver.copies == 0, "what checks nothing has no part in it"
assert [len(args) for *_, args in driver.launched] == [2]
kernel(x, 7)
module.synchronize()
kernel(x, 8)
kernel(x, 9)  # what fails then is dropped
kernel(x, 3)
raises(8, module.current_stream().synchronize)
module.current_stream().synchronize()
for index in (10, 11):
    kernel(x, index)
    raises(index, module.synchronize)
    module.synchronize()
kernel(x, 12)
raises(12, x.cpu)
assert x.tolist() == [0] * 8
kernel(x, 99)
with pytest.raises(RuntimeError, match="^all is well .*in the kernel kernel"):
    module.synchronize()
assert (driver.copies > 0) == (sys.argv[1] == "copied")
count = driver.copies
module.synchronize()
plain(x, 9)
module.synchronize()
assert driver.copies == count, "nothing that checks was queued since the last wait"
assert module.get_device_properties(0).machine == ("gpu" if sys.argv[1] == "pinned" else "")
""",
        place,
    )


@pytest.mark.parametrize("place", PLACES)
def test_only_waits_behind_it_raise_it(run_python, place):
    run_python(
        BEGIN
        + """
side, other = torch.Stream("programs:0"), torch.Stream("programs:0")
far = torch.Stream("programs:1")
with module.stream(side):
    kernel(x, 1)
    before = side.record_event()
    kernel(x, 8)
    behind = side.record_event()
before.synchronize()
other.synchronize()
module.current_stream().synchronize()
other.wait_event(before)
other.synchronize()
other.wait_event(behind)
raises(8, other.synchronize)
other.synchronize()
far.wait_event(behind)  # of another device
raises(8, far.synchronize)
raises(8, behind.synchronize)
side.synchronize()

# Another device's streams have records of their own.
with torch.Stream("programs:1") as current:
    kernel(x.to("programs:1"), 12)
module.synchronize(0)
raises(12, lambda: module.synchronize(1))
external = module.get_stream_from_external(12345, 0)
with module.stream(external):
    kernel(x, 13)
side.synchronize()
raises(13, external.synchronize)

# Several streams, a thread each, all at once.
start, raised = threading.Barrier(4), {}

def work(number):
    stream = torch.Stream("programs:0")
    start.wait()
    for turn in range(25):
        with module.stream(stream):
            kernel(x, 100 + number)
        try:
            stream.synchronize()
        except IndexError as error:
            raised.setdefault(number, []).append(f"index {100 + number} is" in str(error))

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert raised == {number: [True] * 25 for number in range(4)}, raised
""",
        place,
    )


@pytest.mark.parametrize("place", PLACES)
def test_a_replay_writes_to_the_record_of_its_stream(run_python, place):
    run_python(
        BEGIN
        + """
index = torch.full((), 5.0)
graph = module.Graph()
with module.graph(graph):
    kernel(x, 8)
    plain(x, 1)
    kernel(x, 3)
assert len(driver.launched) == 0
module.synchronize()
for stream in (torch.Stream("programs:0"), module.default_stream(0)):
    for _ in range(2):
        with module.stream(stream):
            graph.replay()
        torch.Stream("programs:0").synchronize()
        raises(8, stream.synchronize)
        stream.synchronize()
raises(8, lambda: (graph.replay(), module.synchronize()))
""",
        place,
    )


def test_it_is_raised_at_the_call_if_calls_wait(run_python):
    run_python(
        BEGIN
        + """
raises(8, lambda: kernel(x, 8))
kernel(x, 7)
""",
        "copied",
        env={"OUTBOARD_BLOCKING": "1"},
    )


def test_a_lost_device_says_that_it_is_lost(run_python):
    run_python(
        BEGIN
        + """
kernel(x, 8)
driver.is_lost = True
with pytest.raises(torch.AcceleratorError, match="it is gone"):
    module.synchronize()
driver.is_lost = False
with pytest.raises(torch.AcceleratorError, match="it is gone"):
    module.synchronize()
kernel(torch.zeros(8, device="programs:1"), 9)
raises(9, lambda: module.synchronize(1))
""",
        "copied",
    )


def test_a_stream_that_its_owner_has_destroyed_is_said_once(run_python):
    run_python(
        BEGIN
        + """
external = module.get_stream_from_external(12345, 0)
with module.stream(external):
    kernel(x, 8)
driver.destroyed = 12345
with pytest.raises(ValueError, match="no such stream"):
    module.synchronize()
module.synchronize()
kernel(x, 9)
raises(9, module.synchronize)
""",
        "copied",
    )


CAPTURING = (
    BEGIN.replace(
        "kind =",
        """
def capturing(base):
    class Capturing(base):
        def __init__(self, **options):
            super().__init__(**options)
            self.captures, self.graphs = {}, {}

        def graph_capture_begin(self, device, stream):
            self.captures[stream] = []

        def graph_capture_end(self, device, stream):
            graph = next(self.handles)
            self.graphs[graph] = self.captures.pop(stream)
            return graph

        def graph_instantiate(self, device, graph):
            executable = next(self.handles)
            self.graphs[executable] = self.graphs[graph]
            return executable

        def graph_launch(self, device, stream, executable):
            for work in self.graphs[executable]:
                super().kernel_launch(device, stream, *work)

        def graph_destroy(self, device, graph):
            del self.graphs[graph]

        graph_executable_destroy = graph_destroy

        def kernel_launch(self, device, stream, kernel, grid, block, args, shared_memory, cluster, is_cooperative):
            work = kernel, grid, block, args, shared_memory, cluster, is_cooperative
            if stream in self.captures:
                self.captures[stream].append(work)
            else:
                super().kernel_launch(device, stream, *work)
    return Capturing

Reached, Copied, Pinned = map(capturing, (Reached, Copied, Pinned))
kind =""",
    )
    + """
# The index is the tensor's first number, so that replays of one launch differ.
text = TEXT.replace("def f(x, index, at", "def f(x, at").replace(
    "ticket, which, index = (", "index = int(ctypes.c_float.from_address(x).value)\\n    ticket, which = (").replace(
    "(ticket, which, index))", "(ticket, which))")
kernel = _C.device_kernel(KernelRecord("kernel", "python", text.encode(), "", "f", "we", ("1",) * 6 + ("0",), checks))

def captured(x):
    graph = module.Graph()
    with module.graph(graph):
        kernel(x)
    return graph
"""
)


@pytest.mark.parametrize("place", ("reached", "pinned"))
def test_each_replay_of_a_drivers_graph_reports_its_failure(run_python, place):
    run_python(
        CAPTURING
        + """
graph = captured(x)
for index in (0, 8, 8, 7, 9, 99, 1):
    x.fill_(index)
    graph.replay()
    if index == 99:
        with pytest.raises(RuntimeError, match="^all is well .*in the kernel kernel"):
            module.synchronize()
    elif index >= 8:
        raises(index, module.current_stream().synchronize)
    module.synchronize()
kernel(x.fill_(9))
raises(9, module.synchronize)
""",
        place,
    )


def test_only_streams_that_replayed_the_graph_raise_its_failure(run_python):
    run_python(
        CAPTURING
        + """
y = torch.zeros(8, device="programs")
bad, good = captured(x), captured(y)
side, other = torch.Stream("programs:0"), torch.Stream("programs:0")
x.fill_(8)
module.synchronize()
with module.stream(other):
    good.replay()
with module.stream(side):
    before = side.record_event()
    bad.replay()
    behind = side.record_event()
before.synchronize()
other.synchronize()
raises(8, behind.synchronize)
side.synchronize()
module.synchronize()
x.fill_(0)
with module.stream(side):
    bad.replay()
side.synchronize()
x.fill_(9)
module.synchronize()
with module.stream(other):  # behind the replay on the first stream, which is done
    bad.replay()
side.synchronize()
raises(9, other.synchronize)
""",
        "reached",
    )


def test_a_failure_outlives_its_graph_and_records_are_used_again(run_python):
    run_python(
        CAPTURING
        + """
x.fill_(8)
graph = captured(x)
graph.replay()
del graph
raises(8, module.synchronize)
module.synchronize()
x.fill_(0)
captured(x).replay()
module.synchronize()
blocks = len(driver.blocks)
for index in range(3000):  # more than a block of memory has records
    captured(x).replay()
    if index % 16 == 0:
        module.synchronize()
assert len(driver.blocks) == blocks
x.fill_(9)
captured(x).replay()
raises(9, module.synchronize)
""",
        "reached",
    )


def test_a_capture_of_the_drivers_refuses_records_that_must_be_copied(run_python):
    run_python(
        CAPTURING
        + """
graph = module.Graph()
message = "the kernel kernel, which checks .* in memory that the host cannot read, cannot be captured"
with pytest.raises(CaptureError, match=message), module.graph(graph):
    kernel(x)
assert not driver.captures
kernel(x.fill_(9))
""",
        "copied",
    )


@pytest.mark.parametrize(
    ("letters", "checks", "message"),
    [
        ("rw", ("index a",), "has 1 checks and the arguments 'rw'"),
        ("rwe", (), "has 0 checks and the arguments 'rwe'"),
        ("rewe", ("index a",), "needs one argument 'e'"),
        ("rwe", ("bounds a",), "has the check 'bounds a'"),
        ("rwe", ("index",), "has the check 'index'"),
    ],
)
def test_checks_that_make_no_sense(letters, checks, message):
    from torch_outboard import _C
    from torch_outboard.codegen.program import KernelRecord

    with pytest.raises(ValueError, match=message):
        _C.device_kernel(KernelRecord("k", "opencl_c", b"", "", "k", letters, ("1",) * 6 + ("0",), checks))


@pytest.mark.parametrize("place", ["reached", "pinned"])
def test_a_wait_between_two_items_of_a_launch_hides_no_failure(run_python, place):
    """The second item writes to a record that another thread's wait has read and emptied meanwhile."""
    run_python(
        BEGIN
        + """
TWICE = TEXT.replace("def f(", "def write(") + '''
import __main__
def f(*values):
    write(*values)
    __main__.between()
    write(*values)
'''
twice = _C.device_kernel(KernelRecord("kernel", "python", TWICE.encode(), "", "f", "wie", ("1",) * 6 + ("0",), checks))

def between():
    heard = threading.Thread(target=raises, args=(8, module.synchronize))
    heard.start()
    heard.join()

twice(x, 8)
raises(8, module.synchronize)  # the second item's
for index in (9, 10):
    kernel(x, index)
    raises(index, module.synchronize)
module.synchronize()
""",
        place,
    )


@pytest.mark.parametrize("place", ["reached", "pinned"])
def test_an_atomic_that_writes_back_what_it_read_takes_no_record_for_good(run_python, place):
    """As a GPU's on the host's memory without the bus's atomics: it reads, a wait of the host comes, and it writes."""
    run_python(
        BEGIN
        + """
APART = TEXT.replace("    record = Record", "    import __main__\\n    record = Record").replace(
    "        return", "        seen = record.taken; __main__.between(); record.taken = seen; return")
apart = _C.device_kernel(KernelRecord("kernel", "python", APART.encode(), "", "f", "wie", ("1",) * 6 + ("0",), checks))

def between():
    heard = threading.Thread(target=raises, args=(8, module.synchronize))
    heard.start()
    heard.join()

kernel(x, 8)
apart(x, 9)
for index in (10, 11):
    kernel(x, index)
    raises(index, module.synchronize)
module.synchronize()
""",
        place,
    )


def test_a_copy_that_another_thread_is_queueing_is_not_relied_on(run_python):
    run_python(
        BEGIN
        + """
is_late, is_over = threading.Event(), threading.Event()

def before_copy():
    if threading.current_thread() is late:
        is_late.set()
        assert is_over.wait(60)

driver.before_record_copy = before_copy
main, side = module.current_stream(), torch.Stream("programs:0")
late = threading.Thread(target=main.record_event)
kernel(x, 8)
late.start()
assert is_late.wait(60)
side.wait_stream(main)
raises(8, side.synchronize)
is_over.set()
late.join()
""",
        "copied",
    )


def test_a_launch_waits_for_the_erasure_that_another_thread_is_queueing(run_python):
    run_python(
        BEGIN
        + """
is_erasing, may_erase, is_launched = threading.Event(), threading.Event(), threading.Event()

def before_copy():
    if threading.current_thread() is first:
        is_erasing.set()
        assert may_erase.wait(60)

def launch_second():
    kernel(x, 9)
    is_launched.set()

kernel(x, 8)
raises(8, module.synchronize)
driver.before_record_copy = before_copy
first, second = threading.Thread(target=kernel, args=(x, 1)), threading.Thread(target=launch_second)
first.start()
assert is_erasing.wait(60)
second.start()
assert not is_launched.wait(0.3)
may_erase.set()
first.join()
second.join()
raises(9, module.synchronize)
module.synchronize()
""",
        "copied",
    )
