# SPDX-License-Identifier: BSD-3-Clause
"""Failures to build a kernel: a refusal of the compiler is remembered, any other failure is raised and retried."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_outboard.testing.plugin import RunPython

BEGIN = """
import errno, gc, os, sys, pytest, torch, torch_outboard
from examples.own_kernels import OwnKernelsDriver
from torch_outboard import _C, DriverError, NotSupportedError, Status
from torch_outboard.kernels import refused_operators

HOUR = 3_600_000

class Failing(OwnKernelsDriver):
    failure = None
    asked = 0

    def program_build(self, *given):
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return super().program_build(*given)

driver = Failing()
module = torch_outboard.attach(driver)
device = "own_kernels"
x = torch.tensor([1.0, 4.0], device=device)

def fails_with(kind, operator=torch.sqrt):
    with pytest.raises(kind) as raised:
        operator(x)
    assert type(raised.value) is kind, type(raised.value)
    return raised.value
"""

ERRORS = {"OUTBOARD_FALLBACK": "error", "OUTBOARD_KERNEL_CACHE_DIR": ""}

PASSING = {
    "unavailable": ('DriverError("no licence", Status.UNAVAILABLE)', "DriverError"),
    "internal": ('OSError(errno.ENOSPC, "disk full")', "DriverError"),
    "memory": ("MemoryError()", "torch.OutOfMemoryError"),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_passing_failure_keeps_its_type_and_is_tried_again(name: str, run_compiler: RunPython) -> None:
    failure, kind = PASSING[name]
    code = f"""
    driver.failure = {failure}
    _C.set_retry_interval(HOUR)
    fails_with({kind})
    fails_with({kind})  # that one is new enough
    assert driver.asked == 1, driver.asked
    _C.set_retry_interval(0)
    fails_with({kind})
    assert driver.asked == 2, driver.asked
    driver.failure = None
    assert torch.sqrt(x).cpu().tolist() == [1, 2]
    x.new_ones(3, 2).sqrt()  # of another shape
    assert refused_operators() == [], refused_operators()
    """
    run_compiler(BEGIN + _dedent(code), env=ERRORS)


def test_what_the_compiler_refuses_is_remembered_and_said_once(run_compiler: RunPython) -> None:
    code = """
    import warnings

    said = []
    warnings.showwarning = lambda message, *where: said.append(str(message))
    for status, operator in ((Status.PROGRAM_REFUSED, torch.sqrt), (Status.INVALID_ARGUMENT, torch.exp)):
        driver.failure, driver.asked = DriverError("line 3: what?", status), 0
        _C.set_retry_interval(0)
        for _ in range(2):
            assert "line 3: what?" in str(fails_with(NotSupportedError, operator))
        assert driver.asked == 1, driver.asked
        driver.failure = None
        fails_with(NotSupportedError, operator)
    assert [operator for operator, _ in refused_operators()] == ["aten::exp", "aten::sqrt"]
    (text,) = said
    assert text.startswith("the kernel that was generated for aten::sqrt is not used"), text
    assert "line 3: what?" in text and "refused_operators()" in text, text
    """
    run_compiler(BEGIN + _dedent(code), env=ERRORS)


def test_an_interrupt_is_no_failure(run_compiler: RunPython) -> None:
    code = """
    driver.failure = KeyboardInterrupt()
    _C.set_retry_interval(HOUR)
    fails_with(KeyboardInterrupt)
    driver.failure = None
    assert torch.sqrt(x).cpu().tolist() == [1, 2]
    """
    run_compiler(BEGIN + _dedent(code), env=ERRORS)


def test_a_builder_without_disk_keeps_its_error_and_no_memory(run_compiler: RunPython) -> None:
    code = """
    import torch_outboard.kernels.plans.lower as lower

    (x + 1).cpu()
    before = module.memory_allocated()
    whole, asked = lower.lower, []

    def full(*given):
        asked.append(given[0].name)
        raise OSError(errno.ENOSPC, "No space left on device")

    lower.lower = full
    _C.set_retry_interval(HOUR)
    for _ in range(2):
        y = torch.ones(1 << 12, device=device)
        with pytest.raises(OSError, match="No space left"):
            y.sqrt()
        del y
    gc.collect()
    torch.accelerator.synchronize()  # `ones` may still wait for its program
    assert asked == ["aten::sqrt"], asked
    assert module.memory_allocated() == before
    lower.lower = whole
    _C.set_retry_interval(0)
    assert torch.sqrt(x).cpu().tolist() == [1, 2]
    """
    run_compiler(BEGIN + _dedent(code), env=ERRORS)


@pytest.mark.parametrize("threads", ["0", "2"])
def test_a_compiler_that_hangs_is_left_and_nothing_remembers_it(
    threads: str, run_compiler: RunPython, tmp_path: Path
) -> None:
    code = """
    import threading, time

    forever, driver.gate = threading.Event(), None
    assert (x + 1).cpu().tolist() == [2, 5]
    refusals = lambda: [path for path in (tmp / "programs").glob("*") if path.stat().st_size < 100]
    _C.set_build_limit(50)
    driver.gate = gate = threading.Event()
    if _C.set_build_threads(threads) or threads:  # the call returns before its program hangs
        y = torch.sqrt(x)
        with pytest.raises(ValueError, match="aten::sqrt.* has not finished after 0 s.*OUTBOARD_BUILD_SECONDS"):
            y.cpu()
    assert torch.sqrt(x).cpu().tolist() == [1, 2]  # by the next provider
    ((operator, reason),) = refused_operators()
    assert operator == "aten::sqrt" and "has not finished" in reason
    assert not refusals()
    # It ends after all: calls of other sizes have the kernel.
    driver.gate = None
    gate.set()
    with driver.ended:
        assert driver.ended.wait_for(lambda: driver.builds == 0, 60)
    _C.set_build_limit(60_000)
    calls = lambda: sum(row.calls for row in torch_outboard.coverage() if row[:2] == ("aten::sqrt", "generated"))
    before = calls()
    assert torch.stack([x, x]).sqrt().sum().item() == 6 and calls() == before + 1
    # The end of the process waits for no build that hangs.
    _C.set_build_limit(50)
    driver.gate = forever
    with pytest.raises(ValueError):
        torch.exp(x).cpu()
        torch.accelerator.synchronize()
        raise ValueError("the next provider ran it")
    print("ends")
    """
    setting = f"""
import pathlib, threading
threads, tmp = {threads}, pathlib.Path({str(tmp_path)!r})
"""
    hanging = """
    gate, builds, ended = None, 0, __import__("threading").Condition()

    def program_build(self, *given):
        with self.ended:
            self.builds += 1
        if (gate := self.gate) is not None:
            gate.wait()
        try:
            return super().program_build(*given)
        finally:
            with self.ended:
                self.builds -= 1
                self.ended.notify_all()

driver = Failing()
"""
    begin = BEGIN.replace("driver = Failing()\n", hanging.removeprefix("\n"))
    env = {"OUTBOARD_FALLBACK": "silent", "OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path)}
    assert "ends" in run_compiler(begin + setting + _dedent(code), env=env).stdout


def test_a_megabyte_of_a_compiler_is_cut(run_compiler: RunPython) -> None:
    code = """
    driver.failure = DriverError("line 3: what?" + "\u00fc" * (1 << 20), Status.PROGRAM_REFUSED)
    text = str(fails_with(NotSupportedError))
    assert "line 3: what?" in text and " bytes omitted]" in text and len(text) < 20_000, len(text)
    """
    run_compiler(BEGIN + _dedent(code), env=ERRORS)


@pytest.mark.parametrize("command", ["exit 1", "kill -9 $$"])
def test_a_compiler_that_dies_refuses_no_program(command: str, run_compiler: RunPython, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{command}\n")
    compiler.chmod(0o700)
    code = f"""
    os.environ["CC"] = {str(compiler)!r}
    _C.set_retry_interval(0)
    assert fails_with(DriverError).code == Status.UNAVAILABLE
    del os.environ["CC"]
    assert torch.sqrt(x).cpu().tolist() == [1, 2]
    """
    run_compiler(BEGIN + _dedent(code), env=ERRORS)


def _dedent(code: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in code.splitlines()) + "\n"


def test_a_fault_of_the_drivers_dialect_is_reported_and_what_it_cannot_express_is_not(run_compiler: RunPython) -> None:
    run_compiler(
        """
import warnings
from dataclasses import fields
import torch, torch_outboard
from torch_outboard._discovery import find_driver
from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.compile.simt.generator import OpenCLGenerator
from torch_outboard.kernels import builder

class Failing(Dialect):
    def source(self, kernel):
        raise failure

class FailingGenerator(OpenCLGenerator):
    dialect = Failing(**{field.name: getattr(OPENCL_C, field.name) for field in fields(Dialect)} | {"name": "failing"})

class Driver(find_driver("sim")):
    kernel_generator = FailingGenerator

torch_outboard.attach(Driver)
x = torch.ones(5, device="sim")
for failure, words in (
    (KeyError("WORD"), "the driver 'sim', in __main__, failed while generating a kernel for aten::exp (building "
     "its plan raised KeyError: 'WORD')"),
    (NotImplementedError("no WORD"), None),
):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        answer = builder.build("aten::exp", [x], 0, False, 0)
    assert "WORD" in answer.refusal, answer
    reported = [str(warning.message) for warning in said]
    assert all(words is not None and words in message for message in reported), reported
    assert len(reported) == (words is not None), reported
""",
        env=ERRORS,
    )
