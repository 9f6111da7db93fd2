# SPDX-License-Identifier: BSD-3-Clause
"""Cache folders that cannot be written, damaged entries, and processes that share a cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torch_outboard.testing.plugin import RunPython

from .conftest import COUNTS_BUILDS

HEAD = f"""{COUNTS_BUILDS}
def function(x):
    return x * 3 + 1.25
"""

COMPILES = f"""{HEAD}
assert torch.compile(function, fullgraph=True)(x).tolist() == [7.25] * 7
print(len(builds))
"""

CANNOT_WRITE = f"""{HEAD}
import os, resource, signal
# Only then: torch makes the folder when its compiler is imported, and that fails without one on every device.
assert torch.compile(function, fullgraph=True)(x).tolist() == [7.25] * 7
torch._dynamo.reset()

def other(x):
    return x.cos() * 5 - len(sys.argv[2])  # each of the tests has its own

expected = other(torch.full((7,), 2.0))
folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
if sys.argv[2] == "unwritable":
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/proc/nowhere"  # nobody makes a folder there, not even root
else:
    # As on a full disk: what is written fails, by this process and by the compiler.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
try:
    torch.compile(other, fullgraph=True)(x)
except Exception as error:
    text = f"{{type(error).__name__}}: {{error}}"
else:
    raise AssertionError("it compiled")
torch.testing.assert_close(other(x).cpu(), expected)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
torch._dynamo.reset()
torch.testing.assert_close(torch.compile(other, fullgraph=True)(x).cpu(), expected)
os.write(1, text.encode())
"""

TOGETHER = f"""{HEAD}
# Each end of a pipe opens once the other does.
open(sys.argv[2], sys.argv[3]).close()
assert torch.compile(function, fullgraph=True)(x).tolist() == [7.25] * 7
print(sum(builder.get_target_file_path().endswith(".so") for builder in builds))
"""

WORKER = """
import functools, torch, torch_outboard
from torch._inductor.compile_worker.subproc_pool import SubprocException, SubprocPool
name = torch_outboard.attached_driver().name
pool = SubprocPool(1)


def ask(expression):
    return pool.submit(functools.partial(eval, expression)).result()


try:
    assert ask("__import__('torch_outboard').attached_driver().name") == name
    try:
        pool.submit(functools.partial(torch.ones, 2, device=name)).result()
    except SubprocException as error:
        assert "a worker of torch's compiler" in str(error), error
    else:
        raise AssertionError("the worker opened the device")
    assert ask("__import__('torch_outboard')._C.any_device_opened()") is False
finally:
    pool.shutdown()
assert (torch.ones(2, device=name) + 1).tolist() == [2, 2]
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a cache folder that these tests damage. Each test must repair it, since filling a folder takes long."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("damaged"))}


def test_a_folder_that_cannot_be_made(run_python: RunPython, driver_target: str, cache: dict[str, str]) -> None:
    """The error names the folder. Eager code still runs, and so does the compiler with another folder."""
    assert "/proc/nowhere" in run_python(CANNOT_WRITE, driver_target, "unwritable", env=cache).stdout


@pytest.mark.usefixtures("builds_cpp")
def test_a_full_disk(run_python: RunPython, driver_target: str, cache: dict[str, str]) -> None:
    """The error says so. Eager code still runs, and so does the compiler once there is room."""
    assert "File too large" in run_python(CANNOT_WRITE, driver_target, "full", env=cache).stdout


def _damage(content: bytes, how: str) -> bytes:
    middle = len(content) // 2
    if how == "cut":
        return content[:middle]
    return b"" if how == "emptied" else content[:middle] + bytes(255 - byte for byte in content[middle:])


@pytest.mark.usefixtures("builds_cpp")
@pytest.mark.parametrize("how,with_graphs", [("cut", False), ("emptied", True), ("flipped", True)])
def test_a_damaged_entry_is_made_again(
    run_python: RunPython, driver_target: str, cache: dict[str, str], how: str, with_graphs: bool
) -> None:
    run_python(COMPILES, driver_target, env=cache)
    folder = Path(cache["TORCHINDUCTOR_CACHE_DIR"])
    chosen = [path.with_suffix("") for path in folder.rglob("*.so.sha256")]
    if with_graphs:
        chosen += [path for name in ("fxgraph", "aotautograd") for path in (folder / name).rglob("*") if path.is_file()]
    assert chosen
    for path in chosen:
        path.write_bytes(_damage(path.read_bytes(), how))
    again = run_python(COMPILES, driver_target, env=cache)
    assert int(again.stdout) == 1
    assert "compiled again" in again.stderr


@pytest.mark.usefixtures("builds_cpp")
def test_a_library_that_was_cut_before_its_first_use(
    run_python: RunPython, driver_target: str, cache: dict[str, str]
) -> None:
    """As after a power cut during linking: the library has no hash yet, and loading it would be a bus error."""
    run_python(COMPILES, driver_target, env=cache)
    for hash_file in Path(cache["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.so.sha256"):
        hash_file.unlink()
        library = hash_file.with_suffix("")
        library.write_bytes(_damage(library.read_bytes(), "cut"))
    again = run_python(COMPILES, driver_target, env=cache)
    assert int(again.stdout) == 1
    assert "compiled again" in again.stderr


@pytest.mark.usefixtures("builds_cpp")
def test_two_processes_at_once(
    run_python: RunPython, driver_target: str, cache: dict[str, str], tmp_path: Path
) -> None:
    """Of two processes that compile the same graph at once, one starts the compiler and both get the result."""
    # In a fresh process, so that torch's questions to the compiler are in the folder, too.
    run_python(COMPILES, driver_target, env=cache, fresh=True)
    folder = Path(cache["TORCHINDUCTOR_CACHE_DIR"])
    for path in folder.rglob("*.so.sha256"):
        path.with_suffix("").unlink()
        path.unlink()
    for name in ("fxgraph", "aotautograd"):
        shutil.rmtree(folder / name)
    meeting = tmp_path / "meeting"
    os.mkfifo(meeting)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-c", TOGETHER, driver_target, str(meeting)]
    processes = [
        subprocess.Popen(
            [*command, end],
            env={**os.environ, **cache, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for end in "rw"
    ]
    answers = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    assert sum(int(output) for output, _ in answers) == 1, answers


def test_a_worker_opens_no_device(run_python: RunPython, driver_target: str) -> None:
    run_python(WORKER, env={"OUTBOARD_DRIVER": driver_target})
