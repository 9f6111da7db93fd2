# SPDX-License-Identifier: BSD-3-Clause
"""The beginning and the end of programs that tests of `use()` run."""

from __future__ import annotations

ATTACH = "import torch, torch_outboard\ntorch_outboard.attach('sim')\n"
# Prints why `ours.use()` is refused.
REFUSED = """
try:
    ours.use()
except torch_outboard.RegistrationError as error:
    print(error)
else:
    raise AssertionError("it was not refused")
"""
