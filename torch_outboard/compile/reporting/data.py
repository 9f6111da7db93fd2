# SPDX-License-Identifier: BSD-3-Clause
"""The parts of a compile report."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_outboard.compile.reporting.code import Extern, Kernel
from torch_outboard.compile.reporting.trace import PHASES

__all__ = ["Graph", "GraphBreak", "Region"]


@dataclass
class GraphBreak:
    """A place where Dynamo ended a graph, and the reason. `file` is empty if torch does not report the place."""

    reason: str
    file: str
    line: int | None


@dataclass
class Graph:
    """The generated code of one graph.

    Attributes
    ----------
    kind : str
        "inference", "forward" or "backward".
    state : str
        "compiled" or "from the cache". In the second case, no kernel was generated or compiled, and the list has cached
        kernels.
    note : str
        Why the generated code could not be read; empty otherwise.
    capture : str
        With mode="reduce-overhead": "captured", or why it was not captured; empty otherwise.
    """

    kind: str
    state: str = "compiled"
    kernels: list[Kernel] = field(default_factory=list)
    externs: list[Extern] = field(default_factory=list)
    note: str = ""
    capture: str = ""


@dataclass
class Region:
    """One compilation of one Python frame.

    Attributes
    ----------
    compile_id : str
        As in torch's logs: the frame's number, and how many times it was compiled before.
    function, file, line
        The frame. The rest of a function after a graph break is named torch_dynamo_resume_in_….
    operators : int
        Operators of Dynamo's graph.
    recompile_reasons : list of str
        Guards of earlier compilations that failed; empty for the first compilation.
    error : str
        The error that ended the compilation; empty if there was none.
    seconds : dict of str to float
        By phase: "dynamo", "aot", "lowering", "code", "kernels". Includes the time that torch takes to write its trace.
    """

    compile_id: str
    function: str = ""
    file: str = ""
    line: int | None = None
    operators: int = 0
    recompile_reasons: list[str] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    error: str = ""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())
