# SPDX-License-Identifier: BSD-3-Clause
"""The includes between C and C++ files: the layers of csrc, and the headers that drivers may use."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
INCLUDE = ROOT / "include"
SUFFIXES = {".c", ".cpp", ".h", ".inc"}

_CONTRACT = "include/torch_outboard/driver.h"
_COLLECTIVES = "include/torch_outboard/collectives.h"
_PUBLIC = "include/torch_outboard"
_SUPPORT = "include/torch_outboard/support"
_CORE = {_CONTRACT, _COLLECTIVES, "csrc/core"}
_MEMORY = {*_CORE, "csrc/memory"}
_GRAPH = {*_MEMORY, "csrc/graph"}
_TENSORS = {*_MEMORY, "csrc/ops/tensors"}
_OPERATOR = {*_TENSORS, "csrc/ops/operator"}
_CALL = {*_OPERATOR, "csrc/torch", "csrc/ops/call", "csrc/ops/providers"}
_CHAIN = {*_CALL, "csrc/kernels", "csrc/ops/native", "csrc/ops/planned", "csrc/ops/host"}
_OPS = {*_CHAIN, "csrc/ops/boxed", "csrc/ops/description", "csrc/ops/register_native", "csrc/ops/own"}
_API = {*_OPS, *_GRAPH, "csrc/ops/register", "csrc/inductor", _PUBLIC}

# What docs/architecture.md says: the rooms that the files of a room may include, beside their own.
# A file belongs to the longest name that its path begins with. The order is that of the layers.
ROOMS: Mapping[str, Collection[str]] = {
    _CONTRACT: (),
    _COLLECTIVES: {_CONTRACT},
    _PUBLIC: {_CONTRACT},
    _SUPPORT: {_CONTRACT, _COLLECTIVES},
    "csrc/core": {_CONTRACT, _COLLECTIVES},
    "csrc/memory": _CORE,
    "csrc/graph": _MEMORY,
    "csrc/kernels": _CORE,
    "csrc/torch": _GRAPH,
    "csrc/ops/tensors": _MEMORY,
    "csrc/ops/operator": _TENSORS,
    "csrc/ops/providers": _TENSORS,
    "csrc/ops/call": {*_OPERATOR, "csrc/torch"},
    "csrc/ops/native": _CALL,
    "csrc/ops/planned": {*_CALL, "csrc/kernels"},
    "csrc/ops/host": {*_CALL, "csrc/ops/planned"},
    "csrc/ops/boxed": _CHAIN,
    "csrc/ops/description": _CHAIN,
    "csrc/ops/register_native": {*_CHAIN, "csrc/ops/boxed"},
    "csrc/ops/own": {*_CHAIN, "csrc/ops/boxed"},
    "csrc/ops/register": _OPS,
    "csrc/inductor": {*_CHAIN, _PUBLIC},
    "csrc/api": _API,
    "csrc/distributed": {*_API, "csrc/api", _SUPPORT},
    "csrc/bindings": {*_API, "csrc/api", "csrc/distributed"},
    "drivers/null": {_CONTRACT, _SUPPORT},
    "drivers/opencl": {_CONTRACT, _SUPPORT},
    "drivers/sim": {_CONTRACT, _COLLECTIVES, _SUPPORT},
    "drivers/vulkan": {_CONTRACT, _SUPPORT},
}

# Includes that no rule allows, by the two files, and why they are
# there. There are none: keep it so.
EXCEPTIONS: Mapping[tuple[str, str], str] = {}

# How headers of other projects begin, and the rooms that may include them.
_CSRC = {room for room in ROOMS if room.startswith("csrc/")}
_ATEN = _CSRC - {"csrc/core", "csrc/graph", "csrc/kernels"}  # memory: the template of torch's allocator of host memory
FOREIGN: Mapping[str, Collection[str]] = {
    "Python.h": {"csrc/bindings"},
    "pybind11/": {"csrc/bindings"},
    "torch/": (_ATEN - {"csrc/memory"}) | {_PUBLIC},
    "ATen/": _ATEN | {_PUBLIC},
    "c10/": _CSRC | {_PUBLIC},
}


class Use(NamedTuple):
    """An include: its file and line, its text, and the included file if the project has it."""

    path: str
    line: int
    text: str
    used: str | None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: #include {self.text}"


def includes(path: Path) -> Iterator[Use]:
    own = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line):
            quote, name = match.groups()
            folders = [path.parent] if quote == '"' else []
            folders += [ROOT / "csrc", INCLUDE] if own.startswith("csrc/") else [INCLUDE]
            header = next((folder / name for folder in folders if (folder / name).is_file()), None)
            used = header.resolve().relative_to(ROOT).as_posix() if header else None
            yield Use(own, number, f"{quote}{name}{'>' if quote == '<' else quote}", used)


def all_includes() -> list[Use]:
    files = [path for top in ("csrc", "drivers", "include") for path in sorted((ROOT / top).rglob("*"))]
    return [use for path in files if path.suffix in SUFFIXES for use in includes(path)]


def room_of(path: str) -> str | None:
    names = [room for room in ROOMS if path == room or path.startswith((f"{room}/", f"{room}."))]
    return max(names, key=len, default=None)


def rule_against(use: Use) -> str | None:
    """Return the rule that an include breaks, or None."""
    own = room_of(use.path)
    if own is None:
        return f"{use.path} is in no room: say in ROOMS and in docs/architecture.md what it may include"
    if use.used is not None:
        used = room_of(use.used)
        if used is None:
            return f"{use.used} is in no room"
        return None if used in {own, *ROOMS[own]} else f"{own} may not include {used}, only {sorted(ROOMS[own])}"
    name = use.text[1:-1]
    if use.text[0] == '"':
        return f"there is no such file, beside {use.path} or in csrc or include"
    for begin, knows in FOREIGN.items():
        if name.startswith(begin) and own not in knows:
            return f"{own} may not know {begin}, only {sorted(knows)}"
    return None


def complaints(uses: list[Use], exceptions: Collection[tuple[str, str]]) -> list[str]:
    """Return the violations, in words: forbidden includes, and unneeded exceptions."""
    violations = {}
    for use in uses:
        if (rule := rule_against(use)) is not None:
            violations[use.path, use.used or use.text] = f"{use}\n    {rule}"
    wrong = [words for edge, words in violations.items() if edge not in exceptions]
    return wrong + [
        f"{path} does not include {used}: drop it from EXCEPTIONS"
        for path, used in exceptions
        if (path, used) not in violations
    ]


def test_each_room_includes_those_below_it_alone():
    uses = all_includes()
    assert len({use.path for use in uses}) > 250
    wrong = complaints(uses, EXCEPTIONS)
    assert not wrong, "\n".join(wrong)


def test_exceptions_are_exact():
    upward = Use("csrc/core/device.cpp", 7, '"memory/block.h"', "csrc/memory/block.h")
    edge = (upward.path, "csrc/memory/block.h")
    [words] = complaints([upward], [])
    assert words.startswith('csrc/core/device.cpp:7: #include "memory/block.h"\n')
    assert complaints([upward], [edge]) == []
    assert "drop it" in complaints([], [edge])[0]


def test_the_rooms_are_in_layers():
    below: set[str] = set()
    for room, may_include in ROOMS.items():
        assert below.issuperset(may_include), f"{room} may include what is not below it"
        below.add(room)


def test_an_include_that_points_upward_would_be_seen():
    def rule(path: str, text: str, used: str | None) -> str | None:
        return rule_against(Use(path, 1, text, used))

    assert rule("csrc/core/device.cpp", '"core/device.h"', "csrc/core/device.h") is None
    assert "csrc/core may not include csrc/memory" in str(
        rule("csrc/core/device.cpp", '"memory/block.h"', "csrc/memory/block.h")
    )
    assert "drivers/sim may not include drivers/vulkan" in str(
        rule("drivers/sim/work.cpp", '"../vulkan/vk.h"', "drivers/vulkan/vk.h")
    )
    assert "may not include csrc/core" in str(rule("drivers/sim/work.cpp", '"core/error.h"', "csrc/core/error.h"))
    assert "may not know ATen/" in str(rule("csrc/core/device.cpp", "<ATen/ATen.h>", None))
    assert "may not know Python.h" in str(rule("csrc/ops/host/copy.cpp", "<Python.h>", None))
    assert "in no room" in str(rule("csrc/attic/old.cpp", "<vector>", None))
    assert "no such file" in str(rule("csrc/core/device.cpp", '"core/gone.h"', None))
    assert rule("csrc/core/device.cpp", "<vector>", None) is None


def test_includes_are_read_as_the_compiler_reads_them(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "INCLUDE", tmp_path / "include")
    for name in ("csrc/core/a.h", "csrc/memory/b.h", "include/torch_outboard/driver.h", "drivers/sim/own.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    text = (
        '#include <vector>\n// #include "core/a.h"\n#include "core/a.h"\n  # include <memory/b.h>\n#include "own.h"\n'
    )
    for name in ("csrc/core/x.cpp", "drivers/sim/x.cpp"):
        (tmp_path / name).write_text(text + "#include <torch_outboard/driver.h>\n", encoding="utf-8")
    contract = "include/torch_outboard/driver.h"
    of_core = [(use.line, use.used) for use in includes(tmp_path / "csrc/core/x.cpp")]
    assert of_core == [(1, None), (3, "csrc/core/a.h"), (4, "csrc/memory/b.h"), (5, None), (6, contract)]
    of_driver = [(use.line, use.used) for use in includes(tmp_path / "drivers/sim/x.cpp")]
    assert of_driver == [(1, None), (3, None), (4, None), (5, "drivers/sim/own.h"), (6, contract)]
