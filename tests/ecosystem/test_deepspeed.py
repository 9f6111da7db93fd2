# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed trains on the device to the CPU's losses, by one rank and by two; what `use()` refuses."""

from __future__ import annotations

import pytest

from .snippets import ATTACH, REFUSED
from .test_libraries import DEVICE, TORCHRUN, on_cpu, run

ONE = (*TORCHRUN[:-1], "--nproc-per-node=1")
USE = ATTACH + "from torch_outboard.integrations import deepspeed as ours\n"


def test_one_rank():
    reports, _ = run("deepspeed", "--device", DEVICE, start=ONE)
    assert reports[0]["device"] == f"{DEVICE}:0"
    assert reports[0]["losses"] == pytest.approx(on_cpu("torch"), rel=1e-5)


@pytest.mark.parametrize("shard", [(), ("--shard",)], ids=["whole", "ZeRO 3"])
def test_two_ranks(shard):
    reports, _ = run("deepspeed", "--device", DEVICE, *shard, start=TORCHRUN)
    assert {rank: report["device"] for rank, report in reports.items()} == {0: f"{DEVICE}:0", 1: f"{DEVICE}:1"}
    assert reports[0]["losses"] == pytest.approx(on_cpu("accelerate", start=TORCHRUN), rel=1e-5)


def test_bf16():
    reports, _ = run("deepspeed", "--device", DEVICE, "--precision", "bf16", start=ONE)
    assert reports[0]["dtype"] == "torch.bfloat16"
    assert reports[0]["losses"] == pytest.approx(on_cpu("torch", "--precision", "bf16"), rel=2e-2)


def test_the_accelerator_answers_all_questions_and_is_taken_back(run_python):
    run_python(
        USE
        + """
used = ours.use()
accelerator = ours.accelerator()
from deepspeed.accelerator import get_accelerator, real_accelerator
assert get_accelerator() is accelerator and used.patches()
x = accelerator.FloatTensor([1, 2])
assert accelerator.on_accelerator(x) and not accelerator.on_accelerator(x.cpu()) and x.device == torch.device("sim", 0)
assert accelerator.total_memory() >= accelerator.available_memory() > 0 and accelerator.memory_allocated() > 0
assert accelerator.device_name() == "sim" and accelerator.device_name(1) == accelerator.current_device_name()[:-1] + "1"
before = accelerator.get_rng_state()
first = torch.rand(3, device="sim")
accelerator.set_rng_state(before)
assert torch.equal(torch.rand(3, device="sim").cpu(), first.cpu())
with accelerator.device(1):
    assert accelerator.current_device() == 1
graph = accelerator.create_graph()
with accelerator.capture_to_graph(graph):
    y = x + 1
x.fill_(4)
accelerator.replay_graph(graph)
assert y.tolist() == [5, 5]
accelerator.range_push("a")
accelerator.range_pop()
assert accelerator.get_op_builder("CPUAdamBuilder").__name__ == "CPUAdamBuilder"
try:
    accelerator.create_op_builder("FusedAdamBuilder").load()
except torch_outboard.NotSupportedError as error:
    assert "FusedAdam has no kernels for 'sim'" in str(error) and "torch_adam" in str(error), error
else:
    raise AssertionError("an extension would read the device's memory")
used.close()
assert real_accelerator.ds_accelerator is None
"""
    )


@pytest.mark.parametrize(
    ("before", "variables", "expected"),
    [
        ("import deepspeed.accelerator; deepspeed.accelerator.get_accelerator()", {}, "has chosen 'cpu' already"),
        (
            "",
            {"DS_ACCELERATOR": "cuda"},
            "DS_ACCELERATOR selects 'cuda', but use() selects 'sim'. Unset DS_ACCELERATOR.",
        ),
        ("import sys; sys.modules['deepspeed'] = None", {}, "DeepSpeed is not installed"),
    ],
)
def test_what_is_refused(run_python, before, variables, expected):
    answer = run_python(USE + before + REFUSED, env=variables)
    assert expected in answer.stdout


def test_without_a_device_it_is_refused(run_python):
    answer = run_python("import torch_outboard\nfrom torch_outboard.integrations import deepspeed as ours\n" + REFUSED)
    assert "deepspeed.use() needs a device" in answer.stdout


def test_a_version_that_asks_for_more_is_refused_by_the_methods_name(run_python):
    answer = run_python(
        USE
        + """
import abc, sys
from torch_outboard._compat.imports import when_imported
def more(module):
    module.DeepSpeedAccelerator.fly = abc.abstractmethod(lambda self: None)
    module.DeepSpeedAccelerator.__abstractmethods__ |= {"fly"}
when_imported("deepspeed.accelerator.abstract_accelerator", more)
ours.use()
try:
    import deepspeed
except torch_outboard.RegistrationError as error:
    print(error)
"""
    )
    assert "needs accelerator methods that torch-outboard lacks (fly)" in answer.stdout
