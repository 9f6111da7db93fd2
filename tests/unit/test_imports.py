# SPDX-License-Identifier: BSD-3-Clause
"""Which modules of the package import which: no circles, and the layers of torch_outboard.compile."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import torch_outboard

PACKAGE = Path(torch_outboard.__file__).parent

# What docs/architecture.md says of torch_outboard.compile: who may use whom beside themselves. Generators in other
# languages than C++ are rooms of their own.
_GENERATED = {"runtime", "wrapper", "fx"}
ROOMS: Mapping[str, set[str]] = {
    "generator": set(),
    "own_code": set(),
    "runtime": set(),
    "reporting": set(),
    "capture": set(),
    "wrapper": {"runtime"},
    "fx": {"runtime", "wrapper"},
    "cpp": {"generator", *_GENERATED},
    "simt": {"generator", "cpp", *_GENERATED},
    "triton": {"generator", "cpp", *_GENERATED},
    "generators": {"generator", "cpp", "simt", "triton"},
    "device": {"generator", "generators", "own_code"},
    "register": {"generators", "device", "capture", "triton"},
    "__init__": {"generator", "reporting"},
}


def modules() -> dict[str, Path]:
    """Gives the package's modules by their names; not the templates of projects."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = path
    return found


def imported(source: str, names: Mapping[str, object]) -> Iterator[str]:
    """Yields the modules of `names` that a module imports anywhere in it; of a package's submodule that one alone."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "imports are absolute"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in names:
                    yield submodule
                elif node.module in names and submodule != f"{PACKAGE.name}._C":
                    yield node.module


def imports() -> dict[str, set[str]]:
    names = modules()
    return {name: set(imported(path.read_text(encoding="utf-8"), names)) for name, path in names.items()}


def check_order(graph: Mapping[str, set[str]]) -> None:
    graphlib.TopologicalSorter(graph).prepare()


def test_no_module_imports_itself_by_whatever_way_round():
    graph = imports()
    assert len(graph) > 80
    check_order(graph)


def test_a_circle_would_be_seen():
    source = "def f():\n    from torch_outboard.compile import register\n    import os, torch_outboard.driver"
    found = set(imported(source, modules()))
    assert found == {"torch_outboard.compile.register", "torch_outboard.driver"}
    with pytest.raises(graphlib.CycleError):
        check_order({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def room(module: str) -> str | None:
    """Gives the room of torch_outboard.compile that a module is in; None for one of other packages."""
    package = f"{PACKAGE.name}.compile"
    if module == package:
        return "__init__"
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else None


def test_the_rooms_of_the_compiler_are_in_layers():
    check_order(ROOMS)
    wrong = [
        f"{module} imports {used}"
        for module, uses in imports().items()
        for used in uses
        if (own := room(module)) is not None and (other := room(used)) is not None and other not in {own, *ROOMS[own]}
    ]
    assert not wrong, "\n".join(wrong)


def test_few_know_the_compiler():
    """The rest of the package reaches it through these, and it begins nowhere else."""
    users = {module for module, uses in imports().items() if room(module) is None and any(room(one) for one in uses)}
    # What builds kernels for eager operators lowers graphs as the compiler does.
    users = {module for module in users if not module.startswith("torch_outboard.kernels.")}
    assert users == {
        "torch_outboard._attach",
        "torch_outboard.cli.compile_report",
        "torch_outboard.cli.where",
        "torch_outboard.testing.programs",  # the dialect in which the tests' programs are written
    }
