# SPDX-License-Identifier: BSD-3-Clause
"""Shared parts of the torch.compile tests: a separate cache, and a comparison with the CPU's eager results."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from torch_outboard.testing.fork_server import COMPILER
from torch_outboard.testing.plugin import RunPython

Compare = Callable[..., None]

# How a process begins that is given a driver and counts in `builds` what it has compiled.
COUNTS_BUILDS = """
import sys, torch, torch_outboard
from torch._inductor import config, cpp_builder
torch_outboard.attach(sys.argv[1])
name = torch_outboard.attached_driver().name
config.compile_threads = 1
builds = []
build = cpp_builder.CppBuilder.build

def counted(self):
    # Torch preprocesses its header once in a process, the CPU's too, to see whether the precompiled one is up to date.
    if not self.get_target_file_path().endswith(".i"):
        builds.append(self)
    return build(self)

cpp_builder.CppBuilder.build = counted
x = torch.full((7,), 2.0, device=name)
"""


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, driver_name: str) -> Iterator[None]:
    import torch_outboard

    driver = torch_outboard.attached_driver()
    assert driver is not None
    if driver.code_generator is None:
        pytest.skip(f"capability: a code generator. {driver_name} names none")
    # Its traces, megabytes a graph, are made only if somebody listens;
    # pytest's capture of logs does.
    logging.getLogger("torch.__trace").propagate = False
    # Processes that the tests start share it: what a test compiles twice is compiled once.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    yield
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]


@pytest.fixture(scope="session")
def run_python(run_python: RunPython) -> RunPython:
    """Return a `run_python` whose processes have already imported torch's compiler, which takes three seconds.

    In the tests' own process the driver is attached before the compiler's import, so the tests cover both orders.
    """
    return functools.partial(run_python, imports=COMPILER)


@pytest.fixture(scope="session")
def driver_target(request: pytest.FixtureRequest) -> str:
    """Return the driver's argument of `attach`, for processes that a test starts."""
    return request.config.getoption("--driver")


@pytest.fixture(scope="session")
def builds_cpp() -> None:
    """Skip where Triton builds all that torch.compile makes: these tests watch the C++ compiler."""
    import torch_outboard

    driver = torch_outboard.attached_driver()
    assert driver is not None
    named = driver.code_generator
    if (named(0) if callable(named) and not isinstance(named, type) else named) == "triton":
        pytest.skip("capability: code that a C++ compiler builds")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compare(device: torch.device) -> Compare:
    """Compile a function for the device and compare it with the CPU's eager one: results, inputs and their gradients.

    Numbers and CPU tensors of no dimensions are passed unchanged.
    """

    def run(function: Callable[..., Any], *arguments: Any, tolerance: float = 1e-5, **options: Any) -> None:
        ours = [_copy(argument, device) for argument in arguments]
        theirs = [_copy(argument, torch.device("cpu")) for argument in arguments]
        got = pytree.tree_leaves(torch.compile(function, fullgraph=True, **options)(*ours))
        want = pytree.tree_leaves(function(*theirs))
        if any(_requires_grad(argument) for argument in arguments):
            for leaves in (got, want):
                torch.stack([leaf.sum().cpu() for leaf in leaves if leaf.requires_grad]).sum().backward()
            got += [argument.grad for argument in ours if _requires_grad(argument)]
            want += [argument.grad for argument in theirs if _requires_grad(argument)]
        assert len(got) == len(want)
        for left, right in zip([*got, *ours], [*want, *theirs], strict=True):
            if isinstance(right, torch.Tensor):
                torch.testing.assert_close(left.cpu(), right, atol=tolerance, rtol=tolerance)
            else:
                assert left == right

    return run


def _requires_grad(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _copy(value: Any, device: torch.device) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    moved = value.detach().to(device) if value.dim() > 0 else value.detach()
    # A view keeps its strides and offset only if it is made of the copy of what it views.
    if value.dim() > 0 and value._base is not None:
        moved = value._base.detach().to(device).as_strided(value.size(), value.stride(), value.storage_offset())
    elif moved.device == value.device:
        moved = moved.clone()
    return moved.requires_grad_(value.requires_grad)
