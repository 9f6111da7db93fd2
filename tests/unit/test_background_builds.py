# SPDX-License-Identifier: BSD-3-Clause
"""Launches that are queued while their programs are built, on a synchronous driver with a compiler that waits."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from torch_outboard.testing.plugin import RunPython

BEGIN = """
import os, random, signal, threading, time
import pytest, torch, torch_outboard
import torch.nn.functional as F
from examples.own_kernels import OwnKernelsDriver
from torch_outboard import _C, DriverError, Status
from torch_outboard.kernels import refused_operators

class Slow(OwnKernelsDriver):
    '''A build waits while the compiler is held. Builds then end in a seeded order.'''

    def __init__(self):
        super().__init__()
        self.waiting, self.failures, self.lock = [], [], threading.Condition()
        self.is_held, self.refused, self.allocates_after = False, None, 0

    def mem_alloc(self, *given):
        '''Wait for as many builds as a test has asked for.'''
        while _C.count_builds()[2] < self.allocates_after:
            time.sleep(0.001)
        return super().mem_alloc(*given)

    def program_build(self, *given):
        with self.lock:
            if self.is_held:
                gate = threading.Event()
                self.waiting.append(gate)
                self.lock.notify_all()
        if self.is_held:
            gate.wait()
        if self.failures:
            raise self.failures.pop()
        if self.refused is not None and self.refused in given[2]:
            raise DriverError("line 3: what?", Status.PROGRAM_REFUSED)
        return super().program_build(*given)

    def hold(self):
        self.is_held = True

    def wait_for(self, count):
        with self.lock:
            assert self.lock.wait_for(lambda: len(self.waiting) >= count, 60), len(self.waiting)

    def release(self, seed=0):
        '''Let the builds end, those that begin meanwhile too.'''
        chosen = random.Random(seed)

        def let():
            while self.is_held or self.waiting:
                with self.lock:
                    if self.waiting:
                        self.waiting.pop(chosen.randrange(len(self.waiting))).set()
                time.sleep(0.005)

        thread = threading.Thread(target=let, daemon=True)
        thread.start()
        return thread

    def end(self, thread):
        self.is_held = False
        thread.join()

driver = Slow()
module = torch_outboard.attach(driver)
device = torch.device("own_kernels", 0)
cpu = torch.tensor([[1.0, -4.0, 3.0], [0.5, -2.0, 9.0]])
x = cpu.to(device)
assert (x + 1).cpu().equal(cpu + 1)  # the first program is waited for
assert torch.zeros_like(x).sum().item() == 0  # and the first fill, which a driver may lack

def chain(x, number):
    '''Some calls whose numbers are written into the kernels, so that each needs programs of its own.'''
    a = F.leaky_relu(x, 0.1 + number)
    b = F.elu(a, 1.5 + number)
    c = torch.zeros_like(b)
    c += F.hardtanh(b, -2.0 - number, 2.0 + number)
    c[0].copy_(a[1])
    return F.leaky_relu(c, 0.2 + number).sum(0), torch._foreach_add([a, b], 1.0 + number)[1]

def same(found, wanted):
    for result, reference in zip(found, wanted, strict=True):
        torch.testing.assert_close(result.cpu(), reference)
"""
ENV = {"OUTBOARD_FALLBACK": "error", "OUTBOARD_KERNEL_CACHE_DIR": "", "OUTBOARD_BUILD_THREADS": "3"}


def run(run_compiler: RunPython, code: str, status: int = 0, **env: str) -> str:
    return run_compiler(BEGIN + textwrap.dedent(code), env={**ENV, **env}, status=status).stdout


@pytest.mark.parametrize("setting", ["", "sanitizer", "blocking", "no threads"])
def test_values_do_not_depend_on_the_order_in_which_builds_end(run_compiler: RunPython, setting: str) -> None:
    env = {
        "": {},
        "sanitizer": {"OUTBOARD_SANITIZER": "raise"},
        "blocking": {"OUTBOARD_BLOCKING": "1"},
        "no threads": {"OUTBOARD_BUILD_THREADS": "0"},
    }[setting]
    code = f"""
    runs_ahead = {setting in ("", "sanitizer")}
    for seed in range(2):
        driver.hold()
        thread = None if runs_ahead else driver.release(seed)
        found = chain(x, seed)
        if runs_ahead:
            # The calls have returned, and nothing was launched that waits for a program.
            driver.wait_for(3)
            assert not torch.accelerator.current_stream().query()
            assert found[0].shape == (3,) and _C.count_builds()[1] == 3, _C.count_builds()
            thread = driver.release(seed)
        else:
            assert torch.accelerator.current_stream().query() and not driver.waiting
        same(found, chain(cpu, seed))
        assert torch.accelerator.current_stream().query()
        driver.end(thread)
    side = torch.Stream(device)
    driver.hold()
    thread = driver.release()
    y = F.leaky_relu(x, 7.0)
    side.wait_stream(torch.accelerator.current_stream())
    with module.stream(side):
        z = y * 2 + 1
        y.record_stream(side)
    torch.accelerator.current_stream().wait_stream(side)
    same([z], [F.leaky_relu(cpu, 7.0) * 2 + 1])
    driver.end(thread)
    """
    run(run_compiler, code, **env)


def test_failures_of_builds_are_those_of_queued_work(run_compiler: RunPython) -> None:
    code = """
    # One that may pass: the next wait raises it, and the next call builds again.
    driver.hold()
    y = F.leaky_relu(x, 0.11)
    driver.wait_for(1)
    driver.failures = [DriverError("no licence", Status.UNAVAILABLE)]
    driver.end(driver.release())
    with pytest.raises(DriverError, match="(?s)aten::leaky_relu.*no licence"):
        torch.accelerator.synchronize()
    torch.accelerator.synchronize()  # raised once
    same([F.leaky_relu(x, 0.11)], [F.leaky_relu(cpu, 0.11)])
    # A refusal: the same, and later calls go to the next provider, which waits for nothing.
    driver.hold()
    y = F.leaky_relu(x, 0.12)
    z = y + 1
    driver.wait_for(1)
    driver.failures = [DriverError("line 3: what?", Status.PROGRAM_REFUSED) for _ in range(9)]
    driver.end(driver.release())
    with pytest.raises(ValueError, match="(?s)aten::leaky_relu.*line 3: what.*OUTBOARD_BUILD_THREADS=0"):
        z.cpu()
    with pytest.raises(torch_outboard.NotSupportedError, match="(?s)aten::leaky_relu.*line 3: what"):
        F.leaky_relu(x, 0.12)
    with pytest.raises(torch_outboard.NotSupportedError, match="(?s)aten::elu.*line 3: what"):
        F.elu(x, 1.25)
    driver.failures = []
    same([z + 1], [z.cpu() + 1])
    """
    run(run_compiler, code)


REFUSED = """
    calls = (lambda x: F.leaky_relu(x, 0.125), lambda x: F.elu(x, 1.26))
    driver.refused = b"0.125"
"""


def test_later_processes_wait_for_a_program_that_was_refused_late(run_compiler: RunPython, tmp_path: Path) -> None:
    env = {"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path), "OUTBOARD_FALLBACK": "silent"}
    late = """
    driver.hold()
    y = calls[0](x)
    driver.wait_for(1)
    driver.end(driver.release())
    with pytest.raises(ValueError, match="(?s)aten::leaky_relu.*line 3: what.*Later processes wait for this build"):
        y.cpu()
    same([calls[0](x)], [calls[0](cpu)])  # by the next provider
    """
    run(run_compiler, REFUSED + late, **env)
    known = """
    driver.hold()
    thread = driver.release()
    same([calls[0](x)], [calls[0](cpu)])  # by the next provider, at once
    driver.end(thread)
    # Other programs are still built in the background.
    driver.hold()
    y = calls[1](x)
    driver.wait_for(1)
    driver.end(driver.release())
    same([y], [calls[1](cpu)])
    """
    run(run_compiler, REFUSED + known, **env)


@pytest.mark.parametrize("call", ["F.leaky_relu(x, 0.125)", "torch._foreach_mul([x], 3.0)[0]"])
def test_a_program_refused_before_its_launch_leaves_the_call_to_the_next_provider(
    run_compiler: RunPython, call: str
) -> None:
    code = f"""
    large = cpu.repeat(1 << 19, 1)
    x = large.to(device)
    driver.refused, driver.allocates_after = b"", _C.count_builds()[2] + 1
    result = {call}  # the build has failed before the result is allocated
    assert _C.count_builds()[2] == driver.allocates_after
    driver.refused, driver.allocates_after = None, 0
    torch.accelerator.synchronize()
    x = large
    same([result], [{call}])
    """
    run(run_compiler, code, OUTBOARD_FALLBACK="silent")


def test_other_work_of_the_stream_comes_after_pending_work(run_compiler: RunPython) -> None:
    code = """
    def negative(x):
        assert not driver.waiting  # the launches before it have their programs
        return torch.from_numpy(-x.cpu().numpy()).to(x.device)

    torch_outboard.register_kernel("aten::neg", negative)
    stream = torch.accelerator.current_stream()
    event, pinned = torch.Event(device), torch.empty(2, 3).pin_memory()
    of_host = {  # each gets the stream from the core, or waits for it
        "native": lambda y: -y,
        "event": lambda y: (event.record(), event.synchronize(), -y)[2],
        "copy": lambda y: (pinned.copy_(y, non_blocking=True), stream.synchronize(), -pinned)[2],
        "item": lambda y: -y.cpu() if y.sum().item() else None,
        "handle": lambda y: (_C.stream_handle(0, _C.current_stream(0)), y * -1)[1],
    }
    for number, (name, call) in enumerate(of_host.items()):
        driver.hold()
        y = F.leaky_relu(x, 0.21 + number)
        driver.wait_for(1)
        thread = driver.release(number)
        same([call(y)], [-F.leaky_relu(cpu, 0.21 + number)])
        driver.end(thread)
    """
    run(run_compiler, code)


def test_by_default_programs_are_built_in_the_background(run_compiler: RunPython) -> None:
    code = """
    driver.hold()
    y = F.leaky_relu(x, 0.61)
    driver.wait_for(1)
    assert not torch.accelerator.current_stream().query()
    driver.end(driver.release())
    same([y], [F.leaky_relu(cpu, 0.61)])
    """
    run(run_compiler, code, OUTBOARD_BUILD_THREADS="")


def test_captures_wait_for_programs(run_compiler: RunPython) -> None:
    code = """
    pool = module.graph_pool_handle()
    driver.hold()
    y = F.leaky_relu(x, 0.31)  # pending as the capture begins
    thread = driver.release()
    graph = module.Graph() if hasattr(module, "Graph") else module.CUDAGraph()
    with module.graph(graph):
        z = F.elu(y, 1.31)
    assert not driver.waiting
    graph.replay()
    same([z], [F.elu(F.leaky_relu(cpu, 0.31), 1.31)])
    driver.end(thread)
    """
    run(run_compiler, code)


def test_builds_are_spans_of_their_own_in_a_profile(run_compiler: RunPython) -> None:
    code = """
    from torch.profiler import ProfilerActivity, profile

    driver.hold()
    y = F.leaky_relu(x, 0.41)
    thread = driver.release()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as recorded:
        time_of = time.perf_counter()
        z = F.elu(y, 1.41)
        z.cpu()
        time_of = time.perf_counter() - time_of
    driver.end(thread)
    events = recorded.events()
    builds = [event for event in events if event.name == "program_build"]
    on_cpu = torch.autograd.DeviceType.CPU
    kernels = [event for event in events if "aten::elu" in event.name and event.device_type != on_cpu]
    assert builds and kernels, sorted({event.name for event in events})
    assert sum(event.time_range.elapsed_us() for event in kernels) < 0.5 * sum(
        event.time_range.elapsed_us() for event in builds), (kernels, builds)
    assert not any("leaky_relu" in event.name for event in events)  # queued before
    """
    run(run_compiler, code)


def test_ctrl_c_ends_the_wait_and_loses_nothing(run_compiler: RunPython) -> None:
    code = """
    driver.hold()
    found = chain(x, 5)
    driver.wait_for(1)
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        torch.accelerator.synchronize()
    thread = driver.release(3)
    same(found, chain(cpu, 5))
    driver.end(thread)
    """
    run(run_compiler, code)


def test_a_child_of_a_fork_and_the_end_of_the_process_wait_for_no_build(run_compiler: RunPython) -> None:
    code = """
    driver.hold()
    found = chain(x, 6)
    driver.wait_for(3)
    child = os.fork()
    if child == 0:
        try:
            x.cpu()
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) else 4)
        os._exit(5)
    assert os.waitpid(child, 0)[1] == 0
    thread = driver.release(1)
    same(found, chain(cpu, 6))
    driver.end(thread)
    # Builds that have not begun are left out at the end; those under way end first.
    driver.hold()
    chain(x, 7)
    driver.wait_for(3)
    asked = _C.count_builds()
    assert asked[0] > 0, asked
    driver.end(driver.release())
    print("ends")
    """
    assert "ends" in run(run_compiler, code)


def test_a_device_that_is_lost_during_a_build_refuses_its_queued_work(run_compiler: RunPython) -> None:
    code = """
    driver.hold()
    y = F.leaky_relu(x, 0.51)
    driver.wait_for(1)
    driver.failures = [DriverError("fell off the bus", Status.DEVICE_LOST)]
    driver.end(driver.release())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="lost"):
            y.cpu()
    """
    run(run_compiler, code)
