# SPDX-License-Identifier: BSD-3-Clause
"""Modules that have moved: their old names, which vendors import, still work for a release."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

from .test_imports import PACKAGE, all_imports, modules, own_name

# Old names of modules and the new ones, without the package's name.
MOVED = {
    f"compile.simt.{old}": f"codegen.{new}"
    for room, names in {
        "": ("chunk_joins", "chunks", "refused", "scheduling"),
        "dialects.": ("cuda_cpp", "dialect", "host_cpp", "opencl_c"),
        "kernel.": ("checking", "checks", "indexing", "kernel", "overrides", "reduction", "search", "values"),
    }.items()
    for old, new in ((name, f"{room}{name}") for name in names)
} | {
    "compile.simt.dialects": "codegen.dialects",
    "compile.simt.columns": "codegen.mapping.columns",
    "compile.simt.groups": "codegen.mapping.group",
    "compile.simt.helpers": "codegen.prelude",
    "compile.simt.mapping": "codegen.mapping.parts",
    "compile.simt.runs": "codegen.mapping.run",
    "compile.simt.runtime": "compile.runtime.simt_kernel",
    "compile.runtime.letters": "codegen.letters",
    "compile.runtime.formula": "codegen.formula",
    **{f"codegen.{name}": f"codegen.dialects.{name}" for name in ("cuda_cpp", "dialect", "host_cpp", "opencl_c")},
}


def test_every_forwarding_module_is_tested():
    forwards = {use.module for use in all_imports() if use.used == "_moved"}
    assert forwards == set(MOVED)


def test_nothing_here_imports_an_old_name():
    assert set(MOVED) <= set(modules())
    assert [str(use) for use in all_imports() if use.used in MOVED] == []


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_name_is_the_module_and_warns_its_importer(old, new):
    old, new = f"{PACKAGE.name}.{old}", f"{PACKAGE.name}.{new}"
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is {new} now") as caught:
        found = importlib.import_module(old)
    assert found is importlib.import_module(new)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert importlib.import_module(old) is found  # once a process


def test_the_warning_names_the_line_of_the_importer():
    sys.modules.pop("torch_outboard.compile.simt.dialect", None)
    with pytest.warns(DeprecationWarning) as caught:
        from torch_outboard.compile.simt.dialect import Dialect
    assert caught[0].filename == __file__
    assert Dialect is importlib.import_module("torch_outboard.codegen.dialects.dialect").Dialect
    assert own_name(Dialect.__module__) == "codegen.dialects.dialect"


def test_the_program_of_a_kernel_is_found_where_it_was():
    from torch_outboard.codegen.program import DeviceProgram
    from torch_outboard.compile.runtime import device_kernel
    from torch_outboard.compile.runtime.device_kernel import DeviceProgram as old

    assert old is DeviceProgram and callable(device_kernel)
