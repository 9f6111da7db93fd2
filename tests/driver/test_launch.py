# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in the driver's language that Python code builds and launches."""

from __future__ import annotations

import pytest
import torch

import torch_outboard
from examples import launched_kernel
from torch_outboard import CaptureError, NotSupportedError, sanitizer
from torch_outboard.testing.programs import TestPrograms

from .support import has_entry, module_of

SCALE = "const float32*, const float32*, float32*, int32, float32, int64"


@pytest.fixture
def scale(programs: TestPrograms) -> torch_outboard.Kernel:
    """Return the kernel of out[i] = a * x[i] + b[0] + shift for i < n, with 16 threads a block."""
    return build(programs, programs.scale, "scale", SCALE)


def build(programs, text, name, signature, **options) -> torch_outboard.Kernel:
    named = {"language": programs.language, "options": programs.options, "signature": signature, **options}
    return torch_outboard.build_kernel(text, name, **named)


def launch(kernel, *args, **options) -> None:
    torch_outboard.launch(kernel, args, grid=-(-args[3] // 16), block=16, **options)


def test_values_of_tensors_and_numbers(scale, device):
    values, b = torch.randn(100), torch.randn(1)
    x, out = values.to(device), torch.full((100,), torch.nan, device=device)
    launch(scale, x, b.to(device), out, 100, 0.3, -3)
    torch.testing.assert_close(out.cpu(), 0.3 * values + b - 3)
    launch(scale, x[40:], b.to(device), out[1:], 60, 2, 1)
    torch.testing.assert_close(out[1:61].cpu(), 2 * values[40:] + b + 1)
    assert repr(scale) == f"<torch_outboard kernel scale({SCALE})>"


def test_local_memory(programs, device):
    if not programs.sums:
        pytest.skip("capability: groups. The driver's language has no memory that items of a group share")
    as_argument = programs.sums_by_argument
    signature = "const float32*, float32*, int32" + ", local" * as_argument
    kernel = build(programs, programs.sums, "sums", signature)
    values = torch.randn(40)
    out = torch.full((3,), torch.nan, device=device)
    args = (values.to(device), out, 40, *([64] if as_argument else []))
    torch_outboard.launch(kernel, args, grid=(3, 1), block=[16], shared_memory=0 if as_argument else 64)
    torch.testing.assert_close(out.cpu(), torch.stack([part.sum() for part in values.split(16)]))
    if as_argument:
        with pytest.raises(ValueError, match="argument 3 of the kernel sums, bytes of local memory, must be from 1"):
            torch_outboard.launch(kernel, (*args[:3], 0), grid=3, block=16)


def test_a_launch_is_in_the_order_of_its_stream(scale, device):
    module = module_of(device)
    b, x = torch.zeros(1, device=device), torch.ones(1 << 16, device=device)
    side = torch.Stream(device)
    side.wait_stream(torch.accelerator.current_stream(device))
    for _ in range(5):
        launch(scale, x, b, x, 1 << 16, 2.0, 0, stream=side)
    with module.stream(side):
        for _ in range(5):
            launch(scale, x, b, x, 1 << 16, 2.0, 0)
    torch.accelerator.current_stream(device).wait_stream(side)
    launch(scale, x, b, x, 1 << 16, 1.0, 1)
    assert torch.equal(x.cpu(), torch.full((1 << 16,), 1025.0))


def test_memory_that_is_given_up_is_kept_until_the_launch_is_done(scale, device):
    b, out = torch.zeros(1, device=device), torch.zeros(1 << 20, device=device)
    side = torch.Stream(device)
    side.wait_stream(torch.accelerator.current_stream(device))
    for i in range(4):
        x = torch.full((1 << 20,), float(i), device=device)
        side.wait_stream(torch.accelerator.current_stream(device))
        launch(scale, x, b, out, 1 << 20, 1.0, 0, stream=side)
        del x
        torch.full((1 << 20,), -1.0, device=device)
    side.synchronize()
    assert torch.equal(out.cpu(), torch.full((1 << 20,), 3.0))


def test_a_graph_launches_at_each_replay(scale, device):
    module = module_of(device)
    x, b = torch.ones(50, device=device), torch.ones(1, device=device)
    out, last = torch.zeros(50, device=device), torch.zeros(50, device=device)
    graph = module.Graph()
    with module.graph(graph):
        launch(scale, x, b, out, 50, 2.0, 0)
        launch(scale, out, b, last, 50, 1.0, 5)
    assert last.tolist() == [0] * 50
    for value in torch.randn(3).tolist():
        x.fill_(value)
        graph.replay()
        torch.testing.assert_close(last.cpu(), torch.full((50,), 2 * value + 7))


def test_the_sanitizer_sees_what_a_launch_reads_and_writes(scale, device):
    first, second = torch.Stream(device), torch.Stream(device)
    x, b, out = (torch.ones(5, device=device) for _ in range(3))
    torch.accelerator.synchronize(device)
    sanitizer.enable()
    try:
        launch(scale, b, b, x, 1, 1.0, 0, stream=first)
        launch(scale, b, b, out, 1, 1.0, 0, stream=second)
        assert sanitizer.races() == []
        launch(scale, x, b, out, 5, 1.0, 0, stream=second)
        (race,) = sanitizer.races()
        assert (race.first.op, race.second.op) == ("scale", "scale")
        assert race.first.is_write and not race.second.is_write
        assert "test_launch.py" in str(race)
    finally:
        sanitizer.disable()
        torch.accelerator.synchronize(device)


def test_the_profiler_sees_a_launch(scale, device):
    x = torch.ones(5, device=device)
    # Without acc_events torch 2.11 warns, once a process, that it
    # clears what it has between cycles.
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities()), acc_events=True) as profile:
        launch(scale, x, x, x, 5, 1.0, 0)
        torch.accelerator.synchronize(device)
    assert any(event.name == "scale" for event in profile.events())


def test_a_gradient_that_needs_what_was_there_before_raises(scale, device):
    x = torch.ones(5, device=device, requires_grad=True)
    b = torch.ones(1, device=device)
    y = x * 2
    z = y.square().sum()
    launch(scale, b, b, y.detach(), 1, 1.0, 0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


# By its place, an argument that is not as declared.
UNFIT = [
    (0, lambda x: 1.0, TypeError, "argument 0 .* must be a tensor, not float"),
    (3, lambda n: torch.ones(()), TypeError, "argument 3 .* must be a number, not Tensor: pass x.item"),
    (3, lambda n: "5", TypeError, "argument 3 .* must be a number, not str"),
    (3, lambda n: 5.0, TypeError, "float"),
    (3, lambda n: 1 << 31, OverflowError, "argument 3 of the kernel scale is 2147483648, which Int cannot hold"),
    (4, lambda a: 1e300, OverflowError, "argument 4 of the kernel scale is 1e.300, which Float cannot hold"),
    (5, lambda shift: -(1 << 63) - 1, OverflowError, "argument 5 of the kernel scale is -9223372036854775809"),
    (1, lambda b: b.cpu(), ValueError, "argument 1 .* must be a tensor on .*, got one on cpu"),
    (2, lambda out: out.half(), ValueError, "argument 2 .* must be of Float, got Half"),
    (0, lambda x: x.repeat(2)[::2], ValueError, r"argument 0 .* contiguous, got strides \[2\] for sizes \[5\]"),
    (0, lambda x: torch._neg_view(x), ValueError, "argument 0 .* neither conjugated nor negated"),
]


@pytest.mark.parametrize(("place", "change", "error", "message"), UNFIT)
def test_arguments_that_are_not_as_declared(scale, device, place, change, error, message):
    out = torch.zeros(5, device=device)
    args = [torch.ones(5, device=device), torch.ones(1, device=device), out, 5, 1.0, 0]
    with pytest.raises(TypeError, match="takes a tuple of 6 arguments, got tuple of 5"):
        torch_outboard.launch(scale, args[:5], grid=1, block=16)
    args[place] = change(args[place])
    with pytest.raises(error, match=message):
        torch_outboard.launch(scale, args, grid=1, block=16)
    assert out.tolist() == [0] * 5


def test_any_strides_and_any_dtype_where_they_are_declared(programs, device):
    signature = "const strided void*, const void*, float32*, int32, float32, int64"
    kernel = build(programs, programs.scale, "scale", signature)
    values = torch.randn(10)
    x, b, out = values.to(device), torch.zeros(1, device=device, dtype=torch.int32), torch.zeros(10, device=device)
    launch(kernel, x[::2], b, out, 10, 2.0, 0)  # from the first element on, whatever the strides
    torch.testing.assert_close(out.cpu(), 2 * values)


def test_grids_and_blocks_that_no_launch_has(scale, device):
    x = torch.ones(5, device=device)
    args = (x, x, x, 5, 2.0, 0)
    for grid, block in [(-1, 16), (1 << 32, 16), (1, 0), (1, (16, 0, 1))]:
        with pytest.raises(ValueError, match="of the kernel scale must"):
            torch_outboard.launch(scale, args, grid=grid, block=block)
    for grid in ((1, 1, 1, 1), 1.5, "1"):
        with pytest.raises(TypeError):
            torch_outboard.launch(scale, args, grid=grid, block=16)
    torch_outboard.launch(scale, args, grid=0, block=16)
    torch_outboard.launch(scale, args, grid=(3, 0), block=16)
    assert x.tolist() == [1] * 5
    with pytest.raises(ValueError, match=r"kernel_launch \(scale\) on device"):
        torch_outboard.launch(scale, args, grid=1, block=1 << 30)


def test_tensors_and_streams_of_another_device(scale, device, second_device):
    x, y = torch.ones(5, device=device), torch.ones(5, device=second_device)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        launch(scale, x, x, y, 5, 1.0, 0)
    with pytest.raises(ValueError, match="a stream of device"):
        launch(scale, x, x, x, 5, 1.0, 0, stream=torch.Stream(second_device))
    launch(scale, y, y, y, 5, 2.0, 1)  # the kernel is built for that device
    assert y[4].item() in (4, 7)  # by whether b was written before


def test_what_is_no_kernel(programs, device):
    with pytest.raises(ValueError, match=r"kernel_get \(nothing\)"):
        build(programs, programs.scale, "nothing", "int32")
    with pytest.raises(ValueError, match=r"(?s)program_build \(scale\).*unknown"):
        build(programs, programs.refused, "scale", SCALE)
    with pytest.raises(TypeError, match="takes a kernel from build_kernel"):
        torch_outboard.launch(programs.scale, (), grid=1)
    with pytest.raises(torch.AcceleratorError, match="out of range"):
        build(programs, programs.scale, "scale", SCALE, device=99)
    with pytest.raises(ValueError, match="a device of"):
        build(programs, programs.scale, "scale", SCALE, device="cpu")


def register_example(programs):
    if programs.language not in launched_kernel.SOURCES:
        pytest.skip(f"capability: one of the languages {', '.join(launched_kernel.SOURCES)}, in which the example is")
    launched_kernel.register(programs.language)


def test_the_example(programs, device):
    module = module_of(device)
    register_example(programs)
    x = torch.randn(1000)
    ours, theirs = x.to(device).requires_grad_(), x.clone().requires_grad_()
    torch_outboard.reset_coverage()
    for leaf in (ours, theirs):
        launched_kernel.swish(leaf, 1.5).sum().backward()
    assert torch_outboard.coverage().calls("outboard_examples::swish", "native") == 1
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
    static, graph = ours.detach().clone(), module.Graph()
    with module.graph(graph):
        y = launched_kernel.swish(static, 0.5)
    for _ in range(2):
        value = torch.randn(1000)
        static.copy_(value)
        graph.replay()
        torch.testing.assert_close(y.cpu(), value * torch.sigmoid(0.5 * value))


def test_the_example_in_a_compiled_function(programs, device):
    register_example(programs)

    def function(x):
        return launched_kernel.swish(x + 1, 0.7) * 3

    x = torch.randn(7, 5)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch_outboard.reset_coverage()
    results = []
    for run, place in ((function, "cpu"), (compiled, device)):
        leaf = x.to(place, copy=True).requires_grad_()
        y = run(leaf)
        y.sum().backward()
        results.append((y.detach().cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(results[1], results[0])
    assert torch_outboard.coverage().calls("outboard_examples::swish", "native") == 1


def test_a_driver_that_builds_no_programs(device):
    if has_entry("program_build"):
        return  # all of the others
    with pytest.raises(NotSupportedError, match="program_build"):
        torch_outboard.build_kernel("", "k", language="opencl_c", signature="int32")


def test_the_handle_of_a_stream_that_the_core_records(device):
    module = module_of(device)
    handle = module.current_stream().native_handle if hasattr(torch.Stream, "native_handle") else None
    graph = module.Graph()
    if has_entry("graph_capture_begin"):
        return  # the driver captures, and records what it is given by the handle
    with pytest.raises(CaptureError, match="driver's stream handle"), module.graph(graph):
        module._get_current_raw_stream(device.index)
    if handle is not None:
        with pytest.raises(CaptureError, match="driver's stream handle"), module.graph(graph):
            print(module.current_stream().native_handle)
        assert module.current_stream().native_handle == handle
    with module.graph(graph):
        torch.empty(3, device=device)
