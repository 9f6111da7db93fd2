# SPDX-License-Identifier: BSD-3-Clause
"""Driver entries in which a user's call may last: the message names the entry, the device and the purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

# A driver whose next call of one entry lasts until the test releases it.
SLOW = """
import ctypes, logging, re, signal, threading, pytest, torch, torch_outboard
from torch_outboard import _C
from unit.programs import ProgramDriver
from unit.toys import Toy

LIMIT = 60  # seconds, of a test that fails

class Waiting:
    armed, go, in_call = None, threading.Event(), threading.Event()

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        return waiting(found, name) if name in ENTRIES else found

class Slow(Waiting, ProgramDriver):
    pinned = {}
    texts = {}

    def device_properties(self, device):
        return {"name": "Slow", "total_memory": self.memory}

    def device_open(self, device):
        pass

    def host_alloc(self, bytes):
        buffer = ctypes.create_string_buffer(bytes + 64)
        address = -(-ctypes.addressof(buffer) // 64) * 64
        self.pinned[address] = buffer
        return address

    def host_free(self, pointer):
        del self.pinned[pointer]

    def host_register(self, pointer, bytes):
        pass

    def host_unregister(self, pointer):
        pass

    def host_callback(self, device, stream, work):
        work()

    def device_synchronize(self, device):
        pass

    def event_synchronize(self, device, event):
        pass

    def program_build(self, device, language, code, options):
        if language == "binary":
            return super().program_build(device, "python", code, options)
        handle = super().program_build(device, language, code, options)
        self.texts[handle] = code
        return handle

    def program_binary(self, device, program):
        return self.texts.get(program)

def waiting(method, name):
    def call(*given):
        self = method.__self__
        if self.armed == name:
            Waiting.armed = None
            self.in_call.set()
            assert self.go.wait(LIMIT), name
        return method(*(given[:9] if name == "kernel_launch" else given))
    return call

class Told(logging.Handler):
    "The call that is looked at is over once it is told. On a busy machine others may last as well, of any entry."
    def emit(self, record):
        if f" in {looked_at} for " in record.getMessage() and not driver.go.is_set():
            reported.append(record.getMessage())
            driver.go.set()

ENTRIES = ()
looked_at, reported = "", []

def check(calls, expected):
    "Each call lasts in its entry until that is told, once."
    global looked_at
    logging.getLogger("torch_outboard").addHandler(Told())
    _C.set_long_wait(0.02)
    for entry, call in calls.items():
        torch.accelerator.synchronize()
        reported.clear()
        driver.go.clear()
        Waiting.armed = looked_at = entry
        call()
        assert Waiting.armed is None, f"{entry} was not called"
        (text,) = reported
        assert f"has been waiting in {entry} for 0 s" in text and "Still waiting. On the main" in text, text
        assert re.search(expected.get(entry, driver.name + ":0: thread [0-9]+ has"), text), (entry, text)
"""

CALLS = """
CALLS = {
    "device_open": lambda: torch.empty(1, device="programs:1"),
    "stream_create": lambda: module.Stream(0, -1).native_handle if hasattr(torch.Stream, "native_handle") else
                             _C.stream_handle(0, module.Stream(0, -1).stream_id),
    "mem_alloc": lambda: torch.empty(1 << 24, device="programs"),
    "mem_free": lambda: module.empty_cache(),
    "copy_async": lambda: x.cpu(),
    "fill_async": lambda: x.zero_(),
    "host_alloc": lambda: torch.empty(1 << 20).pin_memory(),
    "host_register": lambda: module.memory.host_register(host),
    "host_unregister": lambda: module.memory.host_unregister(host),
    "stream_synchronize": lambda: stream.synchronize(),
    "device_synchronize": lambda: torch.accelerator.synchronize(),
    "event_synchronize": lambda: event.synchronize(),
    "stream_wait_event": lambda: stream.wait_event(event),
    "program_build": lambda: build("def f(*values): pass"),
    "kernel_get": lambda: build("def f(*values): return 1"),
    "kernel_launch": lambda: torch_outboard.launch(kernel, (x,), grid=1),
    "host_callback": lambda: x.exp(),
}
FOR = {
    "host_alloc": "programs: thread .* in host_alloc for 0 s[.] Still",
    "host_register": "programs: thread", "host_unregister": "programs: thread",
    "device_open": "programs:1: thread .* in device_open for 0 s[.] Still", "mem_alloc": "mem_alloc for 0 s[.] Still",
    "mem_free": "mem_free for 0 s[.] Still", "stream_create": "stream_create for 0 s[.] Still",
    "device_synchronize": "for all work of the device", "program_build": "for f[.] Still",
    "kernel_get": "for 0 s[.] Still",
    "copy_async": "for the default stream, on which copy_async was queued last",
    "kernel_launch": "for the default stream, on which f was queued last",
    "stream_synchronize": "for the stream with id", "stream_wait_event": "for the stream with id",
}
"""


def test_each_call_that_lasts_is_reported(run_python):
    run_python(
        SLOW
        + CALLS
        + """
ENTRIES = tuple(CALLS)
driver = Slow()
module = torch_outboard.attach(driver)
def build(code):
    return torch_outboard.build_kernel(code, "f", language="python", signature="void*")
x, host = torch.ones(4, device="programs"), torch.ones(1 << 16)
kernel = build("def f(*values): return 2")
stream, event = module.Stream(), torch.Event("programs")
event.record(module.current_stream())
with module.stream(stream):
    torch.empty(1, device="programs").zero_()
    x.sin()  # the first call of an operator waits
    x.exp()
check(CALLS, FOR)
"""
    )


MEMORY = """
class Mapping(Waiting, Toy):
    def device_properties(self, device):
        return Toy.device_properties(self, device) | {"mem_granularity": 2 << 20}
    def copy_nd_async(self, *given): pass
    def mem_reserve(self, device, bytes): return next(self.handles) << 32
    def mem_release(self, device, address, bytes): pass
    def mem_map(self, device, address, bytes): pass
    def mem_unmap(self, device, address, bytes): pass
    def ipc_export(self, device, address): return bytes(8)
    def ipc_open(self, device, handle): return next(self.handles) << 32
    def ipc_close(self, device, address): pass

driver = Mapping()
ENTRIES = ("copy_nd_async", "mem_map", "mem_unmap", "ipc_open")
module = torch_outboard.attach(driver)
torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
wide = torch.empty(4, 4, device="toy")
check({
    "copy_nd_async": lambda: wide.t().contiguous(),
    "mem_map": lambda: torch.empty(3 << 20, device="toy"),
    "mem_unmap": lambda: module.empty_cache(),
    "ipc_open": lambda: _C.open_shared(0, bytes(8)),
}, {})
"""


def test_memory_that_is_mapped_slowly_is_reported(run_python):
    run_python(SLOW + MEMORY)


PLANS = """
from examples.own_kernels import OwnKernelsDriver
from torch_outboard.kernels.plans import lower

driver = OwnKernelsDriver()
driver.go = threading.Event()
torch_outboard.attach(driver)
x = torch.ones(3).to("own_kernels")
(x + 1).cpu()
made = lower.lower
def slow(*given):
    Waiting.armed = None
    assert driver.go.wait(LIMIT)
    return made(*given)
lower.lower = slow
check({"the builder of plans": lambda: x.exp2()}, {"the builder of plans": "s, for aten::exp2[.] Still"})
assert x.exp2().cpu().tolist() == [2] * 3
"""


def test_a_plan_that_is_built_slowly_is_reported(run_compiler):
    run_compiler(SLOW + PLANS, env={"OUTBOARD_KERNEL_CACHE_DIR": "", "OUTBOARD_FALLBACK": "error"})


GRAPHS = """
class Capturing(Slow):
    def graph_capture_begin(self, device, stream): pass
    def graph_capture_end(self, device, stream): return next(self.handles)
    def graph_instantiate(self, device, graph): return next(self.handles)
    def graph_launch(self, device, stream, executable): pass
    def graph_destroy(self, device, graph): pass
    def graph_executable_destroy(self, device, executable): pass

def capture():
    graph = module.Graph()
    with module.graph(graph):
        torch.empty(4, device="programs").zero_()
    return graph

CALLS = {
    "graph_capture_end": capture,
    "graph_instantiate": lambda: capture().replay(),
    "graph_launch": lambda: graph.replay(),
}
ENTRIES = tuple(CALLS)
driver = Capturing()
module = torch_outboard.attach(driver)
graph = capture()
graph.replay()
check(CALLS, {})
"""


def test_graphs_that_last_are_reported(run_python):
    run_python(SLOW + GRAPHS)


# Another thread is in the entry; the main thread waits for it.
BESIDE = """
import sys
how = sys.argv[1]
ENTRIES = ("device_open", "program_build")
driver = Slow()
module = torch_outboard.attach(driver)
x = torch.empty(1, device="programs")
def build(device=0):
    return torch_outboard.build_kernel("def f(*values): pass", "f", language="python", signature="", device=device)
looked_at, main = how, threading.get_native_id()
call = build if how == "program_build" else lambda: torch.empty(1, device="programs:1")
Waiting.armed = how
thread = threading.Thread(target=call)
thread.start()
assert driver.in_call.wait(LIMIT)
"""
ENDINGS = {
    "told": """
class ToldOfMain(Told):
    def emit(self, record):
        if f"thread {main} " in record.getMessage():
            super().emit(record)
logging.getLogger("torch_outboard").addHandler(ToldOfMain())
_C.set_long_wait(0.02)
call()
thread.join()
what = {"device_open": "another thread that is opening the device", "program_build": "f"}[how]
(text,) = reported
assert f"waiting in {how} for 0 s, for {what}. Still" in text, text
""",
    "left": """
class Interrupting(logging.Handler):
    def emit(self, record):
        if f"thread {main} " in record.getMessage():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
logging.getLogger("torch_outboard").addHandler(Interrupting())
_C.set_long_wait(0.02)
with pytest.raises(KeyboardInterrupt):
    call()
assert not driver.go.is_set()
driver.go.set()
thread.join()
call()
assert len(driver.built) <= 1
""",
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("entry", ["device_open", "program_build"])
def test_what_another_thread_does_is_waited_for(run_python, entry, ending):
    run_python(SLOW + BESIDE + ENDINGS[ending], entry)


# A compiler in C, which no signal ends, in the main thread.
COMPILER = """
class Compiling(Slow):
    def __init__(self, **options):
        super().__init__(**options)
        self.count = 0
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p,
                                ctypes.POINTER(ctypes.c_uint64))
        self.program_build = kind(self.compile)

    def compile(self, _, device, source, out):
        self.count += 1
        self.in_call.set()
        self.go.wait(LIMIT)
        out[0] = 77
        self.programs[77] = {"f": lambda *values: None}
        return 0 if self.count < 3 else 34  # OB_PROGRAM_REFUSED

    def program_binary(self, device, program):
        return None

driver = Compiling()
module = torch_outboard.attach(driver)
def build(code="text"):
    return torch_outboard.build_kernel(code, "f", language="c", signature="")
def interrupt():
    assert driver.in_call.wait(LIMIT)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
threading.Thread(target=interrupt).start()
with pytest.raises(KeyboardInterrupt):
    build()
assert not driver.go.is_set() and driver.count == 1
"""


def test_ctrl_c_ends_the_wait_for_a_compiler(run_python):
    """The build goes on, and the next caller gets its program."""
    run_python(
        SLOW
        + COMPILER
        + """
driver.go.set()
torch_outboard.launch(build(), (), grid=1)
assert driver.count == 1 and [name for name, *_ in driver.launched] == ["f"]
build("another")
with pytest.raises(ValueError, match="program_build"):
    build("refused")
assert driver.count == 3
"""
    )


def test_the_end_of_the_process_waits_for_a_build(run_python):
    run_python(
        SLOW
        + COMPILER
        + """
import atexit
atexit.register(driver.go.set)  # before torch-outboard's own
"""
    )


def test_an_interrupt_is_not_lost_where_the_program_is_kept(run_python, tmp_path: Path):
    """A driver that refuses a binary builds the text instead; an interrupted driver does not."""
    run_python(
        SLOW
        + """
class Interrupted(Slow):
    at, languages = None, []

    def program_build(self, device, language, code, options):
        self.languages.append(language)
        if self.at == language:
            raise KeyboardInterrupt
        return super().program_build(device, language, code, options)

    def program_binary(self, device, program):
        if self.at == "keep":
            raise KeyboardInterrupt
        return super().program_binary(device, program)

driver = Interrupted()
module = torch_outboard.attach(driver)
def build(device, code="def f(*values): pass"):
    return torch_outboard.build_kernel(code, "f", language="python", signature="", device=device)
build(0)
driver.at = "binary"
with pytest.raises(KeyboardInterrupt):
    build(1)
assert driver.languages == ["python", "binary"]
driver.at = None
build(1)
assert driver.languages == ["python", "binary", "binary"]
driver.at, count = "keep", len(driver.programs)
with pytest.raises(KeyboardInterrupt):
    build(0, "def f(*values): return 3")
assert len(driver.programs) == count
driver.at = None
torch_outboard.launch(build(0, "def f(*values): return 3"), (), grid=1)
""",
        env={"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path)},
    )


def test_an_interrupt_is_not_lost_where_the_plan_is_kept(run_compiler, tmp_path: Path):
    run_compiler(
        """
import pytest, torch, torch_outboard
from examples.own_kernels import OwnKernelsDriver
from torch_outboard.kernels import plan_statistics

class Interrupted(OwnKernelsDriver):
    is_interrupted = False
    def program_build(self, *given):
        if self.is_interrupted:
            raise KeyboardInterrupt
        return super().program_build(*given)

driver = Interrupted()
torch_outboard.attach(driver)
x, y = (torch.tensor([1.0, 4.0]).to(f"own_kernels:{device}") for device in (0, 1))
x.sqrt()
before = plan_statistics()["loaded"]
driver.is_interrupted = True
for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
        y.sqrt()
assert plan_statistics()["loaded"] == before + 1
driver.is_interrupted = False
assert y.sqrt().cpu().tolist() == [1, 2]
""",
        env={
            "OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path),
            "OUTBOARD_FALLBACK": "error",
            "OUTBOARD_BUILD_THREADS": "0",
        },
    )
