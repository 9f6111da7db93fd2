# SPDX-License-Identifier: BSD-3-Clause
"""Collectives through NCCL, with a stand-in for it or on two GPUs: the core's programs with several ranks."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.distributed.conftest import LIMIT, TESTS, RunRanks, _servers, environment, run_ranks

__all__ = ["_servers", "run_ranks"]  # fixtures


@pytest.fixture(scope="session", params=["fake", "gpus"])
def nccl(request: pytest.FixtureRequest, fakes) -> dict[str, str]:
    """Return options of nv: the real libraries if there are two GPUs, otherwise stand-ins."""
    if request.param == "gpus":
        code = "import sys, torch_outboard; sys.exit(torch_outboard.attach('nv').device_count() < 2)"
        if subprocess.run([sys.executable, "-c", code], env=environment(), cwd=TESTS.parent).returncode:
            pytest.skip("capability: two GPUs of NVIDIA's")
        return {}
    libraries = (("library", "fake_cuda", "libcuda.so.1"), ("nccl", "fake_nccl", "libnccl.so.2"))
    return {option: str(fakes(name, file)) for option, name, file in libraries}


def without_kernels(nccl: dict[str, str]) -> dict[str, str]:
    """Return variables for the fake device, which runs no generated kernels and must not be hidden."""
    return {"OUTBOARD_PROVIDERS": "native,host", "CUDA_VISIBLE_DEVICES": "0,1"} if nccl else {}


# Before 2.18, NCCL has no split, and queues each call on a thread. The variable requests the same.
WHOLE = {"NCCL_COMM_SPLIT_SHARE_RESOURCES": "0"}
BEFORE_SPLIT = {"FAKE_NCCL_VERSION": "21700", "FAKE_NCCL_SLOW": "2"}


@pytest.mark.database
@pytest.mark.parametrize("variables", [{}, WHOLE, BEFORE_SPLIT], ids=["default", "whole", "threads"])
def test_every_collective_of_nccl(run_ranks: RunRanks, nccl, variables) -> None:
    if variables == BEFORE_SPLIT and not nccl:
        pytest.skip("capability: an older library")
    # A GPU's kernels are compiled for each type and form. The fake's thousand exchanges each switch
    # between four threads.
    run_ranks("collectives", "5", "native", way=("nv", nccl, {**without_kernels(nccl), **variables}), limit=2 * LIMIT)


FAKES = {
    "absent": {"FAKE_NCCL_VERSION": "21300"},
    "fails": {"FAKE_NCCL_FAIL": "ncclAllReduce"},
    "fails_to_split": {"FAKE_NCCL_FAIL": "ncclCommSplit"},
    "hang_of_thread": BEFORE_SPLIT,
}


@pytest.mark.database
@pytest.mark.parametrize("how", ["works", "kill", "leave", "hang", "late", "abort", "stuck", "exit", *FAKES])
def test_nccl_that_fails(run_ranks: RunRanks, nccl, how) -> None:
    variables = FAKES.get(how, {})
    if how in FAKES and not nccl:
        pytest.skip("capability: a library that fails on demand")
    how = how.removesuffix("_of_thread")
    statuses = (0, -signal.SIGKILL) if how == "kill" else (0, 0)
    run_ranks("native", how, way=("nv", nccl, {**without_kernels(nccl), **variables}), statuses=statuses)
