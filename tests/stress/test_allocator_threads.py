# SPDX-License-Identifier: BSD-3-Clause
"""The allocator under 64 threads on 8 streams of 4 devices, with the thread and with the address sanitizer.

`OUTBOARD_STRESS_SECONDS` sets the duration, 60 if unset; `OUTBOARD_STRESS_SEED` sets the seed, which is printed.
"""

from __future__ import annotations

import os
import random

import pytest
from native import allocator_program

SECONDS = os.environ.get("OUTBOARD_STRESS_SECONDS", "60")
SEED = os.environ.get("OUTBOARD_STRESS_SEED") or str(random.randrange(1 << 32))
# libtorch is not instrumented, and nothing of it runs on these threads but what its headers hold.
ENVIRONMENT = {
    "thread": {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"},
    "address": {"ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1"},
}


@pytest.mark.parametrize("sanitizer", ENVIRONMENT)
@pytest.mark.parametrize("program", ["stress_allocator", "test_allocator", "test_allocator_runs"])
def test_it_is_clean_under_a_sanitizer(sanitizer, program, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / sanitizer
    folder.mkdir(exist_ok=True)
    source = allocator_program.ROOT / "tests" / "native" / f"{program}.cpp"
    built = allocator_program.build(source, folder, f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer")
    arguments = [SECONDS, "64", SEED] if program == "stress_allocator" else ["5000"]
    output = allocator_program.run([str(built), *arguments], ENVIRONMENT[sanitizer], timeout=float(SECONDS) * 10 + 600)
    print(output)
    assert output.rstrip().endswith("passed")
