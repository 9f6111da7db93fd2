# SPDX-License-Identifier: BSD-3-Clause
"""Packs: the output of `outboard kernels pack`, who finds it, and which packs are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from torch_outboard._sealed import absolute_path
from torch_outboard.cli import main
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.driver import Driver
from torch_outboard.kernels.builder import refused
from torch_outboard.kernels.disk import packs
from torch_outboard.kernels.disk.calls import CALLS, Samples
from torch_outboard.kernels.disk.files import Answer
from torch_outboard.kernels.disk.packs import ABOUT, Packs, folders_of
from torch_outboard.kernels.disk.store import Store
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
for one, wanted in zip(calls(x.to("ocl"), y.to("ocl")), calls(x, y), strict=True):
    torch.testing.assert_close(one.cpu(), wanted, rtol=1e-4, atol=1e-4)
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
    assert "some float32\n" in output and "7 plans in" in output, output
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_with_a_pack_nothing_is_built(run_python: RunPython, package: Path) -> None:
    before = contents(package / "pack")
    environment = {"CHIP": json.dumps(SECOND), "OUTBOARD_FALLBACK": "silent"}
    # By default run_python sets no packs; this test needs the driver's.
    program = "import os\ndel os.environ['OUTBOARD_KERNEL_PACKS']\n" + USE
    done = run_python(program, str(package), env=environment)
    statistics = json.loads(done.stdout.splitlines()[-1])
    assert statistics == {"plans": 6, "loaded": 0, "saved": 0, "packed": 7, "inductor": False}, done.stdout
    assert contents(package / "pack") == before


def test_a_pack_is_the_same_for_every_chip(make: Callable[..., str], package: Path, tmp_path: Path) -> None:
    make(tmp_path / "pack", SECOND)
    assert contents(tmp_path / "pack") == contents(package / "pack")


def test_failures_are_told_and_an_older_pack_goes(make: Callable[..., str], tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    theirs = {pack / "aa" / "old.plan": "", pack / "README": "", pack / "bb" / ("0" * 61): ""}
    old = {pack / "aa" / f"{'0' * 62}.{'1' * 32}": "", pack / "cc" / f"{'0' * 62}.refusal": ""}
    about = json.dumps({"torch": "1", "torch_commit": "2", "code": "3"})
    for path, text in {**theirs, **old, pack / ABOUT: about}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    output = make(tmp_path / "pack", FIRST, "others", status=1)
    assert "others float32 failed: AttributeError: 'Tensor' object has no attribute 'nothing'" in output
    assert sorted(contents(pack)) == sorted([ABOUT, *(str(path.relative_to(pack)) for path in theirs)])
    assert not (pack / "cc").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "^typo"), "'^typo' is in the name of no call, so there would be no pack"),
        (("--only", "^add int64", "--dtypes", "float32"), "is in the name of no call of float32"),
        (("--only", "("), "'(' is not a regular expression"),
    ],
)
def test_a_pack_of_nothing_is_an_error_and_leaves_the_older_one(
    arguments: tuple[str, ...], message: str, pack: Path
) -> None:
    before = contents(pack)
    given = ["kernels", "pack", str(pack), "--driver", "nothing", *arguments]  # no driver is looked for
    answer = CliRunner(env={"COLUMNS": "300"}).invoke(main, given)
    assert answer.exit_code == 2 and "Invalid value for --only" in answer.output and message in answer.output
    assert contents(pack) == before


# ---- Packs alone ----


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: Any) -> Path:
    """Return a pack with a plan for the key "a", of a process with one device."""
    described = {"torch": "2", "torch_commit": "c", "code": "d", "generator": "g", "generated_by": "h", "machine": "m"}
    monkeypatch.setattr(packs, "describe", lambda device: described)
    Store(tmp_path / "made").save("a", SIZES, ANSWER)
    (version,) = (tmp_path / "made").iterdir()
    version.rename(tmp_path / "pack")
    (tmp_path / "pack" / ABOUT).write_text(json.dumps(described))
    return tmp_path / "pack"


def change(pack: Path, **changed: str) -> None:
    (pack / ABOUT).write_text(json.dumps({**json.loads((pack / ABOUT).read_text()), **changed}))


def test_plans_are_found_by_key(pack: Path) -> None:
    found = Packs([pack])
    assert found.plans("a", 0) == [ANSWER] and found.plans("b", 0) == []
    assert found.loaded == 1 and found and not Packs([])


def test_refusals_are_found_too(pack: Path) -> None:
    refusal = refused(OperatorRefusal("it works on storages, not on elements [no-definition]"))
    store = Store(pack.parent / "more")
    store.save("b", SIZES, refusal)
    (path,) = (one for one in (pack.parent / "more").rglob("*.class"))
    target = pack / path.parent.name / path.name
    target.parent.mkdir(exist_ok=True)
    path.rename(target)
    found = Packs([pack])
    assert found.plans("b", 0) == [refusal]


@pytest.mark.parametrize("name", ["torch", "torch_commit", "code", "generator", "generated_by"])
def test_a_stale_pack_is_told_once(pack: Path, name: str, caplog: Any) -> None:
    change(pack, **{name: "another"})
    found = Packs([pack])
    assert found.plans("a", 0) == found.plans("a", 0) == []
    assert caplog.messages == [f"the pack of kernels in {pack} is not used: it was made for another {name}"]


def test_a_pack_of_another_machine_is_not_stale(pack: Path, caplog: Any) -> None:
    change(pack, machine="another")
    assert Packs([pack]).plans("b", 0) == [] and caplog.messages == []


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"torch": "2"}', "3"])
def test_what_does_not_describe_a_pack_is_told(pack: Path, content: str | None, caplog: Any) -> None:
    (pack / ABOUT).unlink() if content is None else (pack / ABOUT).write_text(content)
    assert Packs([pack]).plans("a", 0) == []
    (message,) = caplog.messages
    assert f"the pack of kernels in {pack} is not used: its pack.json can't be read, " in message


def test_damage_in_a_pack_is_told_and_left(pack: Path, caplog: Any) -> None:
    (path,) = pack.glob("??/*")
    content = path.read_bytes()[:-1]
    path.write_bytes(content)
    assert Packs([pack]).plans("a", 0) == []
    assert caplog.messages == [f"the plan of a pack in {path} is damaged; it is built"]
    assert path.read_bytes() == content


def test_where_packs_lie(monkeypatch: Any) -> None:
    class Vendor(Driver):
        kernel_packs = ("packs/cpu", "/packs/gpu")

    class Mine(Vendor):
        pass

    monkeypatch.delenv(packs.VARIABLE, raising=False)
    wanted = [Path(__file__).parent / "packs" / "cpu", Path("/packs/gpu")]
    assert folders_of(Vendor) == folders_of(Mine) == wanted and folders_of(Driver) == folders_of(None) == []
    monkeypatch.setenv(packs.VARIABLE, os.pathsep.join(["/one", "two"]))
    assert folders_of(Vendor) == folders_of(None) == [Path("/one"), absolute_path("two")]
    monkeypatch.setenv(packs.VARIABLE, "")
    assert folders_of(Vendor) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_calls_make_sense(dtype: torch.dtype) -> None:
    names = [name for name, call in CALLS.items() if dtype in call.dtypes]
    for name in names:
        CALLS[name].run(Samples(torch.device("cpu"), dtype, "cpu"))
    assert len(names) >= 10
