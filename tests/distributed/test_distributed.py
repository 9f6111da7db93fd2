# SPDX-License-Identifier: BSD-3-Clause
"""torch.distributed on the device: each test is a program of two ranks (`programs/`)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest

from torch_outboard._discovery import find_driver
from torch_outboard.testing.plugin import RunPython

from .conftest import APART, HOST, LIMIT, OWN, STAGED, TESTS, RunRanks, environment, free_port


def _lack_of_opencl() -> str:
    code = "import sys, torch_outboard; sys.exit(torch_outboard.attach('opencl').device_count() == 0)"
    answer = subprocess.run([sys.executable, "-c", code], env=environment(), cwd=TESTS.parent)
    return "" if answer.returncode == 0 else "capability: a device. opencl has none here"


@pytest.mark.database
@pytest.mark.parametrize(("way", "provider"), [(HOST, "host"), (STAGED, "staged"), (APART, "staged")])
def test_every_collective_of_every_dtype(run_ranks: RunRanks, way, provider) -> None:
    if way is APART and (lack := _lack_of_opencl()):
        pytest.skip(lack)
    seed = random.SystemRandom().randrange(1 << 31)
    answers = run_ranks("collectives", str(seed), provider, way=way)
    assert all(int(answer.stdout.split()[0]) > 450 for answer in answers), f"seed {seed}"


# Of the simulated device's schedule; tests/stress asks for more of them.
SEEDS = os.environ.get("TEST_SEEDS", "2").split()


@pytest.mark.database
@pytest.mark.parametrize("options", [{}, *({"schedule": f"lazy:{seed}"} for seed in SEEDS)], ids=str)
def test_every_collective_of_the_simulated_device(run_ranks: RunRanks, options) -> None:
    run_ranks("collectives", "7", "native", way=(*OWN[:1], {**OWN[1], **options}, OWN[2]))


@pytest.mark.database
@pytest.mark.parametrize("how", ["works", "differ", "kill", "leave", "hang", "late", "abort", "exit"])
def test_collectives_of_the_simulated_device_that_fail(run_ranks: RunRanks, how) -> None:
    run_ranks("native", how, way=OWN, statuses=(0, -signal.SIGKILL) if how == "kill" else (0, 0))


@pytest.mark.database
@pytest.mark.parametrize("schedule", ["lazy:1", "lazy:7", "inline"])
def test_every_collective_in_every_order_of_streams(run_ranks: RunRanks, schedule) -> None:
    assert "schedule" in find_driver("sim").options
    way = ("sim", {"schedule": schedule}, {"OUTBOARD_PROVIDERS": "native"})
    run_ranks("collectives", "3", "staged", way=way)


@pytest.mark.parametrize("way", [HOST, STAGED, OWN], ids=["host", "staged", "own"])
@pytest.mark.parametrize("how", ["any source", "threads", "saver"])
def test_what_must_not_mix(run_ranks: RunRanks, how, way) -> None:
    if how == "any source" and way is OWN:
        pytest.skip("capability: the device's own collectives receive from any rank")
    run_ranks("apart", how, way=way)


@pytest.mark.parametrize("way", [HOST, STAGED], ids=["host", "staged"])
def test_an_event_that_is_not_signalled_releases_its_stream(run_ranks: RunRanks, way) -> None:
    driver, options, variables = way
    run_ranks("apart", "signal", way=(driver, {**options, "fault": "event_signal:1:INTERNAL"}, variables))


@pytest.mark.parametrize("how", ["", "name", "pair", "device", "address"])
def test_init_process_group(run_ranks: RunRanks, how) -> None:
    run_ranks("spellings", how, str(free_port()))


@pytest.mark.parametrize("way", [HOST, STAGED], ids=["host", "staged"])
def test_bad_input_is_refused_at_the_call(run_ranks: RunRanks, way) -> None:
    run_ranks("bad_input", way=way)


@pytest.mark.parametrize("way", [HOST, STAGED], ids=["host", "staged"])
@pytest.mark.parametrize("options", [{}, {"schedule": "lazy:1"}, {"schedule": "lazy:7"}, {"workers": 1}], ids=str)
def test_streams_wait_and_the_host_does_not(run_ranks: RunRanks, way, options) -> None:
    run_ranks("streams", way=(way[0], options, way[2]))


def test_streams_of_opencl_wait(run_ranks: RunRanks) -> None:
    if lack := _lack_of_opencl():
        pytest.skip(lack)
    run_ranks("streams", "kill", way=APART, statuses=(0, -signal.SIGKILL))


@pytest.mark.parametrize("way", [HOST, STAGED], ids=["host", "staged"])
def test_a_killed_peer_is_an_error(run_ranks: RunRanks, way) -> None:
    run_ranks("failing", "kill", way=way, statuses=(0, -signal.SIGKILL))


def test_a_failure_of_the_device_keeps_its_type(run_ranks: RunRanks) -> None:
    run_ranks("failing", "work")


@pytest.mark.parametrize("how", ["hang", "abort", "exit"])
def test_a_peer_that_hangs_is_an_error_within_the_timeout(run_ranks: RunRanks, how) -> None:
    run_ranks("failing", how)


def test_a_store_that_is_gone(run_ranks: RunRanks) -> None:
    run_ranks("store")


@pytest.mark.parametrize("way", [HOST, STAGED, OWN], ids=["host", "staged", "native"])
def test_futures_that_outlive_their_works(run_ranks: RunRanks, way) -> None:
    run_ranks("futures", "60", way=way)


@pytest.mark.parametrize("way", [HOST, STAGED], ids=["host", "staged"])
def test_groups_leave_no_threads_and_no_memory(run_ranks: RunRanks, way) -> None:
    run_ranks("lifetimes", way=way)


@pytest.mark.database
@pytest.mark.parametrize(("way", "provider"), [(HOST, "host"), (STAGED, "staged"), (OWN, "native")])
def test_training_reaches_what_one_process_reaches(run_ranks: RunRanks, way, provider) -> None:
    run_ranks("training", "ddp,sync_batch_norm,fsdp2,fsdp2_mixed,dtensor,attention", provider, way=way)


@pytest.mark.database
@pytest.mark.parametrize(("way", "provider"), [(HOST, "host"), (STAGED, "staged"), (OWN, "native")])
def test_torchs_stacks_compute_what_one_process_does(run_ranks: RunRanks, way, provider) -> None:
    parts = "fsdp1,gpipe,one_f_one_b,resharded,compiled,context"
    run_ranks("stacks", parts, provider, way=way, limit=2 * LIMIT)


@pytest.mark.parametrize(("way", "provider"), [(HOST, "host"), (STAGED, "staged"), (OWN, "native")])
def test_profiler_sanitizer_and_graphs_see_collectives(run_ranks: RunRanks, way, provider) -> None:
    run_ranks("seen", provider, way=way)


EXAMPLES = TESTS.parent / "examples"
LLAMA = str(EXAMPLES / "llama_mesh")


def test_a_small_llama_learns_alike_on_each_mesh(run_ranks: RunRanks) -> None:
    """The example: a group of four is two by two, of two 1 x 2."""

    def losses(ranks: int, has_collectives: bool) -> list[float]:
        devices = {"OUTBOARD_SIM_DEVICES": "4", "OUTBOARD_SIM_COLLECTIVES": str(int(has_collectives))}
        options = ("--steps=3", "--log-every=1", "--batch=4")
        # Four processes on two cores, with whatever else runs there.
        answers = run_ranks(LLAMA, *options, statuses=(0,) * ranks, env=devices, limit=2 * LIMIT)
        assert not any(answer.stdout for answer in answers[1:])
        return [float(line.split()[-1]) for line in answers[0].stdout.splitlines()]

    alone = losses(1, False)
    assert len(alone) == 3 and alone[-1] < alone[0] - 0.1
    assert losses(2, False) == pytest.approx(alone, abs=2e-3)
    assert losses(4, True) == pytest.approx(alone, abs=2e-3)


def test_a_mesh_that_does_not_fit_is_refused(run_ranks: RunRanks) -> None:
    (answer,) = run_ranks(LLAMA, "--tensor-parallel=2", statuses=(2,))
    assert "--tensor-parallel=2 does not divide the number of processes, 1" in answer.stderr


@pytest.mark.parametrize("way", [HOST, STAGED, OWN])
def test_ranks_that_differ_are_reported_in_debug_mode(run_ranks: RunRanks, way) -> None:
    run_ranks("mismatch", way=way)


@pytest.mark.parametrize("way", [HOST, STAGED])
def test_ranks_that_differ_raise_on_each_rank(run_ranks: RunRanks, way) -> None:
    run_ranks("differing", way=way)


def test_copies_are_refused_where_they_are_forbidden(run_ranks: RunRanks) -> None:
    way = ("sim", {}, {"OUTBOARD_PROVIDERS": "native", "OUTBOARD_FALLBACK": "error"})
    run_ranks("forbidden", way=way)


def losses_of(output: str) -> list[float]:
    return [float(line.split()[-1]) for line in output.splitlines() if line.startswith("epoch")]


def learn_by_torchrun(*options: str) -> list[float]:
    """Run the example on two ranks, and return the loss of each epoch."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command = [*torchrun, str(EXAMPLES / "distributed_digits.py"), *options]
    answer = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=2 * LIMIT)
    assert answer.returncode == 0, answer.stderr[-4000:]
    return losses_of(answer.stdout)


def learn_digits(run_ranks: RunRanks, ranks: int, *options: str) -> list[float]:
    """Do the same without torchrun, whose processes import torch first."""
    answers = run_ranks(str(EXAMPLES / "distributed_digits"), *options, statuses=(0,) * ranks)
    return losses_of(answers[0].stdout)


@pytest.fixture
def losses_of_one_process(run_ranks: RunRanks, known_losses: list[float]) -> list[float]:
    known_losses.extend(learn_digits(run_ranks, 1, "--epochs=3") if not known_losses else [])
    return known_losses


@pytest.fixture(scope="session")
def known_losses() -> list[float]:
    return []


@pytest.mark.database
@pytest.mark.parametrize("options", [[], ["--fsdp"]], ids=["ddp", "fsdp2"])
def test_the_digits_are_learned_by_torchrun(run_ranks, tmp_path, losses_of_one_process, options) -> None:
    """The example resumes from its checkpoint, with another number of ranks."""
    first = learn_by_torchrun("--epochs=2", f"--checkpoint={tmp_path}", *options)
    second = learn_digits(run_ranks, 1, "--epochs=3", f"--checkpoint={tmp_path}", *options)
    assert len(first) == 2 and len(second) == 1
    # The gradients are summed in another order.
    assert [*first, *second] == pytest.approx(losses_of_one_process, abs=5e-4)


@pytest.mark.parametrize("driver", ["opencl", "pure_python_driver:PythonDriver"])
def test_the_digits_are_learned_by_other_devices(run_ranks, losses_of_one_process, driver) -> None:
    if driver == "opencl" and (lack := _lack_of_opencl()):
        pytest.skip(lack)
    losses = learn_digits(run_ranks, 2, "--epochs=2", f"--device={driver}")
    assert losses == pytest.approx(losses_of_one_process[:2], abs=5e-4)


def test_a_thread_of_a_group_waits_for_no_whole_stream(run_python: RunPython) -> None:
    """Such a wait takes in what the program queues meanwhile, and that waits for the group's thread."""
    run_python(
        """
import threading, time
import torch, torch_outboard
import torch.distributed as dist
from examples.pure_python_driver import PythonDriver

callers = set()

class Watched(PythonDriver):
    def stream_synchronize(self, *arguments):
        callers.add(threading.get_ident())
        return super().stream_synchronize(*arguments)

module = torch_outboard.attach(Watched())
dist.init_process_group(rank=0, world_size=1, store=dist.HashStore())
tensor = torch.ones(64, device="python")
for _ in range(5):
    tensor = tensor.clone()  # work of the driver's own
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
assert (tensor.cpu() == 1).all()
assert callers <= {threading.get_ident()}
dist.destroy_process_group()
"""
    )


def test_the_patch_is_needed(run_python: RunPython) -> None:
    run_python(
        """
import torch
import torch.distributed as dist
import torch_outboard
from torch_outboard._compat.distributed import needs_choose_backend
torch_outboard.attach("sim")
assert needs_choose_backend()
c10d = dist.distributed_c10d
c10d._new_process_group_helper = c10d._new_process_group_helper.__wrapped__
try:
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(2))
except RuntimeError as error:
    assert "ackend" in str(error), error
else:
    raise AssertionError("torch_outboard/_compat/distributed.py can go")
"""
    )


def test_attach_without_distributed(run_python: RunPython) -> None:
    run_python(
        """
import torch
torch.distributed.is_available = lambda: False
import torch_outboard
torch_outboard.attach("sim")
assert torch.ones(2, device="sim").sum().item() == 2
assert "outboard" not in torch.distributed.Backend.backend_list
"""
    )
