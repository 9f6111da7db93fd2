# SPDX-License-Identifier: BSD-3-Clause
"""Memory under adversarial schedules and with every driver call failing in turn: many processes, for minutes.

`OUTBOARD_STRESS_SEEDS`, `OUTBOARD_STRESS_FAULTS` and `OUTBOARD_MODEL_OPERATIONS` set the number of seeds, of failing
calls and of operations of the model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_outboard._discovery import found_drivers

SEEDS = int(os.environ.get("OUTBOARD_STRESS_SEEDS", "100"))
FAULTS = int(os.environ.get("OUTBOARD_STRESS_FAULTS", "40"))


def drivers_with(option):
    """Return the drivers that have an option of that name: tests ask for a capability, not for a driver's name."""
    return [name for name, entry in found_drivers().items() if option in entry.load().options]


# Runs each seed in a forked child of one process that has torch loaded and no device open: a
# hundred times as fast as a process of its own. A child reports by its exit status.
FORKS = """
import json, os, sys, traceback
import torch, torch_outboard

def children(jobs, run):
    counts = {}
    for job in jobs:
        child = os.fork()
        if child == 0:
            status = 3
            try:
                status = run(job)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        counts.setdefault(status, []).append(job)
    return counts
"""

SCHEDULES = (
    FORKS
    + """
name, has_record, seeds = sys.argv[1], sys.argv[2] == "True", int(sys.argv[3])

def run(seed):
    module = torch_outboard.attach(name, schedule=f"lazy:{seed}")
    device = torch.device(name, 0)
    side = torch.Stream(device)
    source = torch.full((1 << 12,), 1.0, device=device)
    side.wait_stream(module.current_stream(device))
    with module.stream(side):
        copy = source.clone()
    if has_record:
        source.record_stream(side)
    del source
    again = torch.full((1 << 12,), -1.0, device=device)
    torch.accelerator.synchronize(device)
    return 0 if copy.unique().tolist() == [1.0] else 1

print(json.dumps(children(range(seeds), run)))
"""
)


def outcomes(run_python, *arguments):
    answer = run_python(*arguments)
    return {int(status): jobs for status, jobs in json.loads(answer.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("driver", drivers_with("schedule"))
def test_a_missing_record_stream_shows(driver, run_python):
    counts = outcomes(run_python, SCHEDULES, driver, "False", "100")
    print(f"shows in {len(counts.get(1, []))} of 100 seeds: {counts.get(1)}")
    assert set(counts) <= {0, 1} and len(counts.get(1, [])) >= 30


@pytest.mark.parametrize("driver", drivers_with("schedule"))
def test_with_record_stream_no_schedule_fails(driver, run_python):
    counts = outcomes(run_python, SCHEDULES, driver, "True", str(10 * SEEDS))
    assert set(counts) == {0}, counts


FAULT_SWEEP = (
    FORKS
    + """
name, entry, last, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

def run(number):
    module = torch_outboard.attach(name, schedule="inline", fault=f"{entry}:{number}:INTERNAL")
    device = torch.device(name, 0)
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{kind == 'expandable'}")
    failed = 0

    def work():
        side = torch.Stream(device)
        tensors = [torch.ones(size, device=device) for size in (10, 3000, 1 << 20, 4 << 20)]
        with module.stream(side):
            copies = [tensor.clone() for tensor in tensors]
        for tensor in tensors:
            tensor.record_stream(side)
        with module.use_mem_pool(module.MemPool(), device):
            inner = torch.ones(2 << 20, device=device)
        del tensors[1], copies, inner
        module.synchronize(device)
        module.empty_cache()
        assert tensors[0].sum().item() == 10

    def tidy():
        module.synchronize(device)
        module.empty_cache()

    # One call fails, wherever it is: one exception at most, and what comes after it works.
    for step in (work, work, work, work, tidy, tidy):
        try:
            step()
        except RuntimeError:
            failed += 1
    assert failed <= 1, failed
    assert module.memory_allocated(device) == 0, module.memory_allocated(device)
    assert module.memory_reserved(device) == 0, module.memory_reserved(device)
    return 1 if failed else 0

print(json.dumps(children(range(1, last + 1), run)))
"""
)
ANYWHERE = ["event_create", "event_record", "event_query", "stream_synchronize", "host_address"]
ENTRIES = [
    *((entry, "fixed") for entry in ("mem_alloc", "mem_free", *ANYWHERE)),
    *((entry, "expandable") for entry in ("mem_reserve", "mem_map", "mem_unmap", "mem_release", *ANYWHERE)),
]


@pytest.mark.parametrize(("entry", "kind"), ENTRIES)
@pytest.mark.parametrize("driver", drivers_with("fault"))
def test_every_failing_call_ends_clean(driver, entry, kind, run_python):
    counts = outcomes(run_python, FAULT_SWEEP, driver, entry, str(FAULTS), kind)
    print(
        f"{entry}, {kind}: {len(counts.get(1, []))} calls failed and were survived, {len(counts.get(0, []))} never came"
    )
    assert set(counts) <= {0, 1} and counts.get(1), counts


@pytest.mark.parametrize("driver", drivers_with("schedule"))
def test_the_model_for_long(driver):
    count = os.environ.get("OUTBOARD_MODEL_OPERATIONS", "1000000")
    model = Path(__file__).parent.parent / "driver" / "test_memory_model.py"
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(model), f"--driver={driver}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    answer = subprocess.run(
        command, env={**environment, "OUTBOARD_MODEL_OPERATIONS": count}, capture_output=True, text=True
    )
    print(answer.stdout[-20_000:], answer.stderr[-20_000:], sep="\n")
    assert answer.returncode == 0
