# SPDX-License-Identifier: BSD-3-Clause
"""The runtime's tests on libraries built with a sanitizer: a report in any process fails the test.

Each sanitizer takes a build and up to half an hour on two cores. `-k thread` or `-k address` runs one of them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stress import sanitizers
from stress.sanitizers import Tree
from stress.suites import skip_without_device
from torch_outboard._discovery import found_drivers

# For tools that know memory by its address, above all ThreadSanitizer. A driver
# with this option suits these runs.
OPTION = "single_mapping"
DRIVERS = [name for name, entry in found_drivers().items() if OPTION in entry.load().options]

# What of tests/unit opens a device, runs threads or ends processes. The rest
# reads descriptions and prints.
UNIT = (
    *("test_queried_kernels.py", "test_native_kernels.py"),
    *("test_driver.py", "test_exit.py", "test_graph_exit.py", "test_guard_faults.py", "test_native_graphs.py"),
    *("test_lifetimes.py", "test_profiler.py", "test_trampolines.py", "test_workers.py"),
)

# By test, why it can't pass with that sanitizer.
FORK = "ThreadSanitizer ends a forked child that starts a thread: it takes the new one for one of the parent's"
ALLOCATOR = "GCC 12's AddressSanitizer takes no lock of its allocator at a fork: the child may find one that is held"
DESELECTED = {
    "thread": {
        "driver/test_device.py::test_a_forked_child_is_advised_to_spawn_and_goes_on_with_the_cpu": FORK,
        "driver/test_serialization.py::test_a_loader_with_pinned_memory[2]": FORK,
        "unit/test_workers.py::test_forked_workers_on_the_cpu": FORK,
        "unit/test_workers.py::test_forked_workers_on_the_device_are_advised_to_spawn": FORK,
        "unit/test_workers.py::test_forked_workers_before_the_first_use": FORK,
    },
    "address": {"driver/test_device.py::test_a_forked_child_is_advised_to_spawn_and_goes_on_with_the_cpu": ALLOCATOR},
}


@pytest.fixture(scope="module", params=sanitizers.SANITIZERS.values(), ids=sanitizers.SANITIZERS)
def tree(request, tmp_path_factory):
    return Tree(tmp_path_factory.mktemp(request.param.name), request.param)


def check(tree: Tree, *arguments: str) -> None:
    """Run pytest on the tree and fail with every report and every failed test."""
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=10", *arguments]
    for test, reason in DESELECTED[tree.sanitizer.name].items():
        print(f"left out: tests/{test}: {reason}")
        command.append(f"--deselect=tests/{test}")
    done = tree.run(*command, timeout=3 * 3600)
    print(done.stdout[-20_000:])
    reports = tree.take_reports()
    assert not reports, f"{len(reports)} reports, of which the first are\n" + "\n\n".join(reports[:5])
    assert done.returncode == 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_what_every_driver_must_do(tree, driver):
    check(tree, "tests/driver", f"--driver={driver}", f"--driver-option={OPTION}=1")


def test_what_runs_in_processes_of_its_own(tree):
    check(tree, *(f"tests/unit/{name}" for name in UNIT))


# Plans that are built, kept and called, by several threads. PoCL, which runs the kernels, has no
# sanitizer.
GENERATED = "tests.simt_drivers:DiscreteOpenCL"


def test_generated_kernels(tree):
    skip_without_device(GENERATED)
    check(tree, *(f"tests/kernels/test_{name}.py" for name in ("lists", "provider")), f"--driver={GENERATED}")


# The backend, its threads and its failures. Torch's stacks on top of them run no more of our code.
GROUPS = (
    *("init_process", "bad_input", "streams_wait", "leave_no", "see_collectives", "killed", "hangs"),
    *("simulated_device_that_fail", "every_collective_of_the_simulated"),
    "futures_that_outlive",
)


def test_process_groups(tree, monkeypatch):
    if tree.sanitizer is sanitizers.THREAD:
        monkeypatch.setenv("TEST_SPAWN", "1")
    check(tree, "tests/distributed", "-k", " or ".join(GROUPS))


# ---- That the runs above can fail
# ------------------------------------------------------------------------------------

PLANTED = r"""
#include <climits>
#include <cstring>
#include <thread>

extern "C" {

int counted;

__attribute__((noinline)) void count() {
  for (int i = 0; i < 1000; ++i) ++counted;
}

void race() {
  std::thread first(count), second(count);
  first.join();
  second.join();
}

int use_after_free() {
  volatile int* memory = new int[4]();
  delete[] memory;
  return memory[1];
}

int overflow(int number) { return number + INT_MAX; }
}
"""
# By sanitizer, what it calls each.
ERRORS = {
    "thread": {"race": "data race"},
    "address": {"use_after_free": "heap-use-after-free", "overflow": "AddressSanitizer: ILL"},
}


def test_a_planted_error_is_reported(tree):
    library = plant(tree)
    for error, message in ERRORS[tree.sanitizer.name].items():
        # As in a test's own process: torch and the package are loaded, and
        # the error is in a process below.
        call = f"import ctypes, torch, torch_outboard; ctypes.CDLL({str(library)!r}).{error}(1)"
        tree.run("-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {call!r}])", timeout=600)
        reports = tree.take_reports()
        assert reports and all(message in report and library.stem in report for report in reports), (error, reports)


def plant(tree: Tree) -> Path:
    """Compile the errors into a library that counts as one of ours."""
    library = tree.root / "torch_outboard" / "lib" / "libplanted.so"
    if not library.exists():
        source = library.with_suffix(".cpp")
        source.write_text(PLANTED)
        flags = ["-std=c++20", "-O0", "-g", "-fPIC", "-shared", "-pthread", "-fno-omit-frame-pointer"]
        subprocess.run(["g++", *flags, *tree.sanitizer.flags, str(source), "-o", str(library)], check=True)
    return library


REPORT = """WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 8 at 0x7b1800326a08 by thread T1:
    #0 operator delete(void*, unsigned long) tsan_new_delete.cpp:150 (libtsan.so+0x86c3d)
    #1 WHO() <null> (MODULE+0x81108)
    #2 run_queued_call host_call.cpp:223 (libtorch_outboard.so+0x84bdc)

  Previous atomic write of size 8 at 0x7b1800326a08 by main thread:
    #0 std::__atomic_base<unsigned long>::fetch_sub(unsigned long) atomic_base.h:628 (libtorch_outboard.so+0x3576e)
    #1 at::redispatch() <null> (libtorch_cpu.so+0x28e0d56)

  Thread T1 'worker' (tid=8161, running) created by main thread at:
    #0 pthread_create tsan_interceptors_posix.cpp:1001 (libtsan.so+0x5e686)
"""


COUNTED = "c10::detail::atomic_combined_refcount_decrement"
BY_TORCH = ("(libtorch_outboard.so", "(libtorch_python.so")


def test_a_race_counts_by_who_makes_the_accesses():
    ours = {"libtorch_outboard.so", "_C.so"}
    assert sanitizers.counts(REPORT.replace("MODULE", "libtorch_outboard.so"), ours)
    assert not sanitizers.counts(REPORT.replace("MODULE", "libc10.so"), ours)
    released = REPORT.replace("WHO()", "Work::~Work()").replace("MODULE", "_C.so").replace("#1 at::", f"#1 {COUNTED}::")
    assert not sanitizers.counts(released.replace(*BY_TORCH, 1), ours)
    assert sanitizers.counts(released, ours)
    assert sanitizers.counts(released.replace(*BY_TORCH, 1).replace(COUNTED, "store"), ours)
    shared = released.replace("Work::~Work()", "std::_Sp_counted_ptr_inplace<Work>::_M_destroy()")
    shared = shared.replace(COUNTED, "__gnu_cxx::__exchange_and_add(int volatile*, int)")
    assert not sanitizers.counts(shared.replace(*BY_TORCH, 1), ours)
    assert sanitizers.counts(shared, ours)
    assert sanitizers.counts(shared.replace(*BY_TORCH, 1).replace("_M_destroy", "_M_use"), ours)
    dropped = "c10::intrusive_ptr<c10::ivalue::Future, Null>::reset_not_null_("
    ended = REPORT.replace("WHO()", f"{dropped}Future*)").replace("MODULE", "_C.so")
    used = "c10::ivalue::Future::synchronizeWithCurrentStreams()"
    assert not sanitizers.counts(ended.replace("at::redispatch()", used), ours)
    assert sanitizers.counts(ended.replace("libtorch_cpu.so", "_C.so"), ours)
    for library in ours:
        assert sanitizers.counts(ended.replace("at::redispatch()", used).replace("libtorch_cpu.so", library), ours)
    large = "==1==WARNING: AddressSanitizer failed to allocate 0xc80000000000 bytes\n"
    assert not sanitizers.counts(2 * large, ours)
    assert sanitizers.counts(large + "==1==ERROR: AddressSanitizer: heap-use-after-free", ours)
    first = REPORT.partition("  Previous ")[0]
    unknown = "atomic write of size 8 at 0x7b1800326a08 by main thread:\n    [failed to restore the stack]\n"
    assert sanitizers.counts(first.replace("MODULE", "_C.so") + "  Previous " + unknown, ours)
    assert sanitizers.counts(REPORT.replace("data race", "heap-use-after-free").replace("MODULE", "libc10.so"), ours)
    assert len(list(sanitizers.split("=" * 18 + f"\n{REPORT}\n" + "=" * 18 + "\nreported 1 warnings\n"))) == 1
