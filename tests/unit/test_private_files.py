# SPDX-License-Identifier: BSD-3-Clause
"""Files on disk that run in this process: a file that others may have written is not read."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torch_outboard import _private_files
from torch_outboard._private_files import make_private_folders, read_private, with_checksum, write_atomically
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.kernels.disk import packs
from torch_outboard.kernels.disk.files import Answer
from torch_outboard.kernels.disk.pack_file import write_pack_file
from torch_outboard.kernels.disk.store import Store
from torch_outboard.kernels.tune import schedule_table
from torch_outboard.testing.plugin import RunPython

SIZES = [[[2, 3], [3, 1]]]
KEY = json.dumps({"operator": "aten::add"})
ANSWER = Answer("plan 1\n", [KernelRecord("add/0", "opencl_c", b"text", "", "entry", "rw", ("1",) * 7)])
ATTACKER, VICTIM = 65533, 65534

two_users = pytest.mark.skipif(os.geteuid() != 0, reason="capability: processes of other users")


def as_user(user: int, function: Callable[[], object]) -> None:
    """Run a function in a child that belongs to another user, and fail with its error."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder that other users can enter, unlike the usual folders of tests."""
    folder = Path(os.path.realpath(tmp_path_factory.mktemp("shared")))
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.geteuid() and not path.stat().st_mode & stat.S_IXOTH:
            path.chmod(path.stat().st_mode | stat.S_IXOTH)
    yield folder


# ---- What is wrong with a file ----


def _flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes(255 - byte for byte in content[-1:]))


def _as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _as(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def _enlarge(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 30)


# By what a message says of it.
NOT_TRUSTED: dict[str, Callable[[Path], None]] = {
    "is a symbolic link, which is never followed": _as_link,
    "is not a regular file": _as(os.mkfifo),
    "has 1073741824 bytes, more than this package ever writes": _enlarge,
    "other users can write to": lambda path: path.chmod(0o620),
}
if os.geteuid() == 0:
    NOT_TRUSTED["belongs to another user (65533)"] = lambda path: os.chown(path, ATTACKER, ATTACKER)
DAMAGED: dict[str, Callable[[Path], None]] = {
    "empty": lambda path: path.write_bytes(b"") and None,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]) and None,
    "flipped": _flip,
    "of another shape": lambda path: path.write_bytes(with_checksum(b"[]")) and None,
    "nested": lambda path: path.write_bytes(with_checksum(b"[" * 100000)) and None,
    "of other names": lambda path: path.write_bytes(with_checksum(b'{"key": "a"}')) and None,
    "no text": lambda path: path.write_bytes(with_checksum(b"\xff\xfe")) and None,
}
WRONG = {**NOT_TRUSTED, **DAMAGED}


@pytest.mark.parametrize("what", NOT_TRUSTED)
def test_what_others_may_have_written_is_not_read(tmp_path: Path, what: str) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"content")
    assert read_private(path) == b"content" and read_private(tmp_path / "none") is None
    NOT_TRUSTED[what](path)
    with pytest.raises(PermissionError) as caught:
        read_private(path)
    assert what in str(caught.value) and str(path) in str(caught.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(PermissionError, match="is not a regular file"):
        read_private(tmp_path / "file")
    (tmp_path / "other").write_text("")
    with pytest.raises(NotADirectoryError):
        read_private(tmp_path / "other" / "file")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_the_folder_of_a_file_counts_too(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "above" / "folder" / "file"
    path.parent.mkdir(parents=True)
    write_atomically(path, b"content")
    path.parent.chmod(mode)
    with pytest.raises(PermissionError, match=f"other users can write to {path.parent}: "):
        read_private(path)
    path.parent.chmod(0o755)
    path.parent.parent.chmod(0o1777)
    assert read_private(path) == b"content"
    path.parent.parent.chmod(0o777)
    with pytest.raises(PermissionError, match=f"other users can write to {path.parent.parent}: "):
        read_private(path)


def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    write_atomically(tmp_path / "theirs" / "file", b"content")
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    with pytest.raises(PermissionError, match="is a link or not a folder"):
        read_private(tmp_path / "ours" / "file")
    with pytest.raises(PermissionError, match="is a link or not a folder"):
        make_private_folders(tmp_path / "ours")


def test_names_that_are_no_text_are_shown(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b\xc3\xa9"))
    write_atomically(path, b"content")
    assert read_private(path) == b"content"
    path.chmod(0o666)
    with pytest.raises(PermissionError) as caught:
        read_private(path)
    assert f"other users can write to {tmp_path}/\\xff\\x1bé: " in str(caught.value)
    assert _private_files.printable_path(path).endswith("/\\xff\x1bé")


# ---- The kinds of files ----


@pytest.mark.parametrize("what", WRONG)
def test_a_plan_that_is_not_taken_is_built_again(tmp_path: Path, what: str, caplog: Any) -> None:
    Store(tmp_path).save("a", SIZES, ANSWER)
    (path,) = tmp_path.glob("*/??/*.*")
    WRONG[what](path)
    store = Store(tmp_path)
    assert store.plans("a") == [] and store.loaded == 0
    (message,) = caplog.messages
    assert message.startswith("the plan in ") and message.endswith("; it is built again")
    assert str(path) in message and (what in message or "is damaged" in message)
    store.save("a", SIZES, ANSWER)
    assert Store(tmp_path).plans("a") == [ANSWER] and len(caplog.messages) == 1
    (line,) = store.dropped()
    assert str(path) in line


SHAPES: list[Any] = [
    {"plan": 3},
    {"refusal": None},
    {"kernels": {}},
    {"kernels": [3]},
    {"kernels": [["a", "b"]]},
    {"kernels": [["a", "b", 3]]},
    {"kernels": [["a", "b", {}]]},
    {"kernels": [["a", "b", {"base64": 3}]]},
    {"kernels": [["a", "b", "c", [3]]]},
    {"sizes": [3]},
    {"key": 3},
]


@pytest.mark.parametrize("changed", SHAPES, ids=json.dumps)
def test_a_plan_with_a_checksum_but_another_structure_is_not_used(tmp_path: Path, changed: Any, caplog: Any) -> None:
    Store(tmp_path).save("a", SIZES, ANSWER)
    (path,) = tmp_path.glob("*/??/*.*")
    content = json.loads(path.read_bytes().partition(b"\n")[2])
    path.write_bytes(with_checksum(json.dumps({**content, **changed}).encode()))
    assert [entry.answer for entry in Store(tmp_path).entries()] == [None]
    assert Store(tmp_path).plans("a") == [] and "is damaged; it is built again" in caplog.text


@pytest.mark.parametrize("what", WRONG)
def test_a_table_of_schedules_that_is_not_taken_says_why(tmp_path: Path, what: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(schedule_table, "_about", lambda device: {"name": "one", "machine": "cpu"})
    monkeypatch.setattr(schedule_table, "_measured_with", lambda device: {})
    path = schedule_table.write(tmp_path / "plans", 0, {})
    assert not schedule_table.read(tmp_path / "plans", 0).obstacle
    WRONG[what](path)
    tuned = schedule_table.read(tmp_path / "plans", 0)
    assert tuned.schedules == {} and (what in tuned.obstacle or "the file is damaged" in tuned.obstacle)
    assert [table.obstacle for table in schedule_table.tables_in(tmp_path / "plans")] == [tuned.obstacle]


def _write_pack(path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setattr(packs, "kind_of", lambda device: {"generator": "g", "generated_by": "h"})
    monkeypatch.setattr(packs, "_runnable", lambda driver, device: ("chip",))
    devices = [{"architecture": "", "kind": packs.kind_of(0)}]
    write_pack_file(path, {**packs.versions(), "devices": devices}, [(KEY, SIZES, ANSWER)], [])
    return path


@pytest.mark.parametrize("what", [why for why in NOT_TRUSTED if "more than this package ever writes" not in why])
def test_a_pack_that_others_may_have_written_is_not_taken(
    tmp_path: Path, what: str, monkeypatch: Any, caplog: Any
) -> None:
    path = _write_pack(tmp_path / "pack", monkeypatch)
    assert packs.Packs([path]).plans(KEY, 0) == [ANSWER]
    NOT_TRUSTED[what](path)
    assert packs.Packs([path]).plans(KEY, 0) == [] and what in caplog.text


@two_users
def test_a_pack_is_trusted_with_the_code_that_names_it(tmp_path: Path, monkeypatch: Any) -> None:
    for path in (tmp_path, _write_pack(tmp_path / "pack", monkeypatch)):
        os.chown(path, ATTACKER, ATTACKER)
    assert packs.Packs([path]).plans(KEY, 0) == []
    assert packs.Packs([path], trusted=ATTACKER).plans(KEY, 0) == [ANSWER]


def test_a_pack_beside_no_module_is_refused(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    from torch_outboard.driver import Driver

    vendor = type("Vendor", (Driver,), {"kernel_packs": ("kernels", "/packs"), "__module__": "made_up"})
    monkeypatch.delenv(packs.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert packs.packs_of(vendor) == [Path("/packs")] and packs.owner_of(vendor) == -1
    assert "the pack of kernels in kernels is not used: its path is relative, but the module of Vendor" in caplog.text


def test_only_a_pack_is_overwritten(tmp_path: Path, monkeypatch: Any) -> None:
    path = _write_pack(tmp_path / "pack", monkeypatch)
    packs.check_target(path)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "thesis.tex").write_text("")
    for target in (tmp_path, tmp_path / "link", tmp_path / "thesis.tex"):
        with pytest.raises(FileExistsError, match="exists and is not a pack: choose another file"):
            packs.check_target(target)


# ---- Folders ----


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o027, 0o077, 0o777], ids=oct)
def test_whatever_the_umask_folders_are_private(tmp_path: Path, mask: int, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "deep" / "cache"))
    monkeypatch.delenv("OUTBOARD_KERNEL_CACHE_DIR", raising=False)
    from torch_outboard.kernels.disk.store import default_folder

    folder = default_folder()
    before = os.umask(mask)
    try:
        Store(folder).save("a", SIZES, ANSWER)
        assert Store(folder).plans("a") == [ANSWER]
    finally:
        os.umask(before)
    modes = {oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*") if path.is_dir()}
    assert folder is not None and folder.parent.parent == tmp_path / "deep" / "cache" and modes == {"0o700"}


def test_the_folder_of_the_package_is_repaired(tmp_path: Path, monkeypatch: Any) -> None:
    """With a umask of 002 an earlier version created the folder with this mode."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("OUTBOARD_KERNEL_CACHE_DIR", raising=False)
    (tmp_path / "torch_outboard").mkdir()
    (tmp_path / "torch_outboard").chmod(0o777)
    assert Store(tmp_path / "torch_outboard" / "kernels").is_usable
    assert (tmp_path / "torch_outboard").stat().st_mode & 0o777 == 0o700


def test_a_relative_folder_does_not_follow_the_process(tmp_path: Path) -> None:
    code = """
import os, torch_outboard
from torch_outboard.kernels.disk import packs
from torch_outboard.kernels.disk.store import default_folder
begin = os.getcwd()
os.chdir("/")
assert str(default_folder()) == begin + "/cache", default_folder()
os.environ[packs.VARIABLE] = "pack"
assert [str(path) for path in packs.packs_of(None)] == [begin + "/pack"]
"""
    environment = {**os.environ, "OUTBOARD_KERNEL_CACHE_DIR": "cache", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, check=True)


@two_users
def test_what_root_made_is_read_by_others(shared: Path) -> None:
    """Plans of an image, which no other user may write."""
    Store(shared / "plans").save("a", SIZES, ANSWER)
    for path in ((shared / "plans"), *(shared / "plans").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)

    def use() -> None:
        store = Store(shared / "plans")
        assert store.plans("a") == [ANSWER]
        store.save("b", SIZES, ANSWER)
        assert store.saved == 0 and store.plans("b") == []

    as_user(VICTIM, use)


@two_users
@pytest.mark.parametrize("is_sticky", [True, False])
def test_nobody_slips_plans_under_a_running_process(shared: Path, is_sticky: bool) -> None:
    """Another user renames a folder of theirs to our folder's name after the check."""
    theirs = Answer("plan of theirs\n", ANSWER.kernels)
    outer = shared / "outer"
    outer.mkdir()
    outer.chmod(0o1777 if is_sticky else 0o777)
    if is_sticky:  # and they own the folder between
        as_user(ATTACKER, lambda: ((outer / "torch_outboard").mkdir(), (outer / "torch_outboard").chmod(0o777)))
    folder = outer / "torch_outboard" / "kernels" if is_sticky else outer / "kernels"
    ready, go = os.pipe(), os.pipe()

    def victim() -> None:
        store = Store(folder)
        store.save("a", SIZES, ANSWER)
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        for reader in (store, Store(folder)):
            assert theirs not in reader.plans("a") and not any(answer.refusal for answer in reader.plans("a"))

    def attacker() -> None:
        os.read(ready[0], 1)
        if folder.exists():
            folder.rename(folder.with_name("old"))
        os.umask(0)
        store = Store(outer / "made")
        store.save("a", SIZES, theirs)
        if not (outer / "made").exists():  # their own caution forbids it there
            os._exit(0)
        (outer / "made").rename(folder)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)

    child = os.fork()
    if child == 0:
        try:
            as_user(ATTACKER, attacker)
        finally:
            os.write(go[1], b"1")
            os._exit(0)
    as_user(VICTIM, victim)
    os.waitpid(child, 0)
    for end in (*ready, *go):
        os.close(end)


@two_users
def test_a_plan_that_another_user_put_there_is_not_taken(shared: Path, caplog: Any) -> None:
    """The other user could write to the folder earlier."""
    folder = shared / "plans"
    Store(folder).save("a", SIZES, ANSWER)
    (path,) = folder.glob("*/??/*.*")
    os.chown(path, ATTACKER, ATTACKER)
    assert Store(folder).plans("a") == [] and "belongs to another user (65533)" in caplog.text


def test_eight_processes_while_files_are_replaced(tmp_path: Path) -> None:
    def work() -> None:
        for number in range(60):
            store = Store(tmp_path / "plans")
            assert store.plans("a") in ([], [ANSWER])
            store.save("a", SIZES, ANSWER)
            if number % 8 == 0:
                list(store.entries())

    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    replaced = 0
    while children:
        for path in (tmp_path / "plans").glob("*/??/*.*"):
            # What was replaced by a link or a FIFO waits for a process that replaces it by a plan.
            if not path.name.endswith(".part") and path.is_file() and not path.is_symlink():
                try:
                    list(WRONG.values())[replaced % len(WRONG)](path)
                    replaced += 1
                except OSError:  # a process was faster
                    continue
        done, status = os.waitpid(-1, os.WNOHANG)
        if done:
            assert status == 0
            children.remove(done)
    assert replaced > 10
    Store(tmp_path / "plans").save("a", SIZES, ANSWER)
    assert Store(tmp_path / "plans").plans("a") == [ANSWER]


# ---- What fails now may work later ----


def test_plans_are_kept_again_once_the_folder_is_back(tmp_path: Path, caplog: Any) -> None:
    store = Store(tmp_path / "plans")
    store.save("a", SIZES, ANSWER)
    (tmp_path / "plans").rename(tmp_path / "away")
    (tmp_path / "plans").write_text("in its place")
    store.save("b", SIZES, ANSWER)
    store.save("c", SIZES, ANSWER)
    assert store.plans("a") == [] and store.saved == 1 and len(caplog.messages) == 1
    (tmp_path / "plans").unlink()
    store.save("b", SIZES, ANSWER)
    assert store.plans("b") == [ANSWER] and store.plans("a") == []


def test_programs_are_kept_again_once_the_folder_is_back(run_python: RunPython, tmp_path: Path) -> None:
    from .test_program_store import BEGIN

    run_python(
        BEGIN
        + """
import shutil
os.umask(0o002)
assert built(0, "1") == ["python"] and built(1, "1") == ["binary"]
shutil.rmtree(folder.parent)
assert built(0, "2") == ["python"] and built(1, "2") == ["binary"]
assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
""",
        env={"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path / "cache")},
    )


def test_without_descriptors_nothing_is_raised(run_python: RunPython, tmp_path: Path) -> None:
    code = """
import logging, os, resource, sys
from pathlib import Path
from torch_outboard.kernels.disk.files import Answer
from torch_outboard.kernels.disk.pack_file import write_pack_file
from torch_outboard.kernels.disk.store import Store
logging.basicConfig(stream=sys.stdout)
folder, answer = Path(sys.argv[1]), Answer("plan 1", [])
Store(folder).save("a", [], answer)
store = Store(folder)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
found = store.plans("a"), store.plans("b"), store.save("b", [], answer), list(store.entries())
for descriptor in held:
    os.close(descriptor)
assert found == ([], [], None, []), found
assert store.plans("a") == [answer] and store.plans("b") == []
"""
    done = run_python(code, str(tmp_path / "plans"), fresh=True)
    assert done.stdout.count("Too many open files") == 1


def test_unfinished_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    old, fresh, others = (tmp_path / name for name in ("plan.abcd1234.part", "plan.efgh5678.part", "notes.part"))
    for path in (old, fresh, others):
        path.write_bytes(b"half")
    for path in (old, others):
        os.utime(path, (1, 1))
    _private_files._remove_abandoned.cache_clear()
    write_atomically(tmp_path / "plan", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.part", "plan", "plan.efgh5678.part"]
