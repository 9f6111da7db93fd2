# SPDX-License-Identifier: BSD-3-Clause
"""A process's first call of a function of one number is exact: without help, the CPU's isn't in a fifth of them."""

from __future__ import annotations

import collections

from torch_outboard.testing.plugin import RunPython

# 3: the first call and the second differ.
_PROGRAM = """
import os, sys
import torch, torch_outboard
if sys.argv[1] == "attached":
    torch_outboard.attach("sim")
x = torch.rand(20_000)
os._exit(0 if torch.equal(x.exp(), x.exp()) else 3)
"""


def test_first_calls_are_exact(run_python: RunPython) -> None:
    statuses = {
        how: collections.Counter(
            run_python(_PROGRAM, how, env={"OMP_NUM_THREADS": "2"}, status=None, fresh=True).returncode
            for _ in range(40)
        )
        for how in ("alone", "attached")
    }
    assert statuses["attached"] == {0: 40}
    # The race that this is about happens here; if not, torch may have a newer oneMKL.
    assert statuses["alone"][3] > 0, statuses
