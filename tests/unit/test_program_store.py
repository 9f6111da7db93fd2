# SPDX-License-Identifier: BSD-3-Clause
"""Compiled programs on disk: a later build of the same text gets the binary that the driver returned."""

from __future__ import annotations

from pathlib import Path

BEGIN = """
import os, pathlib, torch, torch_outboard
from torch_outboard import _C
from unit.programs import ProgramDriver
from torch_outboard.codegen.program import KernelRecord

class Keeping(ProgramDriver):
    texts, takes_binaries, hands_out, is_bad = {}, True, True, False

    def device_properties(self, device):
        return {"name": "one", "total_memory": self.memory, "follows_addresses": 1}

    def program_build(self, device, language, code, options):
        if language == "binary":
            self.built.append((device, language, options))
            assert code.startswith(b"made of ")
            if not self.takes_binaries:
                raise ValueError("of another compiler")
            handle = super().program_build(device, "python", code[8:], options)
            self.built.pop()
            return handle
        handle = super().program_build(device, language, code, options)
        self.texts[handle] = code
        return handle

    def program_binary(self, device, program):
        if self.is_bad:
            raise OSError("no")
        return b"made of " + self.texts[program] if self.hands_out else None

    def kernel_launch(self, *arguments, follows_addresses=None):
        super().kernel_launch(*arguments[:9])
        self.last = arguments[9:]

driver = Keeping()
torch_outboard.attach(driver)
folder = pathlib.Path(os.environ["OUTBOARD_KERNEL_CACHE_DIR"], "programs")
texts = 0

def record(code, options):
    return KernelRecord("k", "python", code, options, "f", "rw", ("1",) * 6 + ("0",))

def built(device, text, options="-O3"):
    driver.built.clear()
    code = f"def f(*values): {text}".encode()
    _C.build_kernel(_C.device_kernel(record(code, options)), device)
    return [language for _, language, _ in driver.built]
"""


def test_a_program_is_kept_and_taken(run_python, tmp_path: Path) -> None:
    env = {"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path / "cache")}
    run_python(
        BEGIN
        + """
assert built(0, "1") == ["python"]
(file,) = folder.iterdir()
assert file.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
assert built(1, "1") == ["binary"]  # another device of the same kind
assert built(1, "1", "-O2") == ["python"]  # of other options
assert built(0, "2") == ["python"] and len(list(folder.iterdir())) == 3

# What a driver doesn't take is built of its text, and what it has no bytes of isn't kept.
driver.takes_binaries = False
assert built(1, "2") == ["binary", "python"]
driver.takes_binaries, driver.hands_out = True, False
assert built(0, "3") == ["python"] and built(1, "3") == ["python"]
driver.is_bad = True
assert built(0, "4") == ["python"]
driver.hands_out, driver.is_bad = True, False
assert len(list(folder.iterdir())) == 3

x = torch.ones(1, device="programs")
_C.device_kernel(record(b"def f(*values): 1", "-O3"))(x, x)
assert driver.last == (False,)  # it follows no addresses
""",
        env=env,
    )
    # In another process.
    run_python(
        BEGIN
        + """
assert built(0, "1") == ["binary"]
""",
        env=env,
    )


def test_what_is_damaged_or_anybodys_is_not_taken(run_python, tmp_path: Path) -> None:
    answer = run_python(
        BEGIN
        + """
def only(text):
    before = set(folder.iterdir()) if folder.is_dir() else set()
    assert built(0, text) == ["python"]
    (file,) = set(folder.iterdir()) - before
    return file

one, two = only("1"), only("2")
content = bytearray(one.read_bytes())
content[-1] ^= 1
one.write_bytes(content)
assert built(1, "1") == ["python"]
three = only("3")
three.write_bytes(two.read_bytes())
assert built(1, "3") == ["python"]
four = only("4")
four.chmod(0o622)
assert built(1, "4") == ["python"]
five = only("5")
five.rename(folder / "other")
five.symlink_to(folder / "other")
assert built(1, "5") == ["python"]
six = only("6")
six.write_bytes(b"short")
assert built(1, "6") == ["python"]
assert built(1, "2") == ["binary"]
""",
        env={"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert answer.stderr.count("a cached program is damaged and is built again: ") == 3
    assert answer.stderr.count("a cached program is not trusted and is built again: ") == 2
    assert answer.stderr.count(": run `chmod go-w` on it, or name a folder that you own") == 1
    assert answer.stderr.count(" is a symbolic link, which is never followed: remove it") == 1


def test_a_folder_that_is_no_place_for_programs(run_python, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.write_text("")
    answer = run_python(
        BEGIN
        + """
assert built(0, "1") == ["python"]
assert built(1, "1") == ["python"] and not folder.exists()
""",
        env={"OUTBOARD_KERNEL_CACHE_DIR": str(folder)},
    )
    assert answer.stderr.count("compiled programs are not cached:") == 1
    assert f"{folder} is a link or not a folder: name a folder that you own" in answer.stderr


def test_an_empty_variable_keeps_nothing(run_python, tmp_path: Path) -> None:
    run_python(
        BEGIN
        + """
assert built(0, "1") == ["python"] and built(1, "1") == ["python"]
assert not any(pathlib.Path(os.environ["HOME"]).iterdir())
""",
        env={"OUTBOARD_KERNEL_CACHE_DIR": "", "HOME": str(tmp_path), "XDG_CACHE_HOME": ""},
    )


def test_the_oldest_beyond_the_limit_are_removed_and_nothing_else(run_python, tmp_path: Path) -> None:
    env = {"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path / "cache")}
    run_python(
        BEGIN
        + """
folder.mkdir(parents=True, mode=0o700)
elsewhere = folder.parent / "elsewhere"
elsewhere.mkdir()
(elsewhere / "theirs").write_text("kept")
names = [f"{number:064x}" for number in range(8192 + 3)]
for number, name in enumerate(names):
    (folder / name).touch()
    os.utime(folder / name, (1, 1 + number))
others = ["notes.txt", "f" * 63, "F" * 64, "g" * 64, "0" * 64 + ".part", "0" * 64 + ".aaaaaaa"]
for name in others:
    (folder / name).touch()
    os.utime(folder / name, (0, 0))
abandoned = folder / ("a" * 64 + ".aaaaaa")
abandoned.touch()
os.utime(abandoned, (0, 0))
(folder / ("e" * 64)).symlink_to(elsewhere / "theirs")
(folder / ("d" * 64)).mkdir()
assert built(0, "1") == ["python"]
left = {path.name for path in folder.iterdir()}
assert left.isdisjoint(names[:4]) and left >= {*names[4:], *others, "e" * 64, "d" * 64}
assert len(left) == 8192 + len(others) + 2 and (elsewhere / "theirs").read_text() == "kept"
assert built(1, "1") == ["binary"] and not abandoned.exists()
""",
        env=env,
    )
