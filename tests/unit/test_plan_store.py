# SPDX-License-Identifier: BSD-3-Clause
"""Plans on disk: what is read again, what is not trusted, what is never kept."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_outboard.kernels import store as stores
from torch_outboard.kernels.store import Answer, Store
from torch_outboard.testing.plugin import RunPython

ANSWER: Answer = (
    "plan 1\n",
    [
        ("add/0", "opencl_c", b"text", "-o", "entry", "rw", ["1"] * 7, ["index aten::add"]),
        ("b", "spirv", b"\xff\0"),
    ],
    "",
    False,
)

# Calls with random values, judged by the CPU; 3: there is no device. What came of the plans is printed last.
PROGRAM = """
import json, logging, os, sys
logging.basicConfig(stream=sys.stdout)
import torch, torch_outboard
from torch_outboard.kernels import plan_statistics
if torch_outboard.attach("opencl", host_access=False).device_count() == 0:
    os._exit(3)
x, y = torch.randn(33, 70), torch.randn(70)
i = torch.randint(0, 33, (5,))
def calls(x, y, i):
    z = x * 0.37 + y
    z.add_(x, alpha=float(i[0]) + 0.25)
    return z.softmax(1), z @ z.t(), z.sum(0), z.half().exp(), z.index_select(0, i), (z > 0).any(1)
for ours, wanted in zip(calls(x.to("ocl"), y.to("ocl"), i.to("ocl")), calls(x, y, i), strict=True):
    torch.testing.assert_close(ours.cpu(), wanted, rtol=2e-3, atol=1e-4)
print(json.dumps({**plan_statistics(), "inductor": "torch._inductor.lowering" in sys.modules}))
"""


def run(run_python: RunPython, folder: Path) -> tuple[dict[str, Any], str]:
    """Gives the statistics of a process, and all that it printed."""
    done = run_python(
        PROGRAM, env={stores.VARIABLE: str(folder), "OUTBOARD_FALLBACK": "silent"}, status=None, fresh=True
    )
    if done.returncode == 3:
        pytest.skip("capability: an OpenCL device")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


def files_of(folder: Path) -> list[Path]:
    return sorted(one for one in folder.rglob("*") if one.is_file())


def test_a_second_process_builds_nothing(run_python: RunPython, tmp_path: Path) -> None:
    first, _ = run(run_python, tmp_path / "plans")
    assert first["loaded"] == 0 and first["saved"] >= 8 and first["inductor"]
    second, output = run(run_python, tmp_path / "plans")
    assert second == {"plans": first["plans"], "loaded": first["saved"], "saved": 0, "inductor": False}, output
    assert len(files_of(tmp_path / "plans")) == first["saved"]
    assert all(one.stat().st_mode & 0o077 == 0 for one in files_of(tmp_path / "plans"))


def test_damage_is_told_and_repaired(run_python: RunPython, tmp_path: Path) -> None:
    first, _ = run(run_python, tmp_path)
    files = files_of(tmp_path)
    cut, flipped, emptied, swapped, other = files[:5]
    cut.write_bytes(cut.read_bytes()[:-7])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    emptied.write_bytes(b"")
    swapped.write_bytes(other.read_bytes())
    second, output = run(run_python, tmp_path)
    assert second["loaded"] == first["saved"] - 4 and second["saved"] == 4
    assert output.count("is damaged; it is built again") == 4
    third, _ = run(run_python, tmp_path)
    assert third["loaded"] == first["saved"]


def test_two_processes_at_once(run_python: RunPython, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    # Each server of forked processes serves one thread; these are processes of their own.
    threads = [threading.Thread(target=lambda: results.append(run(run_python, tmp_path)[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2 and all(one["loaded"] + one["saved"] == results[0]["plans"] for one in results)
    assert all(len(one.name) == 62 for one in files_of(tmp_path)), "a file that was being written is left"


# ---- The store alone ----


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load("a") is None
    store.save("a", ANSWER)
    assert store.load("a") == ANSWER and store.load("b") is None
    assert (store.loaded, store.saved) == (1, 1)
    refusal: Answer = ("", [], "it is random", True)
    store.save("a", refusal)
    assert Store(tmp_path).load("a") == refusal


def test_without_a_folder_nothing_is_kept() -> None:
    store = Store(None)
    store.save("a", ANSWER)
    assert store.load("a") is None and store.saved == 0 and not store.is_usable


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o770])
def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, mode: int, caplog: Any) -> None:
    Store(tmp_path / "ours").save("a", ANSWER)
    (tmp_path / "ours").chmod(mode)
    store = Store(tmp_path / "ours")
    assert store.load("a") is None and store.load("a") is None
    store.save("b", ANSWER)
    assert store.saved == 0 and len(files_of(tmp_path)) == 1
    assert caplog.text.count("that its user alone may write") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="capability: giving files to another user")
def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "ours").mkdir(mode=0o700)
    os.chown(tmp_path / "ours", 12345, 12345)
    store = Store(tmp_path / "ours")
    store.save("a", ANSWER)
    assert store.saved == 0 and "that its user alone may write" in caplog.text


def test_a_link_is_no_folder(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    assert not Store(tmp_path / "ours").is_usable and "plans are not kept" in caplog.text


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "plans")
    for key in "abc":
        store.save(key, ANSWER)
    assert store.saved == 0 and caplog.text.count("plans are not kept") == 1


def test_a_disk_that_is_full_is_told_once(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    store = Store(tmp_path)
    monkeypatch.setattr(stores.os, "replace", fail)
    store.save("a", ANSWER)
    store.save("b", ANSWER)
    assert store.saved == 0 and caplog.text.count("No space left") == 1 and files_of(tmp_path) == []


def test_folders_stay_within_their_bounds(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(stores, "_MOST_FILES", 3)
    for number in range(6):
        store = Store(tmp_path)
        store.save(f"key {number}", ANSWER)
    assert len(files_of(tmp_path)) == 3 and Store(tmp_path).load("key 5") == ANSWER
    unused, used, theirs = tmp_path / ("0" * 16), tmp_path / ("1" * 16), tmp_path / "photographs"
    for folder, age in ((unused, stores._KEPT_SECONDS + 60), (used, 60), (theirs, stores._KEPT_SECONDS + 60)):
        folder.mkdir()
        time = folder.stat().st_mtime - age
        os.utime(folder, (time, time))
    Store(tmp_path).save("key 6", ANSWER)
    assert not unused.exists() and used.exists() and theirs.exists()


def test_where_plans_are_kept(monkeypatch: Any) -> None:
    for name in (stores.VARIABLE, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert stores.default_folder() is None
    monkeypatch.setenv("HOME", "/home/somebody")
    assert stores.default_folder() == Path("/home/somebody/.cache/torch_outboard/kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert stores.default_folder() == Path("/home/somebody/.cache/torch_outboard/kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert stores.default_folder() == Path("/cache/torch_outboard/kernels")
    monkeypatch.setenv(stores.VARIABLE, "/plans")
    assert stores.default_folder() == Path("/plans")
    monkeypatch.setenv(stores.VARIABLE, "")
    assert stores.default_folder() is None


def test_what_a_plan_depends_on_is_in_its_key(monkeypatch: Any) -> None:
    monkeypatch.setattr(stores, "_device", lambda device: {"device": f"chip {device}"})
    x = torch.empty(2, 3)

    def key(name: str = "aten::add.Tensor", arguments: Any = None, by_value: Any = (2,), aliased: bool = False) -> Any:
        return stores.key_of(name, [x, x, 0.5] if arguments is None else arguments, by_value, aliased, 0)

    keys = [
        key(),
        key("aten::sub.Tensor"),
        key(arguments=[x.double(), x, 0.5]),
        key(arguments=[x.t().contiguous().t(), x, 0.5]),
        key(arguments=[torch.empty(2, 4), x, 0.5]),
        key(arguments=[x, 2.0, 0.5]),
        key(arguments=[x, 2, 0.5]),
        key(arguments=[x, x, 1]),
        key(by_value=()),
        key(by_value=(), arguments=[x, x, 0.25]),
        key(aliased=True),
        stores.key_of("aten::add.Tensor", [x, x, 0.5], (2,), False, 1),
    ]
    torch.use_deterministic_algorithms(True)
    try:
        keys.append(key())
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    try:
        keys.append(key())
    finally:
        torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    keys.append(key())
    monkeypatch.delenv("TORCHINDUCTOR_FREEZING")
    assert len(set(keys)) == len(keys) and None not in keys
    # Numbers that are read at each call, and where a cache is, make no difference.
    assert key(arguments=[x, x, 0.25]) == key() and key(arguments=[x, 7, 0.5]) == key(arguments=[x, 2, 0.5])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert key() == keys[0]
    # A plan has its seed from each call, whatever the generator's state.
    drawn = [
        stores.key_of("aten::bernoulli.p", [x, 0.5, torch.Generator().manual_seed(n)], (1,), False, 0) for n in (1, 2)
    ]
    assert drawn[0] == drawn[1] is not None
    # Of what no text describes there is none.
    assert stores.key_of("aten::bernoulli.p", [x, 0.5, torch.Stream], (), False, 0) is None
