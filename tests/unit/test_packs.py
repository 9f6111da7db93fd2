# SPDX-License-Identifier: BSD-3-Clause
"""Packs: the output of `outboard kernels pack`, who finds it, and which packs are refused."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import sqlite3
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from torch_outboard._private_files import absolute_path
from torch_outboard.cli import main
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.device import devices
from torch_outboard.driver import Driver
from torch_outboard.kernels.builder import refused
from torch_outboard.kernels.disk import key, packs
from torch_outboard.kernels.disk.calls import CALLS, Samples
from torch_outboard.kernels.disk.files import Answer
from torch_outboard.kernels.disk.pack_file import PackFile, program_name, write_pack_file
from torch_outboard.kernels.disk.packs import Packs, packs_of
from torch_outboard.kernels.disk.recorded import write_calls
from torch_outboard.kernels.packing.making import EmptyPack, run_in_processes, write_pack
from torch_outboard.kernels.refusal import OperatorRefusal
from torch_outboard.testing.plugin import RunPython

SIZES = [[[2, 3], [3, 1]]]
ANSWER = Answer("plan 1\n", [KernelRecord("add/0", "opencl_c", b"text", "", "entry", "rw", ("1",) * 7)])

# Of a vendor's package, with its pack beside the module. CHIP says which chip it has.
VENDOR = """
import json, os
from torch_outboard._discovery import find_driver
class Chip(find_driver("opencl")):
    kernel_packs = ["pack"]
    def __init__(self, **options):
        super().__init__(**{"host_access": False, **options})
    def device_properties(self, device):
        return {"machine": "cpu", **json.loads(os.environ["CHIP"])}
"""

# Both have room for the largest groups; a chip with less has plans of its own.
FIRST = {
    "name": "one",
    "multi_processor_count": 2,
    "max_threads_per_block": 256,
    "shared_memory_per_block": 65536,
}
SECOND = {
    "name": "another",
    "vendor": "x",
    "architecture": "y",
    "driver_version": "9",
    "major": 9,
    "multi_processor_count": 132,
    "warp_size": 32,
    "max_threads_per_block": 1024,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 49152,
    "l2_cache_size": 1 << 25,
    "total_memory": 1 << 33,
}

CALLS_OF_PACK = """
def calls(x, y):
    return x * y, x.t() @ x, x.sum(0), x.sum(), x.softmax(1), x.amax(1)

def refused(device):
    return torch.fft.rfft(torch.ones(4099, device=device))  # a prime number above the largest factor
"""

MAKE = f"""
import os, sys
os.environ.pop("TORCHINDUCTOR_VEC_ISA_OK", None)  # tests may be run with it, and it would be part of each key
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import torch, torch_outboard
if torch_outboard.attach("vendor:Chip").device_count() == 0:
    os._exit(3)
from torch_outboard.cli import main
from torch_outboard.kernels.disk.calls import CALLS, PackCall
{CALLS_OF_PACK}
CALLS.clear()
CALLS["some"] = PackCall(
    lambda samples: (calls(samples(300, 130), samples(130)), refused(samples.device)), (torch.float32,)
)
CALLS["others"] = PackCall(lambda samples: samples(3).nothing, (torch.float32,))
main(["kernels", "pack", sys.argv[1], "--driver", "vendor:Chip", "--only", sys.argv[2]])
"""

# In other sizes than the pack's.
USE = f"""
import json, logging, os, sys
logging.basicConfig(stream=sys.stdout)
os.environ.pop("TORCHINDUCTOR_VEC_ISA_OK", None)
sys.path.insert(0, sys.argv[1])
import torch, torch_outboard
from torch_outboard.kernels import plan_statistics
torch_outboard.attach("vendor:Chip")
{CALLS_OF_PACK}
x, y = torch.randn(31, 57), torch.randn(57)
for result, wanted in zip(calls(x.to("ocl"), y.to("ocl")), calls(x, y), strict=True):
    torch.testing.assert_close(result.cpu(), wanted, rtol=1e-4, atol=1e-4)
refused("ocl")
print(json.dumps({{**plan_statistics(), "inductor": "torch._inductor" in sys.modules}}))
"""


@pytest.fixture(scope="module")
def make(run_compiler: RunPython) -> Callable[..., str]:
    """Return a function that runs the command, for a folder beside the vendor's module."""

    def run(folder: Path, chip: dict[str, object], only: str = "some", status: int = 0) -> str:
        (folder.parent / "vendor.py").write_text(VENDOR)
        environment = {"CHIP": json.dumps(chip)}
        done = run_compiler(MAKE, str(folder), only, env=environment, status=None)
        if done.returncode == 3:
            pytest.skip("capability: an OpenCL device")
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def package(make: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a vendor's package."""
    folder = tmp_path_factory.mktemp("package")
    output = make(folder / "pack", FIRST)
    assert "some float32\n" in output and "7 plans and 0 programs in" in output, output
    return folder


def test_with_a_pack_nothing_is_built(run_python: RunPython, package: Path) -> None:
    before = (package / "pack").read_bytes()
    environment = {"CHIP": json.dumps(SECOND), "OUTBOARD_FALLBACK": "silent"}
    # By default run_python sets no packs; this test needs the driver's.
    program = "import os\ndel os.environ['OUTBOARD_KERNEL_PACKS']\n" + USE
    done = run_python(program, str(package), env=environment)
    statistics = json.loads(done.stdout.splitlines()[-1])
    assert statistics == {"plans": 6, "loaded": 0, "saved": 0, "packed": 7, "inductor": False}, done.stdout
    assert (package / "pack").read_bytes() == before


def test_a_pack_is_the_same_for_every_chip(make: Callable[..., str], package: Path, tmp_path: Path) -> None:
    make(tmp_path / "pack", SECOND)
    assert (tmp_path / "pack").read_bytes() == (package / "pack").read_bytes()


def test_failures_are_reported_and_an_older_pack_goes(make: Callable[..., str], tmp_path: Path) -> None:
    write(tmp_path / "pack", {"code": "another"})
    tmp_path.chmod(0o1777)  # as /tmp
    output = make(tmp_path / "pack", FIRST, "some|others", status=1)
    assert "others float32 failed: AttributeError: 'Tensor' object has no attribute 'nothing'" in output
    assert (
        f"Processes will not load it from this folder: other users can write to {tmp_path}: name a folder that"
        in output
    )
    tmp_path.chmod(0o700)
    assert PackFile(tmp_path / "pack").about["plans"] == 7


def test_if_no_call_leaves_a_plan_the_older_pack_stays(make: Callable[..., str], tmp_path: Path) -> None:
    before = write(tmp_path / "pack", {"code": "another"}).read_bytes()
    output = make(tmp_path / "pack", FIRST, "others", status=1)
    assert "others float32 failed: AttributeError" in output and " plans and " not in output
    assert f"Error: cannot write {tmp_path / 'pack'}, because no call created a plan\n" in output
    assert (tmp_path / "pack").read_bytes() == before


def test_an_empty_pack_of_changed_code_is_refused_with_this_reason(tmp_path: Path, monkeypatch: Any) -> None:
    assert not key.has_code_changed()
    monkeypatch.setattr(key, "own_code", lambda *folders: "another")
    with pytest.raises(EmptyPack, match="code changed while the command ran"):
        write_pack(tmp_path / "kept", tmp_path / "pack", {"one": KIND})
    assert not (tmp_path / "pack").exists()


# ---- Without a device ----

AHEAD_OF_TIME_GPU = "tests.simt_drivers:AheadOfTimeGpu"
PACK_AHEAD_OF_TIME = f"""
import os, sys
os.environ.pop("TORCHINDUCTOR_VEC_ISA_OK", None)
from torch_outboard.cli import main
main(["kernels", "pack", *sys.argv[1:], "--driver", "{AHEAD_OF_TIME_GPU}"])
"""
USE_AHEAD_OF_TIME = f"""
import json, logging, os, sys
logging.basicConfig(stream=sys.stdout)
os.environ.pop("TORCHINDUCTOR_VEC_ISA_OK", None)
import torch, torch_outboard
from torch_outboard.kernels import plan_statistics
module = torch_outboard.attach("{AHEAD_OF_TIME_GPU}")
x = torch.randn(31, 57).to("unbuilt")
y = x + x[0]
y += x
z = y + 0.5
module.synchronize()
calls = {{(row.op, row.provider) for row in torch_outboard.coverage()}}
print(json.dumps({{**plan_statistics(), "inductor": "torch._inductor" in sys.modules, "elsewhere": [
    op for op, provider in calls if provider not in ("generated", "native")]}}))
"""


@pytest.fixture(scope="module")
def pack_ahead(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Return a function that runs `outboard kernels pack` and returns its output."""
    run_compiler: RunPython = request.getfixturevalue("run_compiler")

    def run(*arguments: str | Path, status: int = 0) -> str:
        done = run_compiler(PACK_AHEAD_OF_TIME, *map(str, arguments), status=status)
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def ahead(pack_ahead: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a pack for two chips, without a device."""
    folder = tmp_path_factory.mktemp("ahead")
    calls = "^add float32$"
    output = pack_ahead(folder / "pack", "--arch", "one,two", "--only", calls, "--keep", folder / "kept")
    assert "failed" not in output
    return folder


def test_a_pack_without_a_device_leaves_nothing_to_build(run_python: RunPython, ahead: Path) -> None:
    done = run_python(
        USE_AHEAD_OF_TIME, env={"OUTBOARD_KERNEL_PACKS": str(ahead / "pack"), "OUTBOARD_FALLBACK": "error"}
    )
    statistics = json.loads(done.stdout.splitlines()[-1])
    # Its driver refuses all texts, so each program was in the pack.
    assert not statistics["inductor"] and not statistics["elsewhere"], done.stdout
    assert statistics["packed"] == statistics["plans"] == 3, done.stdout
    assert "pack" not in "".join(done.stdout.splitlines()[:-1])


def test_a_pack_is_built_in_parts(pack_ahead: Callable[..., str], ahead: Path, tmp_path: Path) -> None:
    kept = ahead / "kept"
    before = {path: path.stat().st_mtime_ns for path in kept.rglob("*") if path.is_file()}
    pack_ahead(tmp_path / "pack", "--arch", "one,two", "--only", "^add float32$", "--keep", kept)
    assert (tmp_path / "pack").read_bytes() == (ahead / "pack").read_bytes()
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*") if path.is_file()} == before


def test_each_recorded_call_gets_the_plan_of_its_own_sizes(pack_ahead: Callable[..., str], tmp_path: Path) -> None:
    """The plan of the first call would serve the second, and later programs may not make the first call at all."""
    calls = [
        '["aten::cat", "float32", [[{"tensor": "float32 8:16384 4:32 128:128 32:1"}, '
        '{"tensor": "float32 8:49152 4:64 128:384 32:1"}], -1]]',
        '["aten::cat", "float32", [[{"tensor": "float32 8:65536 8:32 256:256 32:1"}, '
        '{"tensor": "float32 8:131072 8:64 256:512 32:1"}], -1]]',
    ]
    write_calls(tmp_path / "calls", [], calls)
    only = ("--arch", "one", "--only", "^aten::cat", "--calls", tmp_path / "calls")
    assert "2 plans and 2 programs" in pack_ahead(tmp_path / "pack", *only)


def test_a_process_that_ends_while_it_runs_calls_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="a worker process that runs the calls for one, two ended early"):
        run_in_processes(
            "tests.simt_drivers:AheadOfTimeGpu", {}, ["one", "two"], functools.partial(os._exit, 3), bar=None
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "^typo"), "'^typo' matches no call, so the pack would be empty"),
        (("--only", "^add int64", "--dtypes", "float32"), "matches no call of float32"),
        (("--only", "("), "'(' is not a regular expression"),
    ],
)
def test_a_pack_of_nothing_is_an_error_and_leaves_the_older_one(
    arguments: tuple[str, ...], message: str, pack: Path
) -> None:
    before = pack.read_bytes()
    words = ["kernels", "pack", str(pack), "--driver", "nothing", *arguments]  # no driver is looked for
    answer = CliRunner(env={"COLUMNS": "300"}).invoke(main, words)
    assert answer.exit_code == 2 and "Invalid value for --only" in answer.output and message in answer.output
    assert pack.read_bytes() == before


# ---- Packs alone ----

KIND = {"generator": "g", "generated_by": "h", "machine": "m"}
KEY = json.dumps({"operator": "aten::add", "kind": KIND})
KEYS = [json.dumps({"operator": f"aten::{number % 3}", "kind": KIND, "number": number}) for number in range(99)]


def write(path: Path, changed: Mapping[str, Any] = {}, plans: Any = ((KEY, SIZES, ANSWER),)) -> Path:  # noqa: B006
    """Write a pack with a plan, and its program for the chips "one" and "two"."""
    devices = [{"architecture": name, "kind": {**KIND, **changed}} for name in ("one", "two")]
    about = {**packs.versions(), "devices": devices, "plans": 1, "programs": 2, **changed}
    programs = [(program_name(name, ANSWER.kernels[0]), name.encode() * 999) for name in ("one", "two")]
    write_pack_file(path, about, plans, programs)
    return path


class Chip(Driver):
    """A driver whose chip "new" runs what was compiled for "two"."""

    def compatible_architectures(self, architecture: str) -> list[str]:
        return [architecture, "two"] if architecture == "new" else [architecture]


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: Any) -> Path:
    """Return a pack, in a process with one device."""
    chip(monkeypatch, "one")
    return write(tmp_path / "pack")


def chip(monkeypatch: Any, name: str) -> None:
    monkeypatch.setattr(packs, "kind_of", lambda device: KIND)
    monkeypatch.setattr(devices, "get_device_properties", lambda device: SimpleNamespace(architecture=name))


def test_plans_are_found_by_key(pack: Path) -> None:
    opened = Packs([pack], Chip())
    assert opened.plans(KEY, 0) == [ANSWER] and opened.plans("b", 0) == []
    assert opened.program(ANSWER.kernels[0], 0) == b"one" * 999
    assert opened.loaded == 1 and opened and not Packs([])


def test_the_drivers_own_programs_are_passed_to_its_library(tmp_path: Path, monkeypatch: Any) -> None:
    chip(monkeypatch, "one")
    provided: list[object] = []
    monkeypatch.setattr(packs._C, "provide_kept", lambda *words: provided.append(words))
    driver = Chip()
    monkeypatch.setattr(driver, "own_programs", lambda: [("c", b"first", "-O"), ("c", b"not in the pack", "")])
    first = program_name("one", packs.own_kernels(driver)[0])
    path = tmp_path / "pack"
    devices_of_pack = [{"architecture": "one", "kind": KIND}]
    write_pack_file(path, {**packs.versions(), "devices": devices_of_pack}, [(KEY, SIZES, ANSWER)], [(first, b"built")])
    opened = Packs([path], driver)
    assert opened.plans("b", 0) == opened.plans("c", 0) == []
    assert provided == [(0, b"first", b"built")]


def test_programs_share_blocks_and_are_found_alone(pack: Path) -> None:
    kernels = [ANSWER.kernels[0]._replace(code=f"text {number}".encode()) for number in range(40)]
    programs = [(program_name("one", kernel), os.urandom(number * 7)) for number, kernel in enumerate(kernels)]
    plans = [(name, SIZES, ANSWER._replace(kernels=[kernel])) for name, kernel in zip(KEYS, kernels, strict=False)]
    devices = [{"architecture": "one", "kind": KIND}]
    write_pack_file(pack, {**packs.versions(), "devices": devices}, plans, programs)
    opened = Packs([pack], Chip())
    for place in random.sample(range(40), 40):
        (answer,) = opened.plans(plans[place][0], 0)
        assert answer.kernels == [kernels[place]]
        assert opened.program(kernels[place], 0) == programs[place][1]
    assert opened.program(kernels[0]._replace(code=b"text"), 0) == b""


def test_answers_of_a_class_are_stored_as_changes_of_its_first(pack: Path) -> None:
    text = os.urandom(4000).hex()
    plans = [(name, SIZES, ANSWER._replace(text=f"{number} {text}")) for number, name in enumerate(KEYS[:60])]
    plans += [(KEYS[number % 7], SIZES, ANSWER._replace(text=f"{number} {text}")) for number in range(60)]  # shared
    random.shuffle(plans)
    assert write(pack, plans=plans).stat().st_size < 100_000, "60 texts of 4,000 random bytes"
    opened = Packs([pack], Chip())
    for name in KEYS[:60]:
        wanted = {answer.text for of, _, answer in plans if of == name}
        assert {answer.text for answer in opened.plans(name, 0)} == wanted
    equal = write(pack.parent / "equal", plans=sorted(plans, key=str))
    assert equal.read_bytes() == pack.read_bytes()


def test_a_chip_gets_the_first_program_that_it_runs(pack: Path, monkeypatch: Any, caplog: Any) -> None:
    chip(monkeypatch, "new")
    assert Packs([pack], Chip()).program(ANSWER.kernels[0], 0) == b"two" * 999
    assert caplog.messages == []
    assert Packs([pack]).program(ANSWER.kernels[0], 0) == b"", "no driver says what else the chip runs"
    (message,) = caplog.messages
    assert message.endswith("has programs for one, two, but none for new: each is compiled at its first use")


def test_refusals_are_found_too(pack: Path) -> None:
    refusal = refused(OperatorRefusal("it works on storages, not on elements [no-definition]"))
    write(pack, plans=[(KEY, SIZES, refusal)])
    assert Packs([pack]).plans(KEY, 0) == [refusal]


@pytest.mark.parametrize("name", ["torch", "torch_commit", "code", "generator", "generated_by"])
def test_a_stale_pack_is_reported_once(pack: Path, name: str, caplog: Any) -> None:
    opened = Packs([write(pack, {name: "another"})])
    assert opened.plans(KEY, 0) == opened.plans(KEY, 0) == []
    difference = "generator" if name == "generated_by" else name
    assert caplog.messages == [f"the pack of kernels in {pack} is not used: it was made for another {difference}"]


def test_a_pack_of_another_machine_is_not_stale(pack: Path, caplog: Any) -> None:
    assert Packs([write(pack, {"machine": "another"})]).plans("b", 0) == [] and caplog.messages == []


def _other_database(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, kind TEXT, seal BLOB, content BLOB)")


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


FOREIGN: dict[str, Callable[[Path], object]] = {
    "does not exist": Path.unlink,
    "is not a regular file": _as_folder,
    "is not a pack of kernels": lambda path: path.write_bytes(b"PK\3\4"),
    "has no content, and is not a pack of kernels": lambda path: path.write_bytes(b""),
    "is another database, and is not a pack of kernels": _other_database,
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_file_is_reported_once(pack: Path, what: str, caplog: Any) -> None:
    FOREIGN[what](pack)
    opened = Packs([pack])
    assert opened.plans(KEY, 0) == opened.plans(KEY, 0) == []
    (message,) = caplog.messages
    assert message.startswith(f"the pack of kernels in {pack} is not used: it can't be read, ")
    assert message.endswith(what.partition(" and ")[2] or what) or what in message


@pytest.mark.parametrize("how", ["changed", "cut"])
def test_damage_is_reported_once_and_no_wrong_plan_is_used(pack: Path, how: str, caplog: Any) -> None:
    content = pack.read_bytes()
    wanted = [ANSWER], b"one" * 999
    warned = 0
    for place in range(0, len(content), 29):
        pack.write_bytes(
            content[:place] if how == "cut" else content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
        )
        caplog.clear()
        opened = Packs([pack], Chip())
        first = opened.plans(KEY, 0), opened.program(ANSWER.kernels[0], 0)
        # A row whose number has changed is a row that is not there.
        assert first[0] in (wanted[0], []) and first[1] in (wanted[1], b""), place
        assert len(caplog.messages) <= (0 if first == wanted else 1), place
        again = opened.plans(KEY, 0), opened.program(ANSWER.kernels[0], 0)
        assert again == first or (again == ([], b"") and len(caplog.messages) == 1), place
        warned += len(caplog.messages)
        assert not warned or not caplog.messages or str(pack) in caplog.text
    assert warned == place // 29 + 1 if how == "cut" else warned > 20


def test_a_pack_that_is_replaced_stays_in_use(pack: Path, caplog: Any) -> None:
    opened = Packs([pack], Chip())
    assert opened.plans("b", 0) == []
    write(pack, {"code": "another"})
    assert opened.plans(KEY, 0) == [ANSWER] and opened.program(ANSWER.kernels[0], 0) == b"one" * 999
    assert caplog.messages == []
    assert Packs([pack]).plans(KEY, 0) == [] and "it was made for another code" in caplog.text


@pytest.mark.parametrize("size", [0, 5000])
def test_a_pack_that_is_overwritten_in_use_is_reported_once(pack: Path, size: int, caplog: Any) -> None:
    plans = [(name, SIZES, ANSWER._replace(text=f"plan {os.urandom(99).hex()}")) for name in KEYS]
    opened = Packs([write(pack, plans=plans)], Chip())
    assert len(opened.plans(KEYS[0], 0)) == 1
    with pack.open("r+b") as file:  # as `cp` does
        file.truncate(size)
    later = [opened.plans(key, 0) for key, _, _ in plans]
    assert [] in later and later[-1] == []
    (message,) = caplog.messages
    assert message.startswith(f"the pack of kernels in {pack} is no longer used: {pack} is damaged (")


def test_a_plan_that_cannot_be_used_is_reported_and_left(pack: Path, caplog: Any) -> None:
    content = pack.read_bytes()
    opened = Packs([pack], Chip())
    (answer,) = opened.plans(KEY, 0)
    opened.drop(KEY, answer.text, "no reason")
    assert opened.plans(KEY, 0) == [] and pack.read_bytes() == content
    assert caplog.messages == [f"a plan of the pack {pack} can't be used (no reason); it is built"]


def test_equal_packs_are_equal_files(pack: Path) -> None:
    assert write(pack.parent / "other").read_bytes() == pack.read_bytes()
    assert stat.S_IMODE(pack.stat().st_mode) == 0o644 and len(list(pack.parent.iterdir())) == 2


def test_without_sqlite_a_pack_is_reported(pack: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch_outboard.kernels.disk.pack_file", None)
    assert Packs([pack]).plans(KEY, 0) == [] and "this Python can't read it, import of" in caplog.text


def test_where_packs_lie(monkeypatch: Any) -> None:
    class Vendor(Driver):
        kernel_packs = ("packs/cpu", "/packs/gpu")

    class Mine(Vendor):
        pass

    monkeypatch.delenv(packs.VARIABLE, raising=False)
    wanted = [Path(__file__).parent / "packs" / "cpu", Path("/packs/gpu")]
    assert packs_of(Vendor) == packs_of(Mine) == wanted and packs_of(Driver) == packs_of(None) == []
    monkeypatch.setenv(packs.VARIABLE, os.pathsep.join(["/one", "two"]))
    assert packs_of(Vendor) == packs_of(None) == [Path("/one"), absolute_path("two")]
    monkeypatch.setenv(packs.VARIABLE, "")
    assert packs_of(Vendor) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_calls_make_sense(dtype: torch.dtype) -> None:
    names = [name for name, call in CALLS.items() if dtype in call.dtypes]
    for name in names:
        CALLS[name].run(Samples(torch.device("cpu"), dtype, "cpu"))
    assert len(names) >= 10


def test_calls_run_on_the_current_device(run_python: Any) -> None:
    """A call may capture a graph, which is the current device's."""
    run_python("""
import torch, torch_outboard
module = torch_outboard.attach("sim", devices=2)
from torch_outboard.kernels.disk.calls import PackCall
from torch_outboard.kernels.packing.making import run_calls

seen = []
call = PackCall(lambda samples: seen.append((samples.device.index, module.current_device())), (torch.float32,))
assert list(run_calls(1, [("a call", call, torch.float32)], print)) == []
assert seen == [(1, 1)] and module.current_device() == 0
""")
