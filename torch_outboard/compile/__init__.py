# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile for every driver: Dynamo's device interface, and Inductor with the code generator that a driver names.

Importing this imports neither Dynamo nor Inductor. docs/compile.md tells the way from a graph to a launch.
"""

from __future__ import annotations

from torch_outboard.compile.generator import CodeGenerator
from torch_outboard.compile.reporting import CompileReport, report

__all__ = ["CodeGenerator", "CompileReport", "report"]
