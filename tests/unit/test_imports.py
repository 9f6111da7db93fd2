# SPDX-License-Identifier: BSD-3-Clause
"""The imports between the package's modules: no cycles, and every room in its layer."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import torch_outboard

PACKAGE = Path(torch_outboard.__file__).parent

# What may be imported everywhere: they know nothing of devices.
_BASE = {"_build", "_check", "_child", "_errors", "_extension", "_options", "_private_files", "_triton", "_version"}
_COMPAT = {*_BASE, "_compat", "device", "driver"}
# The rooms of the code generator.
_CODEGEN = {"codegen.prelude", "codegen.dialects", "codegen.mapping", "codegen.kernel", "codegen"}
_GENERATED = {*_COMPAT, *_CODEGEN, "compile.runtime", "compile.wrapper", "compile.fx"}
_LANGUAGE = {*_GENERATED, "compile.generator", "compile.cpp"}
_ATTACH = {
    *{
        *_COMPAT,
        "_build",
        "_device_name",
        "_discovery",
        "_exit",
        "_install",
        "_kernels",
        "_settings",
        "_variables",
        "amp",
    },
    *{"compile.generators", "compile.register", "distributed"},
}
# Of torch_outboard.compile, what kernels of eager operators share.
_SHARED = {
    *{"compile.generator", "compile.generators", "compile.own_code", "compile.device", "compile.fx", "compile.runtime"}
}
_TEMPLATES = {*_BASE, *_CODEGEN, "kernels.refusal", "kernels.tune.schedules", "kernels.plans.text"}
_ROUTED = {"kernels.operators", "kernels.reasons", "kernels.refusal", "kernels.route"}
_BOOK = {*_COMPAT, *_CODEGEN, *_ROUTED, "compile.generators", "kernels.templates"}
_OPERATORS = {*_BOOK, "kernels.book"}
_DISK = {
    *_BASE,
    "codegen",
    "compile.generators",
    "compile.own_code",
    "device",
    "driver",
    "kernels",
    "kernels.operators",
}
_TUNING = {*_TEMPLATES, *_OPERATORS, *_DISK, "kernels.disk"}

# What docs/architecture.md says: the rooms that the modules of a room may import, beside
# their own. A module belongs to the longest name that its own begins with, without the
# package's; "" is what users import. The order is that of the layers. Generators in other
# languages than C++ are rooms of their own.
ROOMS: Mapping[str, Collection[str]] = {
    "_check": (),
    "_child": (),
    "_errors": (),
    "_version": (),
    "_build": (),
    "_extension": {"_build"},
    "_host_view": (),
    "_private_files": (),
    "_triton": (),
    "_options": {"_errors"},
    "_launch": {"_errors", "_options"},
    "_properties": {"_errors", "_options"},
    "sanitizer": {"_errors"},
    "driver": {"_check", "_errors", "_options", "_triton"},
    "_direct_calls": {"driver"},
    "_install": {"_direct_calls", "_options", "_properties", "driver"},
    "_settings": {"_options", "_private_files", "driver", "sanitizer"},
    "_kernels": {"_errors", "driver"},
    "_device_name": {"_errors"},
    "_exit": {"driver"},
    "_discovery": {"_errors", "_options", "driver"},
    "_variables": {"_discovery", "_options"},
    "amp": {"_errors", "_options", "driver"},
    "device": {*_BASE, "_properties", "driver"},
    "drivers": {*_BASE, "_properties", "device", "driver"},
    "_compat": {"device"},
    "codegen.prelude": (),
    "codegen.dialects": {"codegen.prelude"},
    "codegen.mapping": {*_COMPAT, "codegen.prelude", "codegen.dialects"},
    "codegen.kernel": {*_COMPAT, "codegen.prelude", "codegen.dialects", "codegen.mapping"},
    "codegen": {*_COMPAT, *_CODEGEN} - {"codegen"},
    "compile.generator": {*_BASE, "driver"},
    "compile.own_code": _BASE,
    "compile.runtime": _BASE | _CODEGEN,
    "compile.capture": {*_BASE, "device"},
    "compile.wrapper": {*_BASE, *_CODEGEN, "compile.runtime"},
    "compile.fx": {*_COMPAT, *_CODEGEN, "compile.runtime", "compile.wrapper"},
    "compile.cpp": {*_GENERATED, "compile.generator"},
    "compile.simt": _LANGUAGE,
    "compile.triton": _LANGUAGE,
    "compile.generators": {
        *{*_BASE, "_properties", "driver", "compile.generator", "compile.cpp", "compile.simt", "compile.triton"}
    },
    "compile.device": {*_COMPAT, "compile.generator", "compile.generators", "compile.own_code"},
    "compile.register": {
        *_COMPAT,
        "_properties",
        "compile.generators",
        "compile.device",
        "compile.capture",
        "compile.triton",
    },
    "distributed": _BASE | {"_compat"},
    "_attach": _ATTACH,
    "_autoload": {"_attach", "_errors"},
    "kernels.operators": (),
    "kernels.reasons": (),
    "kernels.refusal": {"kernels.reasons"},
    "kernels.route": (),
    "kernels.tune.schedules": (),
    "kernels.plans.text": {*_BASE, *_CODEGEN, "kernels.refusal"},
    "kernels.templates": _TEMPLATES,
    "kernels.book": _BOOK,
    "kernels": _OPERATORS,
    "kernels.disk": {*_DISK, "codegen.dialects"},
    "kernels.packing": {*_DISK, "_attach", "_discovery", "_properties", "kernels.book", "kernels.disk"},
    "kernels.tune": _TUNING,
    "kernels.plans": {*_TUNING, *_SHARED, "kernels.tune"},
    "kernels.builder": {*_TUNING, "_exit", "kernels.plans", "kernels.tune"},
    "kernels.explain": {*_COMPAT, "_attach", "_settings", "kernels.book", "kernels.operators", "kernels.route"},
    "kernels.generated_only": {*_COMPAT, "_attach", "compile.generators", "kernels.disk"},
    "kernels.bringup": {*_COMPAT, "codegen.dialects", "compile.generators", "compile.runtime", "kernels.tune"},
    "_coverage": {"_attach", "kernels"},
    "compile.reporting": {"_coverage"},
    "compile": {"compile.generator", "compile.reporting"},
    # A set of patches on request: nothing but the command depends on it.
    "_patching": (),
    "as_cuda": {*_BASE, "_attach", "_compat", "_patching", "_properties", "device", "distributed"},
    "integrations": {*_BASE, "_attach", "_compat", "_patching", "distributed"},
    "": {
        *{*_BASE, "_attach", "_autoload", "_coverage", "_host_view", "_kernels", "_launch", "_properties"},
        *{"amp", "as_cuda", "driver"},
    },
    "testing": {*_BASE, *_CODEGEN, "", "_discovery", "_settings", "compile.generators", "driver"},
    "testing.database": {*_BASE, "kernels.generated_only", "testing"},
    "race": {*_BASE, "", "as_cuda", "sanitizer", "testing"},
    "doctor": {*_BASE, "", "_attach", "_build", "_discovery", "driver", "integrations", "kernels.disk"},
    "cli": {
        *{*_BASE, "_attach", "_build", "_compat", "_coverage", "_device_name", "_discovery", "_settings", "driver"},
        *{"drivers", "testing"},
        "testing.database",
        *{"as_cuda", "doctor", "integrations", "race"},
        *{
            "compile.generators",
            "compile.reporting",
            "kernels",
            "kernels.reasons",
            "kernels.refusal",
            "kernels.disk",
            "kernels.packing",
            "kernels.tune",
        },
        *{
            "kernels.tune.schedules",
            "kernels.generated_only",
            "kernels.bringup",
            "kernels.explain",
            "kernels.operators",
        },
        *{"kernels.route"},
    },
    "__main__": {"cli"},
}

# The imports that no rule allows, and why they are still there. An import that
# is gone must go from this list.
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("kernels", "kernels.builder"): "counts what was built, and builds nothing for that: it looks in sys.modules",
}


class Use(NamedTuple):
    """An import: its module and line, and the imported module, without the package's name."""

    module: str
    line: int
    used: str

    def __str__(self) -> str:
        path = modules().get(self.module, Path(self.module))
        place = path.relative_to(PACKAGE.parent) if path.is_absolute() else path
        return f"{place}:{self.line}: {self.module or PACKAGE.name} imports {self.used or PACKAGE.name}"


def modules() -> dict[str, Path]:
    """Return the package's modules by their names without the package's, except the templates of projects."""
    paths = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        paths[name.removesuffix("__init__").removesuffix(".")] = path
    return paths


def imported(module: str, source: str, names: Mapping[str, object]) -> Iterator[Use]:
    """Yield the modules of `names` that a module imports anywhere; for a submodule, not its package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            whole = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "imports are absolute"
            # Any module may import the extension.
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            whole = [name if own_name(name) in names else node.module for name in submodules if own_name(name) != "_C"]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "sys.modules.get")):
            whole = [ast.literal_eval(argument) for argument in node.args if isinstance(argument, ast.Constant)]
        else:
            continue
        for name in whole:
            if (used := own_name(name)) is not None and used in names:
                yield Use(module, node.lineno, used)


def own_name(module: str) -> str | None:
    """Return a module's name without the package's, or None for a module of another package."""
    first, _, rest = module.partition(".")
    return rest if first == PACKAGE.name else None


def all_imports() -> list[Use]:
    names = modules()
    return [use for name, path in names.items() for use in imported(name, path.read_text(encoding="utf-8"), names)]


def check_order(uses: list[Use]) -> None:
    graph: dict[str, set[str]] = {}
    for use in uses:
        graph.setdefault(use.module, set()).add(use.used)
    graphlib.TopologicalSorter(graph).prepare()


def room_of(module: str) -> str | None:
    names = [room for room in ROOMS if module == room or (room and module.startswith(f"{room}."))]
    return max(names, key=len, default=None)


def rule_against(use: Use) -> str | None:
    """Return the rule that an import breaks, or None."""
    own, used_room = room_of(use.module), room_of(use.used)
    for module, room in ((use.module, own), (use.used, used_room)):
        if room is None:
            return f"{module} is in no room: say in ROOMS and in docs/architecture.md what it may import"
    if used_room == own or used_room in ROOMS[own or ""]:
        return None
    return f"{own or PACKAGE.name} may not import {used_room or PACKAGE.name}, only {sorted(ROOMS[own or ''])}"


def complaints(uses: list[Use], exceptions: Collection[tuple[str, str]]) -> list[str]:
    """Return the violations, in words: forbidden imports, and unneeded exceptions."""
    forbidden = [(use, rule) for use in uses if (rule := rule_against(use)) is not None]
    edges = {(use.module, use.used) for use, _ in forbidden}
    wrong = [f"{use}\n    {rule}" for use, rule in forbidden if (use.module, use.used) not in exceptions]
    return wrong + [
        f"{module} does not import {used}: drop it from EXCEPTIONS"
        for module, used in exceptions
        if (module, used) not in edges
    ]


def test_no_module_imports_itself_by_whatever_way_round():
    uses = all_imports()
    assert len({use.module for use in uses}) > 150
    check_order(uses)


def test_a_circle_would_be_seen():
    source = "def f():\n    from torch_outboard.compile import register\n    import os, torch_outboard.driver"
    assert list(imported("amp", source, modules())) == [Use("amp", 2, "compile.register"), Use("amp", 3, "driver")]
    assert not list(imported("amp", "from torch_outboard import _C\nfrom os import path", modules()))
    hidden = "sys.modules.get('torch_outboard.driver')\nimportlib.import_module('torch_outboard.device')"
    assert list(imported("amp", hidden, modules())) == [Use("amp", 1, "driver"), Use("amp", 2, "device")]
    with pytest.raises(graphlib.CycleError):
        check_order([Use("a", 1, "b"), Use("b", 1, "c"), Use("c", 1, "a")])


def test_each_room_imports_those_that_it_may_alone():
    wrong = complaints(all_imports(), EXCEPTIONS)
    assert not wrong, "\n".join(wrong)


def test_each_room_has_modules_and_each_module_a_room():
    rooms = {room_of(module) for module in modules()}
    assert rooms == set(ROOMS)


def test_the_rooms_are_in_layers():
    below: set[str] = set()
    for room, may_import in ROOMS.items():
        assert below.issuperset(may_import), f"{room} may import what is not below it: {set(may_import) - below}"
        below.add(room)


def test_exceptions_are_exact():
    upward = Use("driver", 7, "compile.fx.wrapper")
    edge = (upward.module, upward.used)
    [words] = complaints([upward], [])
    assert words.startswith("torch_outboard/driver.py:7: driver imports compile.fx.wrapper\n    driver may not import")
    assert complaints([upward], [edge]) == []
    assert "drop it" in complaints([], [edge])[0]


def test_an_import_that_points_upward_would_be_seen():
    assert rule_against(Use("driver", 1, "_errors")) is None
    assert rule_against(Use("compile.fx.wrapper", 1, "compile.fx.kernel")) is None
    assert "compile.fx may not import compile.cpp" in str(rule_against(Use("compile.fx.kernel", 1, "compile.cpp")))
    assert "codegen may not import kernels" in str(rule_against(Use("codegen.scheduling", 1, "kernels.builder")))
    assert "codegen may not import compile.fx" in str(rule_against(Use("codegen.scheduling", 1, "compile.fx.kernel")))
    assert "device may not import torch_outboard" in str(rule_against(Use("device.memory", 1, "")))
    assert "attic is in no room" in str(rule_against(Use("attic", 1, "driver")))
    assert "attic is in no room" in str(rule_against(Use("driver", 1, "attic")))
