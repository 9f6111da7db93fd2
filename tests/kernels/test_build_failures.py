# SPDX-License-Identifier: BSD-3-Clause
"""A full disk during the compilation of kernels: nothing is refused permanently."""

from __future__ import annotations

import contextlib
import itertools
import resource
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torch_outboard import _C
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.kernels import builder, refused_operators

_numbers = itertools.count()


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Limit the files of the process to their present size, in a scope."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def new_texts(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """Generate kernels that no cache has, and retry failed builds at once."""
    original = builder._kernel

    def renamed(*arguments: Any) -> KernelRecord:
        kernel = original(*arguments)
        return kernel._replace(code=kernel.code + f"// {tmp_path} {next(_numbers)}\n".encode())

    monkeypatch.setattr(builder, "_kernel", renamed)
    monkeypatch.setattr(builder, "_keeps", lambda: False)
    _C.set_retry_interval(0)
    yield
    _C.set_retry_interval(1000)


@pytest.mark.usefixtures("new_texts")
@pytest.mark.parametrize("name", ["erfinv", "_foreach_lgamma"])
def test_kernels_are_built_once_there_is_room(name: str, device: torch.device) -> None:
    x = torch.rand(2, 1, 2, 1, 2, 1, 3, dtype=torch.float64)  # of a rank and a type that no other test uses
    ours = x.to(device)

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.erfinv(x) if name == "erfinv" else torch._foreach_lgamma([x])[0]

    torch.accelerator.synchronize(device)  # launches that a runtime compiles late need the disk too
    with full_disk(), contextlib.suppress(RuntimeError):  # a compiler that needs no disk succeeds
        call(ours)
        torch.accelerator.synchronize(device)  # its program may be built in the background
    torch.testing.assert_close(call(ours).cpu(), call(x))
    assert not [reason for operator, reason in refused_operators() if name in operator]
