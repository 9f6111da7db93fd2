# SPDX-License-Identifier: BSD-3-Clause
"""The table of collectives belongs to the driver that is attached, not to a library whose attach failed."""

from __future__ import annotations

from torch_outboard.testing.plugin import RunPython


def test_a_failed_attach_leaves_no_collectives(run_python: RunPython) -> None:
    run_python(
        """
import pytest, torch, torch_outboard
import torch.distributed as dist
from examples.pure_python_driver import PythonDriver
from torch_outboard import _C
from torch_outboard._discovery import find_driver

library = str(find_driver("sim").library)
with pytest.raises(torch_outboard.RegistrationError, match="entry `mem_info` must be a method"):
    _C.attach_library(library, "sim", {"collectives": "1"}, {"mem_info": "no method"})
torch_outboard.attach(PythonDriver())
dist.init_process_group("outboard", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3, device="python"))
assert {row.provider for row in torch_outboard.coverage() if row.op.startswith("c10d::")} == {"host"}
dist.destroy_process_group()
"""
    )
