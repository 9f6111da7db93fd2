# SPDX-License-Identifier: BSD-3-Clause
"""Kernels launched from Python: the driver's arguments, and the launches that a graph's recorder refuses."""

from __future__ import annotations

import pytest

BEGIN = """
import ctypes, re, struct, pytest, torch, torch_outboard
from torch_outboard import CaptureError, register_kernel
from unit.programs import ProgramDriver

driver = ProgramDriver()
module = torch_outboard.attach(driver)
CODE = '''
import ctypes
def double(x, out, n):
    count = int.from_bytes(n, "little")
    x, out = ((ctypes.c_float * count).from_address(address) for address in (x, out))
    for i in range(count):
        out[i] = 2 * x[i]
def f(*values):
    pass
'''
def build(name="f", signature="", **options):
    return torch_outboard.build_kernel(CODE, name, language="python", signature=signature, **options)
"""

VALUES = """
kinds = {"bool": "?", "uint8": "B", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q",
         "uint64": "Q", "float16": "e", "float32": "f", "float64": "d"}
values = [True, 255, -128, -32768, 65535, -(1 << 31), (1 << 32) - 1, -(1 << 63), (1 << 64) - 1, 0.1, 0.1, 0.1]
x = torch.ones(10, device="programs")
kernel = build(signature=f"const float32*, local, bfloat16, {', '.join(kinds)}")
torch_outboard.launch(kernel, (x[2:], 48, 1.5, *values), grid=(2, 3), block=4, shared_memory=7)
((name, grid, block, shared, args),) = driver.launched
assert (name, grid, block, shared) == ("f", (2, 3, 1), (4, 1, 1), 7)
packed = [(1, struct.pack(kind, value)) for kind, value in zip(kinds.values(), values, strict=True)]
assert list(args) == [(0, x.data_ptr() + 8), (2, 48), (1, b"\\xc0\\x3f"), *packed], args

# Nothing fits that the dtype doesn't hold.
for kind, value in [("bool", 2), ("uint8", -1), ("uint8", 256), ("int8", 128), ("uint16", 1 << 16), ("uint32", -1),
                    ("uint64", -1), ("uint64", 1 << 64), ("int64", 1 << 63), ("float16", 1e5), ("bfloat16", 1e39)]:
    with pytest.raises(OverflowError, match="cannot hold"):
        torch_outboard.launch(build(signature=kind), (value,), grid=1)
torch_outboard.launch(build(signature="float16"), (float("inf"),), grid=1)

# No elements, no address. Without a tensor the launch is for the current device.
torch_outboard.launch(build(signature="void*"), (x[:0],), grid=1)
assert driver.launched[-1][4] == ((0, 0),)
with module.device(1):
    torch_outboard.launch(build(device=1), (), grid=1)
assert driver.built == [(0, "python", ""), (1, "python", "")]
y, pair = torch.ones(3, device="programs:1"), build(signature="void*, void*")
with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
    torch_outboard.launch(pair, (x, y), grid=1)
with pytest.raises(ValueError, match="tensors on device 0 and a stream of device 1"):
    torch_outboard.launch(pair, (x, x), grid=1, stream=torch.Stream("programs:1"))
torch_outboard.launch(pair, (y, y), grid=1)  # a kernel is built for a device when it is first launched there
assert driver.built[2:] == [] and driver.launched[-1][4] == ((0, y.data_ptr()),) * 2
with pytest.raises(torch_outboard.NotSupportedError, match="follows_addresses is not supported"):
    torch_outboard.launch(build(), (), grid=1, follows_addresses=True)
"""

SIGNATURES = """
assert build(signature=" float32 * ,strided  void*, const long*,local").signature.startswith(" float32")
messages = {"flot32*": "Did you mean 'float32'", "complex64": "write"}
invalid = ("float32 *, const", "const int32", "void", "const local", "int32,", "float32**")
messages.update({signature: f"parameter {re.escape(repr(signature.split(',')[-1].strip()))}:" for signature in invalid})
for signature, message in messages.items():
    with pytest.raises(ValueError, match=message):
        build(signature=signature)
with torch.device("meta"), pytest.raises(ValueError, match="must be a tensor on 'programs', got one on meta"):
    torch_outboard.launch(build(signature="void*"), (torch.ones(3),), grid=1)
from torch._subclasses import FakeTensorMode
with FakeTensorMode():
    fake = torch.ones(3, device="programs")
with pytest.raises(ValueError, match="has no memory .it is a tensor of a trace.: wrap"):
    torch_outboard.launch(build(signature="void*"), (fake,), grid=1)
with pytest.raises(TypeError, match="takes a torch.Stream, not int"):
    torch_outboard.launch(build(), (), grid=1, stream=3)
"""

RECORDED = """
kernel = build("double", "const float32*, float32*, int32")
calls = []
def run(x, *, out):
    calls.append(out.numel())
    torch_outboard.launch(kernel, (x, out, x.numel()), grid=1)
register_kernel("aten::exp2.out", run)
x = torch.ones(5, device="programs")
graph = module.Graph()
with module.graph(graph):
    y = torch.exp2(x)
assert calls == [5] and not driver.launched
for value in (3.0, -1.0):
    x.fill_(value)
    graph.replay()
    assert y.tolist() == [2 * value] * 5
assert calls == [5] and len(driver.launched) == 2
"""

# What queues nothing through torch-outboard, each in its way.
BELOW = """
kernels = {}
def prepare():
    program = driver.program_build(0, "python", CODE.encode(), "")
    kernels[0] = driver.kernel_get(0, program, "double")
prepare()
def direct(x, out, stream):
    args = ((0, x.data_ptr()), (0, out.data_ptr()), (1, struct.pack("i", x.numel())))
    driver.kernel_launch(0, stream, kernels[0], (1, 1, 1), (1, 1, 1), args, 0, (0, 0, 0), False)

def asks_for_the_handle(x, *, out):
    direct(x, out, module._get_current_raw_stream(0))
def keeps_the_handle(x, *, out):
    torch.zeros(3, device=x.device)  # something that is recorded
    direct(x, out, kept)
def writes_by_address(x, *, out):
    for i in range(x.numel()):
        ctypes.c_float.from_address(out.data_ptr() + 4 * i).value = 2
def wraps_the_handle(x, *, out):
    module.ExternalStream(kept, 0)
def queues_on_a_second_stream(x, *, out):
    torch_outboard.launch(double, (x, out, x.numel()), grid=1, stream=second)

x = torch.ones(5, device="programs")
graph = module.Graph()
side = module.Stream()
with module.stream(side):
    kept = module._get_current_raw_stream(0)
second, double = module.ExternalStream(kept, 0), build("double", "const float32*, float32*, int32")
kernel = KERNEL
register_kernel("aten::exp2.out", kernel)
if kernel is not wraps_the_handle:
    with module.stream(side):
        assert torch.exp2(x).tolist() == [2] * 5  # eager it is fine
with pytest.raises(CaptureError, match=MESSAGE), module.graph(graph, stream=side):
    y = torch.exp2(x)
# Nothing else is lost.
register_kernel("aten::exp2.out", lambda x, *, out: NotImplemented)
with module.graph(graph, stream=side):
    y = torch.exp2(x)
graph.replay()
assert y.tolist() == [2] * 5
"""


@pytest.mark.parametrize("code", [VALUES, SIGNATURES, RECORDED], ids=["values", "signatures", "recorded"])
def test_launches(run_python, code):
    run_python(BEGIN + code)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("asks_for_the_handle", "directly on the driver's stream handle .launch it with"),
        ("keeps_the_handle", "a call of the driver's kernel_launch that bypasses torch-outboard"),
        ("writes_by_address", "kernel in Python for aten::exp2.out, which queued nothing that a graph could replay"),
        ("wraps_the_handle", "a second stream that shares the handle of a capturing stream"),
        ("queues_on_a_second_stream", "work on a second stream that shares the handle of a capturing stream"),
    ],
)
def test_what_a_graph_would_not_replay_raises_at_the_capture(run_python, kernel, message):
    run_python(BEGIN + BELOW.replace("KERNEL", kernel).replace("MESSAGE", repr(message)))


def test_kernels_that_have_nothing_to_queue_are_captured(run_python):
    run_python(
        BEGIN
        + """
register_kernel("aten::t", lambda x: x.transpose(0, 1) if x.dim() == 2 else NotImplemented)
x = torch.ones(2, 3, device="programs")
graph = module.Graph()
with module.graph(graph):
    y = torch.exp2(x.t())
    z = torch.exp2(torch.empty(0, device="programs"))
graph.replay()
assert y.shape == (3, 2) and y.tolist() == [[2] * 2] * 3 and z.numel() == 0
"""
    )


def test_what_a_driver_calls_within_an_entry_goes_through(run_python):
    run_python(
        """
import pytest, torch, torch_outboard
from examples.pure_python_driver import PythonDriver

class Calling(PythonDriver):
    "All streams have one handle, as those of a device that does all at once may."
    def stream_create(self, device, priority):
        return 0

    def fill_async(self, device, stream, dst, pattern, count):
        for i in range(count):
            self.copy_async(device, stream, dst + i * len(pattern), dst, 0, device, device)
        super().fill_async(device, stream, dst, pattern, count)

driver = Calling()
module = torch_outboard.attach(driver)
x = torch.ones(4, device="python")
graph, side = module.Graph(), module.Stream()
with module.graph(graph, capture_error_mode="relaxed"):
    y = x * 2
    with module.stream(module.default_stream()):
        z = torch.empty(4, device="python").fill_(7)
assert z.tolist() == [7] * 4
graph.replay()
assert y.tolist() == [2] * 4
with pytest.raises(torch_outboard.CaptureError, match="the driver's copy_async"), module.graph(module.Graph()):
    driver.copy_async(0, 0, 0, 0, 0, 0, 0)
"""
    )


def test_no_kernels_before_a_driver(run_python):
    run_python(
        """
import pytest, torch_outboard
with pytest.raises(torch_outboard.RegistrationError, match="attach a driver before building kernels"):
    torch_outboard.build_kernel("", "f", language="python", signature="")
"""
    )
