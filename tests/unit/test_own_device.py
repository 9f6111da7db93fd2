# SPDX-License-Identifier: BSD-3-Clause
"""The template `device`: programs, which this side builds and stores, and their launches in another process."""

from __future__ import annotations

START = """
import os, pytest, torch, torch_outboard
from torch_outboard import DriverError, Status
torch_outboard.attach("examples.own_device:OwnDeviceDriver", devices=1)
driver = torch_outboard.attached_driver()
x = torch.tensor([1.0, 4.0], device="own_device")

def fails(code, call):
    with pytest.raises(DriverError) as caught:
        call()
    assert caught.value.code == code, caught.value
    return str(caught.value)
"""
ERRORS = {"OUTBOARD_FALLBACK": "error"}
TEXT = """
DOUBLE = b"kernel void twice(in_memory float* x) { x[item_number()] *= 2; }"
program = driver.program_build(0, "own_kernels_c", DOUBLE, "")
kernel = driver.kernel_get(0, program, "twice")
stream = next(iter(driver.streams))

def launch(address, kernel=kernel, grid=(2, 1, 1), block=(1, 1, 1), args=(), shared_memory=0):
    driver.kernel_launch(0, stream, kernel, grid, block, [(0, address), *args], shared_memory, (0, 0, 0), False)
"""


def test_programs_are_kept_without_the_compiler(run_compiler, tmp_path):
    """The second process has no compiler, and cannot build one more text."""
    kept = {**ERRORS, "OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path)}
    run_compiler(START + "assert x.sqrt().tolist() == [1, 2]", env=kept)
    again = """
assert x.sqrt().tolist() == [1, 2]
assert "the compiler can't be run" in fails(Status.UNAVAILABLE, lambda: x.exp().cpu())
"""
    run_compiler(START + again, env={**kept, "CC": "false"})


def test_a_launch_is_sent_and_runs_in_its_stream(run_compiler):
    run_compiler(
        START
        + TEXT
        + """
import signal
os.kill(driver.link.process.pid, signal.SIGSTOP)
try:
    launch(x.data_ptr())
    launch(x.data_ptr() + 4, grid=(1, 1, 1))
    assert not torch.accelerator.current_stream().query()
finally:
    os.kill(driver.link.process.pid, signal.SIGCONT)
assert x.tolist() == [2, 16]
""",
        env=ERRORS,
    )


def test_mistakes_fail_in_the_call_or_at_the_next_wait(run_compiler):
    run_compiler(
        START
        + TEXT
        + """
build = driver.program_build
assert "programs are in 'own_kernels_c'" in fails(Status.INVALID_ARGUMENT, lambda: build(0, "ptx", b"", ""))
assert "unknown" in fails(Status.PROGRAM_REFUSED, lambda: build(0, "own_kernels_c", b"kernel void unknown(", ""))
fails(Status.INTERNAL, lambda: build(0, "binary", b"no library", ""))  # then the core builds the text
assert "no kernel 'thrice'" in fails(Status.NOT_FOUND, lambda: driver.kernel_get(0, program, "thrice"))
fails(Status.INVALID_ARGUMENT, lambda: driver.kernel_get(0, 999, "twice"))
fails(Status.INVALID_ARGUMENT, lambda: launch(x.data_ptr(), kernel=999))
fails(Status.INVALID_ARGUMENT, lambda: launch(x.data_ptr(), grid=(1, 2, 1)))
fails(Status.INVALID_ARGUMENT, lambda: launch(x.data_ptr(), args=[(2, 64)]))
fails(Status.INVALID_ARGUMENT, lambda: launch(x.data_ptr(), shared_memory=64))
launch(12345)
assert "0x3039 are not memory" in fails(Status.INTERNAL, torch.accelerator.synchronize)
driver.program_destroy(0, program)
fails(Status.INVALID_ARGUMENT, lambda: driver.program_destroy(0, program))
assert x.tolist() == [1, 4]
""",
        env=ERRORS,
    )
