# SPDX-License-Identifier: BSD-3-Clause
"""Plans on disk: which are read again, which are not trusted, which are never stored."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_outboard._private_files import with_checksum
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.kernels.builder import refused
from torch_outboard.kernels.disk import key as keys
from torch_outboard.kernels.disk import store as stores
from torch_outboard.kernels.disk.files import Answer, Folder, is_plan_file_name, versions_in, written
from torch_outboard.kernels.disk.store import Store
from torch_outboard.kernels.refusal import CallRefusal, ClassRefusal, OperatorRefusal
from torch_outboard.testing.plugin import RunPython

SIZES = [[[2, 3], [3, 1]], [[3], [1]]]
ANSWER = Answer(
    "plan 1\n",
    [
        KernelRecord("add/0", "opencl_c", b"text", "-o", "entry", "rw", ("1",) * 7, ("index aten::add",)),
        KernelRecord("b", "spirv", b"\xff\0", "", "entry", "", ("1",) * 7),
    ],
)

# Calls with random values, judged by the CPU; 3: there is no device. What
# came of the plans is printed last.
PROGRAM = """
import json, logging, os, sys
logging.basicConfig(stream=sys.stdout)
import torch, torch_outboard
from torch_outboard.kernels import plan_statistics
if torch_outboard.attach("opencl", host_access=False, cache=False).device_count() == 0:
    os._exit(3)
torch.manual_seed(0)  # some values are rounded to the neighbour of the wanted half
rows, columns = int(sys.argv[1]), int(sys.argv[2])
x, y = torch.randn(rows, columns), torch.randn(columns)
i = torch.randint(0, rows, (5,))
def calls(x, y, i):
    z = x * 0.37 + y
    z.add_(x, alpha=float(i[0]) + 0.25)
    return z.softmax(1), z @ z.t(), z.sum(0), z.half().exp(), z.index_select(0, i), (z > 0).any(1)
for ours, wanted in zip(calls(x.to("ocl"), y.to("ocl"), i.to("ocl")), calls(x, y, i), strict=True):
    torch.testing.assert_close(ours.cpu(), wanted, rtol=2e-3, atol=1e-4)
print(json.dumps({**plan_statistics(), "inductor": "torch._inductor" in sys.modules}))
"""


# Eight threads that wait for each other before they call, with sizes of two kinds: for
# a row of one, plans are others.
THREADS = """
import json, os, sys, threading
import torch, torch_outboard
from torch_outboard.kernels import plan_statistics
if torch_outboard.attach("opencl", host_access=False, cache=False).device_count() == 0:
    os._exit(3)
barrier, wrong = threading.Barrier(8), []
def call(number):
    sizes = [(5, 1 if number % 3 == 0 else 6 + number), (6 + number,)]
    x, y = (torch.randn(size) for size in sizes)
    ours = [x.to("ocl"), y.to("ocl")]
    barrier.wait()
    if not torch.equal((ours[0] + ours[1]).cpu(), x + y):
        wrong.append(number)
threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({**plan_statistics(), "wrong": wrong, "inductor": "torch._inductor" in sys.modules}))
"""


def run(
    run_python: RunPython, folder: Path, rows: int = 33, columns: int = 70, program: str = PROGRAM
) -> tuple[dict[str, Any], str]:
    """Return the statistics of a process, and its whole output."""
    environment = {stores.VARIABLE: str(folder), "OUTBOARD_FALLBACK": "silent"}
    done = run_python(program, str(rows), str(columns), env=environment, status=None)
    if done.returncode == 3:
        pytest.skip("capability: an OpenCL device")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


@pytest.fixture(scope="module")
def first_run(run_compiler: RunPython, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Run a process that finds nothing, and return its statistics and its folder."""
    folder = tmp_path_factory.mktemp("first") / "plans"
    return run(run_compiler, folder)[0], folder


@pytest.fixture
def built(first_run: tuple[dict[str, Any], Path], tmp_path: Path) -> dict[str, Any]:
    """Return the first process's statistics; `tmp_path` is a copy of its folder."""
    shutil.copytree(first_run[1], tmp_path, dirs_exist_ok=True)
    return first_run[0]


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_second_process_builds_nothing(run_python: RunPython, built: dict[str, Any], tmp_path: Path) -> None:
    assert built["loaded"] == 0 and built["saved"] >= 8 and built["inductor"]
    second, output = run(run_python, tmp_path)
    assert second == {**built, "loaded": built["saved"], "saved": 0, "inductor": False}, output
    assert len(files_of(tmp_path)) == built["saved"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files_of(tmp_path))


def test_a_plan_is_found_among_dozens_of_its_class(
    run_python: RunPython, built: dict[str, Any], tmp_path: Path
) -> None:
    (folder,) = (Folder(path, pytest.fail, pytest.fail) for path in versions_in(tmp_path))
    entries = list(folder.entries())
    for number, entry in itertools.product(range(99), entries):
        assert entry.answer is not None
        head, guards, rest = entry.answer.text.partition("guard ")
        assert guards
        answer = entry.answer._replace(text=f"{head}guard {number} 0 lt\n{guards}{rest}")  # which does not hold
        key = json.loads(entry.path.read_text().partition("\n")[2])["key"]
        folder.place_of(key, answer).write_bytes(written(key, entry.sizes, answer))
    second, output = run(run_python, tmp_path)
    assert second["loaded"] == 100 * len(entries) and second["saved"] == 0 and not second["inductor"], output


def test_other_sizes_find_the_plans_or_add_theirs(run_python: RunPython, built: dict[str, Any], tmp_path: Path) -> None:
    second, output = run(run_python, tmp_path, 41, 13)
    assert second == {**built, "loaded": built["saved"], "saved": 0, "inductor": False}, output
    third, _ = run(run_python, tmp_path, 41, 1)  # guards fail: sizes of 1 are a case of their own
    assert third["loaded"] >= built["saved"] and third["saved"] >= 3 and third["inductor"]
    for rows, columns in ((7, 19), (30, 1)):
        fourth, output = run(run_python, tmp_path, rows, columns)
        assert fourth["saved"] == 0 and fourth["loaded"] == built["saved"] + third["saved"], output
        assert not fourth["inductor"]


def test_damage_is_reported_and_repaired(run_compiler: RunPython, built: dict[str, Any], tmp_path: Path) -> None:
    files = files_of(tmp_path)
    cut, flipped, emptied, swapped, intact = files[:5]
    cut.write_bytes(cut.read_bytes()[:-7])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    emptied.write_bytes(b"")
    swapped.write_bytes(intact.read_bytes())
    second, output = run(run_compiler, tmp_path)
    assert second["loaded"] == built["saved"] - 4 and second["saved"] == 4
    assert output.count("is damaged; it is built again") == 4
    third, _ = run(run_compiler, tmp_path)
    assert third["loaded"] == built["saved"]


def test_two_processes_of_eight_threads_at_once(run_python: RunPython, run_compiler: RunPython, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []

    def start(runs: RunPython) -> None:
        results.append(run(runs, tmp_path, program=THREADS)[0])

    # A server of forked processes serves one thread; these are two servers.
    servers = (run_python, run_compiler)
    for runs in servers:
        runs("")
    threads = [threading.Thread(target=start, args=(runs,)) for runs in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2 and not any(result["wrong"] for result in results)
    # Each has two plans, for rows of one and of more, and nobody has taken the other's away.
    assert all(2 <= result["plans"] == result["loaded"] + result["saved"] <= 4 for result in results)
    names = [path.name for path in files_of(tmp_path)]
    assert len(names) == 2 and len({name.partition(".")[0] for name in names}) == 1, names
    third, _ = run(run_python, tmp_path, program=THREADS)
    assert third == {"plans": 2, "loaded": 2, "saved": 0, "packed": 0, "wrong": [], "inductor": False}


REFUSED = """
import json, sys, torch, torch_outboard
from tests.simt_drivers import Unbuilt
from torch_outboard.kernels import plan_statistics, refused_operators
torch_outboard.attach(Unbuilt())
def call(length):
    torch.fft.rfft(torch.ones(length, device="unbuilt"))
    (reason,) = (reason for operator, reason in refused_operators() if operator == "aten::_fft_r2c")
    assert "fourier-length" in reason
    return {**plan_statistics(), "inductor": "torch._inductor.compile_fx" in sys.modules}
print(json.dumps([call(4099), call(4111)]))  # prime numbers
"""


def test_a_second_process_knows_the_refusal_of_a_call(run_python: RunPython, tmp_path: Path) -> None:
    env = {"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path), "OUTBOARD_FALLBACK": "silent"}
    first, second = json.loads(run_python(REFUSED, env=env).stdout)
    again, _ = json.loads(run_python(REFUSED, env=env).stdout)
    assert first["inductor"] and second["saved"] == first["saved"] + 1, "another length is another call"
    assert not again["inductor"] and again["loaded"] == first["saved"] and again["saved"] == 0


# ---- The store alone ----


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.plans("a") == []
    store.save("a", SIZES, ANSWER)
    assert store.plans("a") == [ANSWER] and store.plans("b") == []
    assert (store.loaded, store.saved) == (1, 1)


BAD_KERNELS: dict[str, Any] = {
    "no list": {},
    "a list for a kernel": [["add/0", "opencl_c", "text", "-o", "entry", "rw", ["1"] * 7, []]],
    "a missing field": {"geometry": None},
    "one field more": {"colour": "red"},
    "no text": {"letters": 3},
    "no texts": {"checks": [3]},
    "a text for texts": {"geometry": "1111111"},
    "code of another kind": {"code": ["text"]},
    "no base64": {"code": {"base64": 3}},
}


@pytest.mark.parametrize("what", BAD_KERNELS)
def test_a_kernel_of_another_form_is_damage(tmp_path: Path, what: str, caplog: Any) -> None:
    store = Store(tmp_path)
    store.save("a", SIZES, ANSWER)
    (path,) = files_of(tmp_path)
    content = json.loads(path.read_bytes().partition(b"\n")[2])
    change = BAD_KERNELS[what]
    if isinstance(change, dict) and change:
        changed = content["kernels"][0] | change
        content["kernels"][0] = {name: value for name, value in changed.items() if value is not None}
    else:
        content["kernels"] = change
    path.write_bytes(with_checksum(json.dumps(content).encode()))
    assert Store(tmp_path).plans("a") == [] and f"{path} is damaged" in caplog.text
    store.save("a", SIZES, ANSWER)
    assert Store(tmp_path).plans("a") == [ANSWER]


def test_half_a_pair_of_utf_16_is_damage(tmp_path: Path, caplog: Any) -> None:
    store = Store(tmp_path)
    store.save("a", SIZES, ANSWER)
    (path,) = files_of(tmp_path)
    content = json.loads(path.read_bytes().partition(b"\n")[2]) | {"plan": "plan 1 \ud800"}
    path.write_bytes(with_checksum(json.dumps(content).encode()))
    assert Store(tmp_path).plans("a") == [] and f"{path} is damaged" in caplog.text


def test_a_class_has_several_plans(tmp_path: Path) -> None:
    answers = [Answer(f"plan 1\nguard a0 {number} eq\n", ANSWER.kernels) for number in range(3)]
    for answer in answers:
        Store(tmp_path).save("a", SIZES, answer)
    Store(tmp_path).save("a", [], answers[1])  # the same, for other sizes
    assert sorted(Store(tmp_path).plans("a")) == answers and len(files_of(tmp_path)) == 3


def test_refusals_of_classes_are_kept_and_of_calls_are_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save("a", SIZES, refused(CallRefusal("its decomposition contains constant tensors [no-definition]")))
    assert store.plans("a") == [] and store.saved == 0 and not files_of(tmp_path)
    for kept in (
        OperatorRefusal("it works on storages, not on elements [no-definition]"),
        ClassRefusal("its tensors are complex, and no formula for complex numbers is known [complex-formula]"),
    ):
        store.save("a", SIZES, refused(kept))
        assert store.plans("a") == [refused(kept)] and store.plans("b") == []
    store.save("a", SIZES, ANSWER)
    assert store.plans("a") == [ANSWER], "what was refused in one process another has a plan for"


def test_refusals_of_single_calls_displace_no_plans(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(stores, "_MAX_CALL_REFUSALS", 2)
    store = Store(tmp_path)
    refusal = refused(CallRefusal("its decomposition contains constant tensors [no-definition]"))
    for key in "abc":
        store.save_single(key, SIZES, refusal)
    assert store.plans("a") == [refusal._replace(is_of_class=True)] and store.saved == 2 and store.plans("c") == []


@pytest.mark.parametrize("name", ["operator", "refusal", "refusal-" + "0" * 32])
def test_refusals_of_older_versions_are_not_read(tmp_path: Path, name: str) -> None:
    Store(tmp_path).save("a", SIZES, refused(OperatorRefusal("it works on storages, not on elements [no-definition]")))
    (path,) = files_of(tmp_path)
    path.rename(path.with_suffix(f".{name}"))
    assert Store(tmp_path).plans("a") == [] and is_plan_file_name(path.with_suffix(f".{name}").name)


def test_without_a_folder_nothing_is_kept() -> None:
    store = Store(None)
    store.save("a", SIZES, ANSWER)
    assert store.plans("a") == []
    assert store.saved == 0 and not store.is_usable


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o770])
def test_the_mode_of_an_own_folder_is_repaired(tmp_path: Path, mode: int, caplog: Any) -> None:
    Store(tmp_path / "ours").save("a", SIZES, ANSWER)
    (tmp_path / "ours").chmod(mode)
    store = Store(tmp_path / "ours")
    assert store.plans("a") == [ANSWER]
    store.save("b", SIZES, ANSWER)
    assert store.saved == 1 and (tmp_path / "ours").stat().st_mode & 0o777 == 0o700 and caplog.text == ""


def test_a_folder_in_one_that_others_may_write_is_not_used(tmp_path: Path, caplog: Any) -> None:
    """They could rename the folder and put another one in its place."""
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o777)
    store = Store(tmp_path / "above" / "ours")
    store.save("a", SIZES, ANSWER)
    store.save("b", SIZES, ANSWER)
    assert (
        store.saved == 0
        and caplog.text.count(f"other users can write to {tmp_path / 'above'}: run `chmod go-w` on it") == 1
    )
    (tmp_path / "above").chmod(0o1777)
    store.save("a", SIZES, ANSWER)
    assert store.saved == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="capability: giving files to another user")
def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "ours").mkdir(mode=0o700)
    os.chown(tmp_path / "ours", 12345, 12345)
    store = Store(tmp_path / "ours")
    store.save("a", SIZES, ANSWER)
    assert store.saved == 0 and "belongs to another user (12345)" in caplog.text


def test_a_link_is_no_folder(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    assert not Store(tmp_path / "ours").is_usable and "plans are not stored" in caplog.text


def test_a_folder_that_cannot_be_made_is_reported_once(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "plans")
    for key in "abc":
        store.save(key, SIZES, ANSWER)
    assert store.saved == 0 and caplog.text.count("plans are not stored") == 1


def test_a_disk_that_is_full_is_reported_once(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    store = Store(tmp_path)
    monkeypatch.setattr(stores.os, "replace", fail)
    store.save("a", SIZES, ANSWER)
    store.save("b", SIZES, ANSWER)
    assert store.saved == 0 and caplog.text.count("No space left") == 1 and files_of(tmp_path) == []


def test_folders_stay_within_their_bounds(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Store, "max_files", 3)
    for number in range(6):
        store = Store(tmp_path)
        store.save(f"key {number}", SIZES, ANSWER)
    assert len(files_of(tmp_path)) == 3 and Store(tmp_path).plans("key 5") == [ANSWER]
    unused, used, theirs = tmp_path / ("0" * 16), tmp_path / ("1" * 16), tmp_path / "photographs"
    for folder, age in (
        (unused, stores._MAX_UNUSED_SECONDS + 60),
        (used, 60),
        (theirs, stores._MAX_UNUSED_SECONDS + 60),
    ):
        folder.mkdir()
        time = folder.stat().st_mtime - age
        os.utime(folder, (time, time))
    Store(tmp_path).save("key 6", SIZES, ANSWER)
    assert not unused.exists() and used.exists() and theirs.exists()


def test_classes_stay_within_their_bounds(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Store, "max_plans_per_class", 2)
    store = Store(tmp_path)
    for number in range(4):
        store.save("a", SIZES, Answer(f"plan {number}", []))
        for age, path in enumerate(sorted(files_of(tmp_path), key=lambda file: file.stat().st_mtime_ns, reverse=True)):
            os.utime(path, (10.0 - age, 10.0 - age))  # clocks of file systems are coarse
    assert sorted(text for text, *_ in store.plans("a")) == ["plan 2", "plan 3"]


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
    monkeypatch.setattr(keys, "kind_of", lambda device: {"machine": f"machine {device}"})
    x = torch.empty(2, 3)

    def key(name: str = "aten::add.Tensor", arguments: Any = None, by_value: Any = (2,), aliased: bool = False) -> Any:
        return keys.key_of(name, [x, x, 0.5] if arguments is None else arguments, by_value, aliased, 0)

    class_keys = [
        key(),
        key("aten::sub.Tensor"),
        key(arguments=[x.double(), x, 0.5]),
        key(arguments=[x[0], x, 0.5]),
        key(arguments=[x.to("meta"), x, 0.5]),
        key(arguments=[x, 2.0, 0.5]),
        key(arguments=[x, 2, 0.5]),
        key(arguments=[x, x, 1]),
        key(by_value=()),
        key(by_value=(), arguments=[x, x, 0.25]),
        key(aliased=True),
        keys.key_of("aten::add.Tensor", [x, x, 0.5], (2,), False, 1),
    ]
    torch.use_deterministic_algorithms(True)
    try:
        class_keys.append(key())
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float64)
    try:
        class_keys.append(key())
    finally:
        torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    class_keys.append(key())
    monkeypatch.delenv("TORCHINDUCTOR_FREEZING")
    assert len(set(class_keys)) == len(class_keys) and None not in class_keys
    # Numbers that are read at each call, sizes and strides, and where
    # a cache is, make no difference.
    assert key(arguments=[x, x, 0.25]) == key() and key(arguments=[x, 7, 0.5]) == key(arguments=[x, 2, 0.5])
    assert key(arguments=[torch.empty(9, 4).t(), x, 0.5]) == key()
    assert keys.sizes_of([x, 1, [torch.empty(9, 4).t()]]) == [[[2, 3], [3, 1]], [[4, 9], [1, 4]]]
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert key() == class_keys[0]
    # A plan has its seed from each call, whatever the generator's state.
    drawn = [
        keys.key_of("aten::bernoulli.p", [x, 0.5, torch.Generator().manual_seed(n)], (1,), False, 0) for n in (1, 2)
    ]
    assert drawn[0] == drawn[1] is not None
    # A call that no text describes has no key.
    assert keys.key_of("aten::bernoulli.p", [x, 0.5, torch.Stream], (), False, 0) is None


def test_the_first_kernel_says_nothing_of_torchscript(run_python: RunPython, tmp_path: Path) -> None:
    """Inductor's import warns of things that torch does itself."""
    answer = run_python(
        """
import os, warnings
import torch, torch_outboard
if torch_outboard.attach("opencl", host_access=False, cache=False).device_count() == 0:
    os._exit(3)
warnings.resetwarnings()
warnings.simplefilter("error")
assert (torch.ones(3, device="ocl") + 1).sum().item() == 6
assert not torch_outboard.kernels.refused_operators(), torch_outboard.kernels.refused_operators()
assert warnings.filters[0][0] == "error" and len(warnings.filters) == 1, warnings.filters
""",
        env={"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path), "OUTBOARD_FALLBACK": "error"},
        fresh=True,
        status=None,
    )
    if answer.returncode == 3:
        pytest.skip("capability: an OpenCL device")
    assert answer.returncode == 0, answer.stderr
