# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in the driver's language, launched as torch.compile launches them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_outboard import _C, CaptureError, NotSupportedError, sanitizer
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.testing.programs import TestPrograms

from .support import has_entry, module_of

Launcher = Callable[..., None]

ONES = ("1", "1")


def scale(
    programs: TestPrograms, name: str = "scale_and_shift", code: str | None = None, entry: str = "scale"
) -> Launcher:
    source = programs.scale if code is None else code
    grid = ("a3 16 ceildiv", *ONES)
    sizes = (*grid, "16", *ONES, "0")
    return _C.device_kernel(
        KernelRecord(name, programs.language, source.encode(), programs.options, entry, "rrwjfi", sizes)
    )


@pytest.fixture
def kernel(programs: TestPrograms) -> Launcher:
    return scale(programs)


def test_values_of_tensors_and_numbers(kernel: Launcher, device: torch.device) -> None:
    x = torch.arange(100.0, device=device)
    b = torch.full((1,), 0.5, device=device)
    out = torch.zeros(100, device=device)
    kernel(x, b, out, 100, 2.0, -(1 << 40))
    assert torch.equal(out.cpu(), 2 * torch.arange(100.0) + 0.5 - float(1 << 40))
    kernel(x[40:], b, out[1:], 60, 1.0, 3)
    assert torch.equal(out[1:61].cpu(), torch.arange(40.0, 100.0) + 3.5)
    assert out[61].item() == -float(1 << 40)


def test_local_memory(programs: TestPrograms, device: torch.device) -> None:
    if not programs.sums:
        pytest.skip("capability: groups. The driver's language has no memory that items of a group share")
    formulas = ("a2 16 ceildiv", *ONES, "16", *ONES, "16 4 mul")
    letters = "rwjl" if programs.sums_by_argument else "rwj"
    code = programs.sums.encode()
    kernel = _C.device_kernel(
        KernelRecord("sums", programs.language, code, programs.options, "sums", letters, formulas)
    )
    x = torch.arange(40.0, device=device)
    out = torch.zeros(3, device=device)
    kernel(x, out, 40)
    assert out.tolist() == [sum(range(16)), sum(range(16, 32)), sum(range(32, 40))]


def test_as_many_arguments_as_a_fused_optimizer_has(programs: TestPrograms, device: torch.device) -> None:
    if programs.many is None:
        pytest.skip("capability: kernels of many arguments. The driver's `test_programs` have none")
    count = 300
    code = programs.many(count).encode()
    kernel = _C.device_kernel(
        KernelRecord("many", programs.language, code, programs.options, "many", "w" + "r" * count, (*["1"] * 6, "0"))
    )
    values = torch.randn(count)
    out = torch.zeros(count, device=device)
    kernel(out, *values.to(device).unbind())
    assert torch.equal(out.cpu(), values + 1)


def test_nothing_is_launched_over_nothing(kernel: Launcher, device: torch.device) -> None:
    x = torch.ones(4, device=device)
    kernel(torch.empty(0, device=device), x, x, 0, 2.0, 0)
    assert x.tolist() == [1] * 4


def test_a_number_on_the_cpu_is_read_at_the_call(kernel: Launcher, device: torch.device) -> None:
    x, out = torch.ones(20, device=device), torch.zeros(20, device=device)
    b = torch.tensor(5.0)
    kernel(x, b, out, 20, 2.0, 0)
    b.fill_(9)
    assert out.tolist() == [7] * 20
    with pytest.raises(ValueError, match="reads a tensor of 2 elements on cpu"):
        kernel(x, torch.ones(2), out, 20, 2.0, 0)
    with pytest.raises(ValueError, match=r"writes a tensor of \d+ elements on cpu"):
        kernel(x, x, torch.ones(()), 1, 2.0, 0)


def test_arguments_that_do_not_fit(kernel: Launcher, device: torch.device) -> None:
    x = torch.ones(20, device=device)
    with pytest.raises(OverflowError, match="scale_and_shift is an integer of 32 bits"):
        kernel(x, x, x, 1 << 31, 2.0, 0)
    with pytest.raises(TypeError, match="takes 6 arguments"):
        kernel(x, x, x, 1)
    with pytest.raises(ValueError, match="scale_and_shift has -1 blocks in a dimension, computed by 'a3 16 ceildiv'"):
        kernel(x, x, x, -31, 2.0, 0)


def test_launches_are_in_the_order_of_their_streams(kernel: Launcher, device: torch.device) -> None:
    module = module_of(device)
    b = torch.zeros(1, device=device)
    x = torch.ones(1 << 16, device=device)
    side = torch.Stream(device)
    side.wait_stream(torch.accelerator.current_stream(device))
    with module.stream(side):
        for _ in range(10):
            kernel(x, b, x, 1 << 16, 2.0, 0)
    torch.accelerator.current_stream(device).wait_stream(side)
    kernel(x, b, x, 1 << 16, 1.0, 1)
    assert torch.equal(x.cpu(), torch.full((1 << 16,), 1025.0))


@pytest.mark.parametrize("number", ["of the device", "of the CPU"])
def test_a_graph_launches_at_each_replay(kernel: Launcher, device: torch.device, number: str) -> None:
    module = module_of(device)
    x, out = torch.ones(50, device=device), torch.zeros(50, device=device)
    b = torch.full((), 0.5, device=device if number == "of the device" else "cpu")
    graph = module.Graph()
    try:
        with module.graph(graph):
            kernel(x, b, out, 50, 2.0, 0)
            kernel(out, b, out, 50, 1.0, 1)
    except CaptureError as error:
        assert not has_entry("fill_async") and number == "of the CPU", error
        return
    b.fill_(0.5)
    assert out.tolist() == [0] * 50
    for value in (1.0, 4.0):
        x.fill_(value)
        graph.replay()
        assert out.tolist() == [2 * value + 2] * 50


def test_a_graph_describes_its_launches(kernel: Launcher, device: torch.device) -> None:
    if has_entry("graph_capture_begin"):
        return  # the driver captures, and the core knows nothing of what it was given
    module = module_of(device)
    x = torch.ones(5, device=device)
    graph = module.Graph(keep_graph=True)
    with module.graph(graph):
        kernel(x, x, x, 5, 1.0, 0)
    assert "scale_and_shift" in _C.graph_describe(graph._graph)


def test_the_profiler_knows_the_kernel(kernel: Launcher, device: torch.device) -> None:
    x = torch.ones(5, device=device)
    kernel(x, x, x, 5, 1.0, 0)  # builds it
    # Without acc_events torch 2.11 warns, once a process, that it
    # clears what it has between cycles.
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities()), acc_events=True) as profile:
        kernel(x, x, x, 5, 1.0, 0)
        torch.accelerator.synchronize(device)
    assert any(event.name in ("scale_and_shift", "scale") for event in profile.events())


def test_the_sanitizer_sees_its_accesses(kernel: Launcher, device: torch.device) -> None:
    module = module_of(device)
    first, second = torch.Stream(device), torch.Stream(device)
    x, b = torch.ones(5, device=device), torch.ones(1, device=device)
    torch.accelerator.synchronize(device)
    sanitizer.enable()
    try:
        with module.stream(first):
            kernel(b, b, x, 1, 1.0, 0)
        with module.stream(second):
            kernel(x, b, torch.empty(5, device=device), 5, 1.0, 0)
        (race,) = sanitizer.races()
        assert (race.first.op, race.second.op) == ("scale_and_shift", "scale_and_shift")
        assert race.first.is_write and not race.second.is_write
    finally:
        sanitizer.disable()
        torch.accelerator.synchronize(device)


def test_what_does_not_build_says_why_and_harms_nothing(
    kernel: Launcher, programs: TestPrograms, device: torch.device
) -> None:
    x = torch.ones(5, device=device)
    broken = scale(programs, "broken", programs.refused)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"(?s)program_build \(broken\).*unknown"):
            broken(x, x, x, 5, 1.0, 0)
    with pytest.raises(Exception, match="nothing_of_that_name") as caught:
        scale(programs, entry="nothing_of_that_name")(x, x, x, 5, 1.0, 0)
    assert "kernel_get" in str(caught.value)
    kernel(x, x, x, 5, 1.0, 0)
    assert x.cpu().isfinite().all()


def test_a_launch_that_the_driver_refuses_names_the_kernel(programs: TestPrograms, device: torch.device) -> None:
    x = torch.ones(5, device=device)
    formulas = ("1", *ONES, "a3", *ONES, "0")
    code = programs.scale.encode()
    kernel = _C.device_kernel(
        KernelRecord("too_wide", programs.language, code, programs.options, "scale", "rrwjfi", formulas)
    )
    with pytest.raises(ValueError, match=r"kernel_launch \(too_wide\) on device"):
        kernel(x, x, x, 1 << 30, 1.0, 0)
    kernel(x, x, x, 4, 1.0, 0)
    assert x.cpu().isfinite().all()


def test_threads_that_come_first_build_once(programs: TestPrograms, device: torch.device) -> None:
    kernel = scale(programs, "of_this_test_alone")
    out = [torch.zeros(7, device=device) for _ in range(8)]
    x, b = torch.ones(7, device=device), torch.ones(1, device=device)
    torch.accelerator.synchronize(device)
    failures: list[Any] = []
    start = threading.Barrier(8)

    def launch(result: torch.Tensor) -> None:
        try:
            start.wait()
            kernel(x, b, result, 7, 2.0, 0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=launch, args=(result,)) for result in out]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.accelerator.synchronize(device)
    assert not failures and all(result.tolist() == [3] * 7 for result in out)


def test_each_device_has_a_program(kernel: Launcher, device: torch.device, second_device: torch.device) -> None:
    for place in (device, second_device):
        x = torch.ones(5, device=place)
        kernel(x, x, x, 5, 1.0, 0)
        assert x[:1].isfinite().all()
    with pytest.raises(ValueError, match="tensors on devices 0 and 1"):
        kernel(torch.ones(5, device=device), torch.ones(5, device=second_device), x, 5, 1.0, 0)


def test_a_driver_that_builds_no_programs(device: torch.device) -> None:
    if has_entry("program_build"):
        return  # all of the others
    x = torch.ones(5, device=device)
    with pytest.raises(NotSupportedError, match="program_build"):
        scale(TestPrograms("any", "text", "text"))(x, x, x, 5, 1.0, 0)


@pytest.mark.parametrize(
    ("letters", "formula", "message"),
    [
        (
            "rwx",
            "1",
            r"argument 2 of the kernel k has the unknown letter 'x' in 'rwx'. The letters are: r \(the address of",
        ),
        ("rwll", "1", "several arguments of local memory"),
        ("rw", "a1 2 mul", "reads a1, but its arguments 'rw' have no integer at that index"),
        ("rwi", "a7", "reads a7"),
        ("rwi", "a2 2 pow", "the word 'pow', which is not a number"),
        ("rwi", "a2 mul", "too few values for 'mul'"),
        ("rwi", "a2 2", "returns 2 values"),
        ("rwi", "", "returns 0 values"),
        ("rwi", "9223372036854775808", "the word '9223372036854775808'"),
        ("rwi", "1 " * 17 + "add " * 16, "more than 16 values"),
    ],
)
def test_kernels_that_make_no_sense(letters: str, formula: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _C.device_kernel(KernelRecord("k", "opencl_c", b"", "", "k", letters, (formula, *ONES, "1", *ONES, "0")))
