# SPDX-License-Identifier: BSD-3-Clause
"""A copy of the sources built with a sanitizer, Python processes that run on it, and the sanitizer's reports."""

from __future__ import annotations

import atexit
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Where there is no git to ask. `scripts/build` and what the tests import.
SOURCES = (
    *("CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md"),
    *("torch_outboard_autoload.py", "torch_outboard_command.py", "torch_outboard_pytest.py"),
    *("cmake", "csrc", "distributions", "drivers", "examples", "include", "scripts", "tests", "torch_outboard"),
)
BUILT = shutil.ignore_patterns("*.so", "__pycache__", "_build_info.json")


@dataclass(frozen=True)
class Sanitizer:
    """A process's needs: the runtimes to preload, and the options of each, by the variable that holds them."""

    name: str
    flags: tuple[str, ...]
    runtimes: tuple[str, ...]
    options: dict[str, dict[str, object]]
    environment: dict[str, str] = field(default_factory=dict)


ADDRESS = Sanitizer(
    "address",
    # A trap, which the other runtime reports: two of them in one process can't both write to files.
    ("-fsanitize=address,undefined", "-fsanitize-undefined-trap-on-error"),
    # The second is for torch's sake: a runtime that is loaded first
    # must find what throws exceptions.
    ("libasan.so", "libstdc++.so"),
    {
        "ASAN_OPTIONS": {
            # Python frees nothing of its own at its end, so whatever it holds is lost there.
            "detect_leaks": 0,
            "detect_stack_use_after_return": 1,
            # Tests ask for absurd amounts of memory and expect to be refused.
            "allocator_may_return_null": 1,
            "handle_sigill": 1,
        },
    },
    # Objects of Python's own pools would otherwise never be freed as far as the sanitizer knows.
    {"PYTHONMALLOC": "malloc"},
)
THREAD = Sanitizer(
    "thread",
    ("-fsanitize=thread",),
    ("libtsan.so",),
    {
        "TSAN_OPTIONS": {
            # Reports are read from the files: some of them are about torch itself, see `counts`.
            "exitcode": 0,
            "history_size": 7,
            "second_deadlock_stack": 1,
            "allocator_may_return_null": 1,
            # Tests fork while threads run, as data loaders do.
            "die_after_fork": 0,
        }
    },
    # The OpenMP library is not instrumented: what one of its threads hands to
    # another would look like a race.
    {"OMP_NUM_THREADS": "1"},
)
SANITIZERS = {sanitizer.name: sanitizer for sanitizer in (ADDRESS, THREAD)}


# An editable install puts its own finder before PYTHONPATH, and the tests
# would run on that copy's libraries.
SITE = """
import os, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

def is_elsewhere(finder):
    if finder in (BuiltinImporter, FrozenImporter, PathFinder):
        return False
    spec = finder.find_spec("torch_outboard", None)
    return spec is not None and not str(spec.origin).startswith(os.path.dirname(os.path.abspath(__file__)))

sys.meta_path[:] = [finder for finder in sys.meta_path if not is_elsewhere(finder)]
"""


class Tree:
    """The sources in a separate folder, built with a sanitizer: a build puts its libraries beside the sources."""

    def __init__(self, folder: Path, sanitizer: Sanitizer) -> None:
        self.root = folder / "source"
        # Not below `folder`, which is this user's alone: a test drops root.
        self.reports = Path(tempfile.mkdtemp(prefix="reports-"))
        self.reports.chmod(0o1777)
        atexit.register(shutil.rmtree, self.reports, ignore_errors=True)
        self.sanitizer = sanitizer
        self.programs = folder / "programs"
        copy_sources(self.root)
        (self.root / "sitecustomize.py").write_text(SITE)
        wrap_compilers(self.programs)
        kind, *others = (flag.removeprefix("-fsanitize=") for flag in sanitizer.flags)
        command = [sys.executable, "scripts/build", "--python", sys.executable, "--sanitize", kind]
        command += [f"-DCMAKE_{language}_FLAGS={' '.join(others)}" for language in ("C", "CXX") if others]
        # With a sanitizer GCC warns of torch's headers, without reason; the
        # usual build shows our own warnings.
        environment = plain_environment()
        environment["CMAKE_ARGS"] = f"{environment.get('CMAKE_ARGS', '')} -DOUTBOARD_WERROR=OFF"
        # What CMake says of each compiler it finds has no place in a test's output unless it fails.
        built = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout[-20_000:] + built.stderr[-20_000:]
        used = self.run("-c", "from torch_outboard import _C; print(_C.__file__)", timeout=600).stdout
        assert Path(used.strip().rpartition("\n")[2]).is_relative_to(self.root), f"the tests would run on {used}"

    def run(self, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run Python, and the processes it starts, on the tree with the sanitizer's runtime."""
        # Not by pipes: a process that a test leaves behind would hold them open.
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=self.root,
                env=plain_environment() | self.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            )
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read(), "")

    def environment(self) -> dict[str, str]:
        options = {
            variable: ":".join(f"{key}={value}" for key, value in {**values, "log_path": self.reports / "of"}.items())
            for variable, values in self.sanitizer.options.items()
        }
        preload = " ".join(str(runtime(name)) for name in self.sanitizer.runtimes)
        return {
            "LD_PRELOAD": preload,
            "PYTHONPATH": str(self.root),
            "PATH": os.pathsep.join([str(self.programs), os.environ["PATH"]]),
            # Each takes ten times as long, and this one is about what the
            # allocator hands out, not about how.
            "OUTBOARD_MODEL_OPERATIONS": "4000",
            **options,
            **self.sanitizer.environment,
        }

    def take_reports(self) -> list[str]:
        """Return the reports that count, of all processes since the last call."""
        ours = {path.name for path in (self.root / "torch_outboard").rglob("*.so")}
        reports = []
        for path in sorted(self.reports.iterdir()):
            reports += [text for text in split(path.read_text(errors="replace")) if counts(text, ours)]
            path.unlink()
        return reports


def copy_sources(target: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target / name)
        return
    target.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=BUILT)
        else:
            shutil.copy2(ROOT / name, target / name)


UNSANITIZED = """
#include <stdlib.h>
#include <unistd.h>
int main(int count, char** arguments) {
  unsetenv("LD_PRELOAD");
  arguments[0] = PROGRAM;  // a compiler looks for its parts from there
  execv(PROGRAM, arguments);
  return 127;
}
"""


def wrap_compilers(folder: Path) -> None:
    """Run compilers that tests start without the sanitizer, with which they take minutes.

    The wrappers are programs, and they wrap Ninja too, since ThreadSanitizer's runtime ends a shell at once.
    """
    folder.mkdir()
    source = folder / "unsanitized.c"
    source.write_text(UNSANITIZED)
    for name in ("ninja", "ccache", "cc", "c++", "gcc", "g++"):
        if compiler := shutil.which(name):
            command = ["gcc", f'-DPROGRAM="{compiler}"', str(source), "-o", str(folder / name)]
            subprocess.run(command, check=True)


def plain_environment() -> dict[str, str]:
    """Return the environment without the variables that control this test run."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "OUTBOARD_"))}


def runtime(name: str) -> Path:
    compiler = shutil.which("g++")
    assert compiler, "g++ is needed to build with a sanitizer"
    answer = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(answer.stdout.strip())
    assert path.is_absolute(), f"{compiler} has no {name}. Install the compiler's sanitizer libraries"
    return path


def split(text: str) -> Iterator[str]:
    """Yield the reports of a log, without the rules between them."""
    for part in re.split(r"^={10,}$", text, flags=re.MULTILINE):
        if re.search(r"WARNING: |ERROR: |FATAL: |runtime error: ", part):
            yield part.strip()


FRAME = re.compile(r"^ +#\d+ (.*)\((\S+?)\+0x[0-9a-f]+\)", re.MULTILINE)
ACCESS = re.compile(r"^ +(?:Previous )?(?:atomic )?(?:read|write) of size ", re.MULTILINE | re.IGNORECASE)
# An access to a reference count.
COUNT = re.compile(
    r"\A[^\n]*atomic write of size .*\n(?: +#\d+ std::__atomic_base.*\n)* +#\d+ "
    r"(?:c10::detail::atomic_\w*refcount_|__gnu_cxx::__exchange_and_add\()"
)
# A function that ends an object: its destructor, or what a std::shared_ptr calls to free it.
ENDS = re.compile(r"::~|::_M_destroy\(|::deallocate\(")
# A future's last reference is dropped, and a function of a future that torch's own code calls.
LAST_OF_FUTURE = re.compile(r"c10::intrusive_ptr<c10::ivalue::Future, .*::reset_not_null_\(")
OF_FUTURE = re.compile(r"^ +#\d+ c10::ivalue::Future::(?!~)\w+\([^\n]*\(libtorch(?!_outboard)\w*\.so", re.MULTILINE)
# Tests ask for absurd amounts of memory, and the runtime warns of each.
TOO_LARGE = re.compile(r"(?:==\d+==WARNING: \w+ failed to allocate 0x[0-9a-f]+ bytes\s*)+")
# What stands between an access and who makes it: `operator delete`, `memcpy`.
RUNTIMES = re.compile(r"lib[at]san\.so|<null>")


def counts(report: str, ours: Iterable[str]) -> bool:
    """Return whether a report is about our code.

    Every report counts, except warnings about requests for too much memory, and data races in which one access is not
    made by our libraries. torch's libraries are not instrumented. ThreadSanitizer intercepts their frees and copies of
    memory, but not the reference counts that order them after our accesses. The loader's frees of ended threads'
    variables are alike. So is the destructor of an object of ours that torch calls as it drops the last reference,
    against our own earlier count of it; against any other access it counts. And so is the end of a future's events by a
    thread of ours, if it drops the last reference, against their use in a function of that future. If our libraries
    make both accesses, a report is a bug, and there are no suppressions.
    """
    if "ThreadSanitizer: data race" not in report:
        return TOO_LARGE.fullmatch(report) is None
    libraries = set(ours)

    def is_destructor(frame: tuple[str, str]) -> bool:
        return ENDS.search(frame[0]) is not None and Path(frame[1]).name in libraries

    # A stack ends at an empty line.
    stacks = [report[match.start() :].split("\n\n", 1)[0] for match in ACCESS.finditer(report)]
    if any(
        LAST_OF_FUTURE.search(last) and OF_FUTURE.search(first) for last, first in itertools.permutations(stacks, 2)
    ):
        return False
    for stack in stacks:
        frames = [frame for frame in FRAME.findall(stack) if not RUNTIMES.search(frame[1])]
        others = [text for text in stacks if text is not stack]
        if "#0 operator delete(" in stack and all(COUNT.search(text) for text in others):
            frames = list(itertools.dropwhile(is_destructor, frames))
        # A stack that could not be restored may be ours.
        if frames and Path(frames[0][1]).name not in libraries:
            return False
    return True
