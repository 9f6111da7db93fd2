# SPDX-License-Identifier: BSD-3-Clause
"""The backend "outboard" of torch.distributed, for the attached driver's devices; see docs/distributed.md."""

from __future__ import annotations

from torch_outboard.distributed._register import BACKEND, register

__all__ = ["BACKEND", "register"]
