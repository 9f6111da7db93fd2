# SPDX-License-Identifier: BSD-3-Clause
"""One small program at the limits of the system: threads, descriptors, memory, disk space, a read-only disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torch_outboard.testing.plugin import RunPython

# A call whose kernels are there, and calls that need kernels which aren't; 3: there is no
# device. A call may raise, but nothing aborts, hangs or is wrong, and what was known
# before works again afterwards.
PROGRAM = """
import os, resource, sys
import torch, torch_outboard
driver, what = sys.argv[1:]
options = {"host_access": False, "cache": False} if driver == "opencl" else {}
if torch_outboard.attach(driver, **options).device_count() == 0:
    os._exit(3)
device = torch.device(torch_outboard.attached_driver().name, 0)
x = torch.arange(12.0, requires_grad=True)
y = x.detach().to(device).requires_grad_()
CALLS = [lambda z: z - 1, lambda z: z * z, lambda z: torch.autograd.grad((z - 1).sum(), z)[0]]
if what == "memory":
    CALLS.append(lambda z: z.detach().repeat(1000, 1000, 5) - 1)

def check(call):
    torch.testing.assert_close(call(y).cpu(), call(x))

check(CALLS[0])
limits = {"threads": resource.RLIMIT_NPROC, "descriptors": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS}
before, held = None, []
if what in limits:
    if what == "threads" and os.geteuid() == 0:
        os.setresuid(65533, 65533, 65533)
    before = resource.getrlimit(limits[what])
    pages = int(open("/proc/self/statm").read().split()[0])
    lower = {"threads": 0, "descriptors": 256, "memory": (pages << 12) + (512 << 20)}[what]
    resource.setrlimit(limits[what], (lower, before[1]))
try:
    while what == "descriptors":
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
raised = []
for call in CALLS:
    try:
        check(call)
    except (RuntimeError, OSError, ImportError, MemoryError) as error:
        raised.append(type(error).__name__)
for descriptor in held:
    os.close(descriptor)
if before is not None:
    resource.setrlimit(limits[what], before)
check(lambda z: z[:7] - 1)
print(*raised)
"""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small disk, and yield a function that changes its options."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> Path:
        command = shutil.which("mount")
        words = [command or "", "-t", "tmpfs", "-o", options, "none", str(folder)]
        if command is None or subprocess.run(words, capture_output=True).returncode != 0:
            pytest.skip("capability: mounting a disk")
        return folder

    yield mount
    while os.path.ismount(folder):
        subprocess.run(["umount", str(folder)], check=True)


def run(run_python: RunPython, driver: str, limit: str, cache: Path, pocl: Path) -> tuple[list[str], str]:
    env = {"OUTBOARD_KERNEL_CACHE_DIR": str(cache), "OUTBOARD_FALLBACK": "error", "POCL_CACHE_DIR": str(pocl)}
    done = run_python(PROGRAM, driver, limit, env=env, status=None, fresh=True)
    if done.returncode == 3:
        pytest.skip(f"capability: a device of {driver}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize("what", ["threads", "descriptors", "memory"])
@pytest.mark.parametrize("driver", ["sim", "opencl"])
def test_a_process_without_more(run_python: RunPython, tmp_path: Path, driver: str, what: str) -> None:
    run(run_python, driver, what, tmp_path / "cache", tmp_path / "pocl")


@pytest.mark.parametrize("driver", ["sim", "opencl"])
def test_a_disk_that_is_full(
    run_python: RunPython, mounted: Callable[[str], Path], tmp_path: Path, driver: str
) -> None:
    disk = mounted("size=16k,mode=700")
    raised, errors = run(run_python, driver, "disk", disk / "cache", tmp_path / "pocl")
    assert not raised and ("No space left on device" in errors) == (driver == "opencl"), errors


@pytest.mark.parametrize("driver", ["sim", "opencl"])
def test_a_disk_that_is_only_read(
    run_python: RunPython, mounted: Callable[[str], Path], tmp_path: Path, driver: str
) -> None:
    disk = mounted("size=8m,mode=700")
    run(run_python, driver, "disk", disk / "cache", tmp_path / "pocl")
    files = sorted(disk.rglob("*"))
    mounted("remount,ro")
    raised, _ = run(run_python, driver, "disk", disk / "cache", tmp_path / "pocl")
    assert not raised and sorted(disk.rglob("*")) == files
    raised, errors = run(run_python, driver, "disk", disk / "other", tmp_path / "pocl")
    assert not raised and ("Read-only file system" in errors) == (driver == "opencl"), errors
