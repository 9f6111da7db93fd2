# SPDX-License-Identifier: BSD-3-Clause
"""What a compile report is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_outboard.compile.reporting.code import Extern, Kernel
from torch_outboard.compile.reporting.trace import PHASES

__all__ = ["Graph", "GraphBreak", "Region"]


@dataclass
class GraphBreak:
    """Where Dynamo had to end a graph, and why; `file` is empty where torch does not say."""

    reason: str
    file: str
    line: int | None


@dataclass
class Graph:
    """What Inductor generated for one graph.

    Attributes
    ----------
    kind : str
        "inference", "forward" or "backward".
    state : str
        "compiled", or "from the cache": then no kernel was generated or compiled, and those listed are the cached ones.
    note : str
        Why the generated code could not be read; else empty.
    capture : str
        With mode="reduce-overhead": "captured", or why it is not; else empty.
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
        As in torch's logs: the frame's number, and how often it was compiled before.
    function, file, line
        The frame; a part of a function behind a graph break is called torch_dynamo_resume_in_….
    operators : int
        Of Dynamo's graph.
    recompile_reasons : list of str
        Which guards of earlier compilations failed; empty for the first one.
    error : str
        What ended the compilation; empty if nothing did.
    seconds : dict of str to float
        By phase: "dynamo", "aot", "lowering", "code", "kernels". What torch takes to tell of itself is in it.
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
