# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile for every driver: Dynamo's device interface, and Inductor with the driver's code generator.

This module imports neither Dynamo nor Inductor. docs/compile.md describes the path from a graph to a launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_outboard.compile.generator import CodeGenerator
    from torch_outboard.compile.reporting.report import CompileReport, report

__all__ = ["CodeGenerator", "CompileReport", "report"]

_MODULE_OF = {"CodeGenerator": "generator", "CompileReport": "reporting.report", "report": "reporting.report"}


def __getattr__(name: str) -> Any:
    """Import a public name's module on first access, because attaching needs no reports."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
