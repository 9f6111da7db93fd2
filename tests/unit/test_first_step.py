# SPDX-License-Identifier: BSD-3-Clause
"""The warning at the first step of a rank that trains on the CPU, or alone."""

from __future__ import annotations

import pytest

RANKS = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
TRAIN = """
import sys, types, warnings
import torch, torch_outboard
torch_outboard.attach("sim")
def train(device, module=lambda net: net):
    net = module(torch.nn.Linear(2, 1).to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            net(torch.ones(1, 2, device=device)).sum().backward()
            optimizer.step()
    return [str(warning.message) for warning in caught]
"""
# Two threads can't be two ranks: a group of one rank has the device's backend too.
GROUP = """
import torch.distributed as dist
dist.init_process_group(rank=0, world_size=1, store=dist.HashStore())
"""


def test_a_rank_on_the_cpu_is_reported_once(run_python):
    run_python(
        TRAIN + "[told] = train('cpu')\nassert \"'sim' is attached, and rank 0 of 2 trains on the CPU\" in told, told\n"
        "assert 'DistributedDataParallel' in told and train('cpu') == []",
        env=RANKS,
    )


@pytest.mark.parametrize(
    ("library", "module"),
    [("accelerate", "huggingface"), ("lightning", "lightning"), ("pytorch_lightning", "lightning")],
)
def test_the_line_to_add_is_that_of_the_library(run_python, library, module):
    run_python(
        TRAIN + f"sys.modules[{library!r}] = types.ModuleType({library!r})\n"
        f"[told] = train('cpu')\nassert 'import {module}; {module}.use()' in told, told",
        env=RANKS,
    )


def test_a_rank_without_a_group_is_reported(run_python):
    run_python(TRAIN + "[told] = train('sim')\nassert 'has no process group' in told, told", env=RANKS)


def test_a_group_that_is_not_used_is_reported(run_python):
    run_python(
        TRAIN + GROUP + "[told] = train('sim')\nassert 'without having exchanged anything' in told, told", env=RANKS
    )


def test_ddp_is_silent(run_python):
    run_python(
        TRAIN + GROUP + "assert train('sim', torch.nn.parallel.DistributedDataParallel) == []\n"
        "dist.destroy_process_group()",
        env=RANKS,
    )


def test_one_process_is_silent(run_python):
    run_python(TRAIN + "assert train('cpu') == [] and train('sim') == []")
    run_python(TRAIN + "assert train('cpu') == []", env={"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"})


def test_the_warning_names_the_programs_line_behind_a_librarys(run_python, tmp_path):
    """Libraries step by wrappers of their own, and Accelerate silences warnings of lines of torch."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "wrapping.py").write_text("def step(optimizer):\n    optimizer.step()\n")
    run_python(
        TRAIN + f"sys.path.append({str(folder)!r})\nimport wrapping\n"
        "warnings.simplefilter('error')\n"
        "net = torch.nn.Linear(2, 1)\n"
        "net(torch.ones(1, 2)).sum().backward()\n"
        "warnings.simplefilter('always')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    wrapping.step(torch.optim.SGD(net.parameters()))\n"
        "assert caught[0].filename == '<string>', caught[0].filename",
        env=RANKS,
    )
