# SPDX-License-Identifier: BSD-3-Clause
"""Driver entries that are Python methods: results, exceptions, threads, the end of the process."""

from __future__ import annotations

import pytest

START = """
import ctypes, gc, os, sys, threading
import pytest, torch, torch_outboard
from torch_outboard import DriverError, NotSupportedError, Status
from unit.toys import Toy
from torch_outboard import _C
"""


def test_an_exception_becomes_a_status_with_its_message(run_python):
    run_python(
        START
        + """
class Failing(Toy):
    error = None
    def stream_create(self, device, priority):
        raise self.error
torch_outboard.attach(Failing)

def failure(error, kind):
    Failing.error = error
    with pytest.raises(kind) as caught:
        _C.stream_handle(1, 0)
    return caught.value

error = failure(DriverError("the link is down", Status.UNAVAILABLE), DriverError)
assert str(error) == "driver 'toy': stream_create on device 1 failed with UNAVAILABLE (14): the link is down"
assert (error.code, error.entry, error.device) == (Status.UNAVAILABLE, "stream_create", 1)
assert error.__cause__ is Failing.error and error.__cause__.__traceback__ is not None

error = failure(KeyError("x"), DriverError)
assert error.code == Status.INTERNAL and str(error).endswith("INTERNAL (13): KeyError: 'x'")
assert type(error.__cause__) is KeyError

assert "no" in str(failure(MemoryError("no"), torch.OutOfMemoryError))
assert "no such thing" in str(failure(NotImplementedError("no such thing"), NotSupportedError))
assert "nor this" in str(failure(NotSupportedError("nor this"), NotImplementedError))
assert "below 3" in str(failure(DriverError("below 3", Status.OUT_OF_RANGE), ValueError))
assert failure(KeyboardInterrupt(), KeyboardInterrupt) is Failing.error
assert failure(DriverError("", 500), DriverError).code == 500

class NoText(Exception):
    def __str__(self):
        raise RuntimeError
assert "NoText: (its text could not be read)" in str(failure(NoText(), DriverError))
"""
    )


def test_a_lost_device_stays_lost(run_python):
    run_python(
        START
        + """
class Lost(Toy):
    def stream_create(self, device, priority):
        if device == 0:
            raise DriverError("it fell off the bus", Status.DEVICE_LOST)
        return 7
torch_outboard.attach(Lost)
for _ in range(2):
    with pytest.raises(torch.AcceleratorError, match="it fell off the bus"):
        _C.stream_handle(0, 0)
assert _C.stream_handle(1, 0) == 7
assert torch.ones(2).sum() == 2
"""
    )


def test_a_result_of_the_wrong_kind(run_python):
    run_python(
        START
        + """
class Wrong(Toy):
    result = None
names = ("stream_create", "mem_alloc", "event_query", "device_properties", "mem_info")
for name in names:
    setattr(Wrong, name, lambda self, *arguments: Wrong.result)
module = torch_outboard.attach(Wrong)
event = module.Event()
use = {
    "stream_create": lambda: _C.stream_handle(0, 0),
    "mem_alloc": lambda: torch.empty(1, device="toy"),
    "event_query": lambda: (event.record(), event.query()),
    "device_properties": lambda: module.get_device_name(0),
    "mem_info": lambda: _C.mem_info(0),
}

def check(entry, result, why):
    Wrong.result = result
    with pytest.raises(DriverError, match=why) as caught:
        use[entry]()
    assert caught.value.code == Status.INTERNAL and caught.value.entry == entry

check("stream_create", None, "the result of stream_create is not usable: TypeError")
check("stream_create", -1, "OverflowError")
check("stream_create", "7", "TypeError")
check("device_properties", [], "must return a dict or DeviceProperties, not list")
check("device_properties", {"names": "x"}, "no property 'names'. Did you mean 'name'")
check("device_properties", {"name": 3}, "name must be a str")
check("device_properties", {"warp_size": 1 << 40}, "warp_size does not fit into 32 bits")
check("mem_info", 3, "must return the tuple .free, total.")
Wrong.result = 7
_C.stream_handle(0, 0)
check("mem_alloc", 1 << 70, "OverflowError")
check("event_query", 1, "a query must return True .done. or False")
"""
    )


@pytest.mark.parametrize("address, why", [("0", "null|address 0"), ("(1 << 32) + 64", "align|512")])
def test_an_allocation_that_is_null_or_misaligned_is_refused(run_python, address, why):
    run_python(
        START
        + f"""
class Wrong(Toy):
    freed = []
    def mem_alloc(self, device, bytes):
        return {address}
    def mem_free(self, device, address):
        self.freed.append(address)
torch_outboard.attach(Wrong)
with pytest.raises(torch_outboard.OutboardError, match={why!r}):
    torch.empty(1, device="toy")
assert torch.accelerator.memory_reserved() == 0
"""
    )


def test_properties_and_arguments_arrive(run_python):
    run_python(
        START
        + """
class Recorder(Toy):
    calls = []
    def device_properties(self, device):
        return torch_outboard.DeviceProperties(
            name="Récorder", vendor="v" * 100, uuid=b"0123456789abcdef", total_memory=1 << 40, warp_size=32,
            is_integrated=True, dtypes=frozenset({torch.float32}), stream_priority_greatest=-1)
    def stream_create(self, device, priority):
        self.calls.append(("stream_create", device, priority))
        return 1 << 63
    def event_create(self, device, flags):
        self.calls.append(("event_create", device, flags))
        return 5
    def event_record(self, device, stream, event):
        self.calls.append(("event_record", device, stream, event))
module = torch_outboard.attach(Recorder)
properties = module.get_device_properties(1)
assert properties.name == "Récorder" and properties.vendor == "v" * 63 and properties.uuid == b"0123456789abcdef"
assert properties.total_memory == 1 << 40 and properties.warp_size == 32 and properties.is_integrated is True
assert properties.dtypes == {torch.float32} and not module.is_bf16_supported()
stream = module.Stream(1, priority=-1)
event = module.Event(enable_timing=True)
event.record(stream)
assert Recorder.calls == [("stream_create", 1, -1), ("event_create", 1, 1), ("event_record", 1, 1 << 63, 5)]
assert stream.native_handle == 1 << 63
"""
    )


def test_attaching_counting_and_seeding_open_nothing(run_python):
    run_python(
        START
        + """
module = torch_outboard.attach(Toy)
opened = torch_outboard.attached_driver().opened
module.device_count(), module.is_available(), module.set_device(1), module.current_device()
torch.manual_seed(1), module.manual_seed_all(2), module.get_rng_state(), module.set_rng_state(module.get_rng_state(0))
module.get_device_name(0), module.default_stream(), torch.Generator("toy"), module.current_stream()
with module.device(0):
    pass
assert opened == []
module.mem_get_info(1)
assert opened == [1]
torch.empty(1, device="toy:0")
assert sorted(opened) == [0, 1]
"""
    )


# Memory of malloc, for operators that the host runs.
WITH_MEMORY = """
class WithMemory(Toy):
    buffers = {}
    def mem_alloc(self, device, bytes):
        buffer = ctypes.create_string_buffer(bytes + 512)
        address = (ctypes.addressof(buffer) + 511) // 512 * 512
        self.buffers[address] = buffer
        return address
    def host_address(self, device, address, bytes):
        return address
    def copy_async(self, device, stream, dst, src, bytes, dst_device, src_device):
        self.stream_synchronize(device, stream)
        ctypes.memmove(dst, src, bytes)
"""


def test_host_work_runs_once_on_any_thread(run_python):
    # Through an operator that the host runs: its work is the callable that host_callback is given.
    run_python(
        START
        + WITH_MEMORY
        + """
class Queueing(WithMemory):
    taken = []
    def host_callback(self, device, stream, work):
        self.taken.append(work)
    def stream_synchronize(self, device, stream):
        while self.taken:
            thread = threading.Thread(target=self.taken.pop(0))
            thread.start()
            thread.join()
torch_outboard.attach(Queueing)
a = torch.empty(3, device="toy")
a.fill_(2)
b = a + 1
taken = list(Queueing.taken)
assert taken
assert b.tolist() == [3, 3, 3]
for work in taken:
    with pytest.raises(RuntimeError, match="host work can run only once"):
        work()
"""
    )


def test_host_work_that_is_dropped_runs_with_a_complaint(run_python):
    answer = run_python(
        START
        + WITH_MEMORY
        + """
class Dropping(WithMemory):
    def host_callback(self, device, stream, work):
        pass
torch_outboard.attach(Dropping)
a = torch.zeros(3, device="toy")
assert (a + 1).tolist() == [1, 1, 1]
"""
    )
    assert "host_callback dropped its function without calling it" in answer.stderr


def test_the_end_of_the_process_calls_nothing_of_python(run_python):
    answer = run_python(
        START
        + """
class Late(Toy):
    def mem_free(self, device, address):
        print("freed", flush=True)
    def destroy(self):
        print("destroyed", flush=True)
torch_outboard.attach(Late)
kept = torch.empty(1, device="toy")
stream = torch.Stream("toy")
event = stream.record_event()
sys.kept = (kept, stream, event)
print("end", flush=True)
"""
    )
    assert answer.stdout == "end\n"
    assert answer.stderr == ""


def test_an_unused_driver_is_destroyed_at_the_end(run_python):
    answer = run_python(
        START
        + """
class Unused(Toy):
    def destroy(self):
        print("destroyed", flush=True)
torch_outboard.attach(Unused)
"""
    )
    assert answer.stdout == "destroyed\n"


def test_a_forked_child_is_advised_to_spawn(run_python):
    run_python(
        START
        + """
module = torch_outboard.attach(Toy)
torch.empty(1, device="toy")
pid = os.fork()
if pid == 0:
    status = 1
    try:
        assert module._is_in_bad_fork() and not module.is_initialized()
        for use in (lambda: torch.empty(1, device="toy"), module.synchronize, module.init):
            with pytest.raises(RuntimeError, match="'spawn' start method"):
                use()
        torch.manual_seed(3)
        assert torch.ones(2).sum() == 2
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(pid, 0)[1] == 0
assert torch.empty(1, device="toy").is_toy
""",
        flags=("-W", "ignore::DeprecationWarning"),
    )


def test_a_fork_before_the_first_use_is_fine(run_python):
    run_python(
        START
        + """
module = torch_outboard.attach(Toy)
torch.manual_seed(1), module.device_count()
pid = os.fork()
if pid == 0:
    status = 1
    try:
        assert not module._is_in_bad_fork()
        assert torch.empty(1, device="toy").is_toy
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(pid, 0)[1] == 0
""",
        flags=("-W", "ignore::DeprecationWarning"),
    )


def test_entries_are_called_from_many_threads(run_python):
    run_python(
        START
        + """
class Counting(Toy):
    def __init__(self, **options):
        super().__init__(**options)
        self.lock = threading.Lock()
        self.live = 0
    def event_create(self, device, flags):
        with self.lock:
            self.live += 1
        return super().event_create(device, flags)
module = torch_outboard.attach(Counting)
start = threading.Barrier(8)
errors = []
def use(index):
    try:
        start.wait()
        for _ in range(200):
            stream = module.Stream(index % 2)
            event = stream.record_event()
            event.synchronize()
            torch.empty(7, device=f"toy:{index % 2}").record_stream(stream)
    except BaseException as error:
        errors.append(error)
threads = [threading.Thread(target=use, args=(index,)) for index in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not errors
"""
    )


def test_kernels_in_python(run_python):
    run_python(
        START
        + """
seen = []
def relu(x):
    seen.append((x.device, torch.toy.current_device()))
    if x.dtype != torch.float32:
        return NotImplemented
    return torch.empty_like(x)
def fill(x, value):
    seen.append(value)
def cast(x, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None, non_blocking=False):
    seen.append((dtype, memory_format))
    return torch.empty(x.shape, dtype=dtype, device=x.device)
def broken(x):
    raise LookupError("no such kernel")
def wrong(x):
    return "text"
class WithKernels(Toy):
    kernels = {"aten::relu": relu, "aten::fill_.Scalar": fill}
torch_outboard.attach(WithKernels)
x = torch.empty(3, device="toy:1")
y = x.relu()
assert y.is_toy and seen.pop() == (torch.device("toy:1"), 1)
assert x.fill_(4) is x and seen.pop() == 4
torch_outboard.register_kernel("aten::sigmoid", broken)
with pytest.raises(LookupError, match="no such kernel"):
    x.sigmoid()
torch_outboard.register_kernel("aten::tanh", wrong)
with pytest.raises((TypeError, RuntimeError)):
    x.tanh()
torch_outboard.register_kernel("aten::_to_copy", cast)
torch.ops.aten._to_copy(x, dtype=torch.bfloat16)
assert seen.pop() == (torch.bfloat16, None)
rows = torch_outboard.coverage()
assert rows.calls("aten::relu", "native") == 1
with pytest.raises(TypeError, match="must be callable"):
    torch_outboard.register_kernel("aten::relu", 3)
with pytest.raises(ValueError, match="no_such"):
    torch_outboard.register_kernel("aten::no_such", relu)
"""
    )
