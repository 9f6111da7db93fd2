# SPDX-License-Identifier: BSD-3-Clause
"""The pages of docs/maintaining.md, walked: what they tell to change is all that has to be changed, and needed.

Each walk adds something made up in a copy of the sources. The changes are in files that the page names. With all of
them the project's own checks pass in the copy; without any one of them some check fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from torch_outboard._properties import DTYPES
from torch_outboard._settings import PROVIDERS

from .contract import ROOT, table_entries
from .places import Change, copy_sources, listing, named_files, section

PAGE = (ROOT / "docs" / "maintaining.md").read_text(encoding="utf-8")
SCRIPTS = ROOT / "scripts"
_SCHEDULES = "torch_outboard/kernels/templates/schedules"
_CODEGEN = "torch_outboard/codegen"


class Walk(NamedTuple):
    """What a page's steps change, and Python code that checks the result, in a copy, with `check(function)`."""

    title: str
    changes: tuple[Change, ...]
    checks: str


ENTRY = Walk(
    "Add an entry to the contract",
    (
        Change(
            "include/torch_outboard/driver.h",
            "} ob_driver;",
            "  ob_status (*event_made_up)(void* self, int32_t device);\n",
        ),
        Change(
            "torch_outboard/driver.py",
            '    @_optional("no timing, unless event_timestamp exists")\n    def event_elapsed(',
            '    @_optional("nothing is lost")\n    def event_made_up(self) -> None:\n        """Do."""\n\n',
        ),
        Change("drivers/null/null.c", "      .event_signal =", "      .event_made_up = event_made_up,\n"),
    ),
    """
from unit import contract, test_driver

def it_is_last():
    assert contract.table_entries()[1][-1] == "event_made_up"

check(it_is_last)
check(test_driver.test_the_entries_are_those_of_the_header)
check(test_driver.test_every_entry_is_documented)
check(test_driver.test_the_skeleton_has_every_entry)
""",
)

DTYPE = Walk(
    "Add a dtype",
    (
        Change("include/torch_outboard/driver.h", "  OB_UINT16 = 27", "  OB_FLOAT8_E8M0FNU = 44,\n"),
        Change("torch_outboard/_properties.py", "    torch.uint16: 27", "    torch.float8_e8m0fnu: 44,\n"),
        Change(
            "csrc/torch/guard.cpp",
            "static_assert(OB_UINT16 ",
            "static_assert(OB_FLOAT8_E8M0FNU == static_cast<int>(c10::ScalarType::Float8_e8m0fnu));\n",
        ),
        Change(
            "csrc/kernels/dtypes.cpp", '      {"float32"', '      {"float8_e8m0fnu", ScalarType::Float8_e8m0fnu},\n'
        ),
        Change(
            f"{_CODEGEN}/dialects/dialect.py",
            '    torch.float8_e5m2: "e5m2",',
            '    torch.float8_e8m0fnu: "e8m0fnu",\n',
        ),
        Change(f"{_CODEGEN}/prelude/float8.h", "//   2, 15, 0x7b", "//   0, 127, 0x7f, 0x80, 0x80, 0, 0, e8m0fnu;\n"),
    ),
    """
import torch
from torch_outboard._properties import dtype_bits
from torch_outboard.codegen.dialects import find_dialect
from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, SUFFIXES
from unit import test_driver

def kernels_have_it():
    dialect = find_dialect("opencl_c")
    assert dtype_bits([torch.float8_e8m0fnu]) == 1 << 44 and dialect.supports(torch.float8_e8m0fnu)
    assert COMPUTE_TYPES[torch.float8_e8m0fnu] == "float"
    suffix = SUFFIXES[torch.float8_e8m0fnu]
    kernel = f"out[i] = ob_to_{suffix}(ob_from_{suffix}(x[i]));"
    assert f"OB_DEVICE float ob_from_{suffix}(" in dialect.source(kernel)

check(kernels_have_it)
check(test_driver.test_properties_and_dtypes_are_those_of_the_header)
check(test_driver.test_dtypes_are_those_of_torch_and_have_names_in_plans)
""",
)

SCHEDULE = Walk(
    "Add a schedule",
    (
        Change(f"{_SCHEDULES}/units.py", "", "def multiply(call, product):\n    call.schedule('units')\n"),
        Change(
            f"{_SCHEDULES}/__init__.py",
            'ATTENTION.register("tiles"',
            "from torch_outboard.kernels.templates.schedules import units\n"
            "PRODUCTS.register('units', units, _has_groups, ['product'])\n",
        ),
        Change(
            "torch_outboard/kernels/tune/schedules.py",
            '        (("attention", "attention_gradients"), "strips"',
            '        (("product",), "units", {"steps": (32, 16)}),\n',
        ),
    ),
    """
import torch
from torch_outboard.codegen.dialects import find_dialect
from torch_outboard.kernels.templates.schedules.registry import PRODUCTS, Device, way_of
from torch_outboard.kernels.tune.schedules import default_of
from unit import test_schedules

def it_is_taken():
    device = Device(find_dialect("opencl_c"), False, torch.bfloat16)
    assert way_of("product", device) == "units" and way_of("convolution", device) == "tiles"
    assert default_of("product.units bfloat16") == {"steps": 32}

check(it_is_taken)
check(test_schedules.test_each_way_has_the_parameters_that_are_tuned)
""",
)

LANGUAGE = Walk(
    "Add a language (a dialect)",
    (
        Change(
            f"{_CODEGEN}/dialects/made_up.py",
            "",
            "from dataclasses import replace\n\n"
            "from torch_outboard.codegen.dialects.opencl_c import OPENCL_C\n\n"
            'MADE_UP = replace(OPENCL_C, name="made_up")\n',
        ),
        Change(
            f"{_CODEGEN}/dialects/__init__.py",
            "\n\ndef add_dialect",
            "\nfrom torch_outboard.codegen.dialects.made_up import MADE_UP\n_dialects[MADE_UP.name] = MADE_UP\n",
        ),
        Change(
            "torch_outboard/compile/simt/generator.py",
            "class CudaGenerator(",
            "from torch_outboard.codegen.dialects.made_up import MADE_UP\n\n\n"
            "class MadeUpGenerator(SimtGenerator):\n    dialect = MADE_UP\n\n\n",
        ),
        Change(
            "torch_outboard/compile/generators.py",
            '    "opencl_c": partial(',
            '    "made_up": lambda: import_module("torch_outboard.compile.simt.generator").MadeUpGenerator,\n',
        ),
        Change("torch_outboard/compile/generators.py", "from collections.abc", "from importlib import import_module\n"),
        Change("torch_outboard/testing/programs.py", '    "cuda": """', '    "made_up": "sums",\n'),
    ),
    """
from torch_outboard import Driver
from torch_outboard.codegen.dialects import find_dialect
from torch_outboard.compile.generators import Generators
from torch_outboard.testing.programs import programs_of

class Chip(Driver):
    name = "chip"
    kernel_generator = "made_up"

def a_driver_names_it():
    dialect = Generators(Chip()).eager().dialect
    assert dialect is find_dialect("made_up")

def its_programs_are_tested():
    programs = programs_of(Chip())
    assert programs.language == "made_up" and programs.sums == "sums"

check(a_driver_names_it)
check(its_programs_are_tested)
""",
)

WALKS = (ENTRY, DTYPE, SCHEDULE, LANGUAGE)

# Each copy is checked in a forked process, before which torch was
# imported once. This package was not.
RUN = """
import json, os, sys, traceback
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch, pytest
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

def failures(folder, checks):
    # An editable install has its own finder, or a line in the path.
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
    sys.path[:0] = [folder, folder + "/tests"]
    found = []

    def check(function):
        try:
            function()
        except Exception as error:
            found.append(f"{function.__name__}: {type(error).__name__}: {error}"[:300])

    try:
        exec(checks, {"check": check, "__name__": "checks"})
        import torch_outboard
        assert torch_outboard.__file__.startswith(folder), torch_outboard.__file__
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}"[:300])
    return found

assert not [name for name in sys.modules if name.startswith("torch_outboard")]
for folder, checks in json.loads(sys.stdin.read()).items():
    child = os.fork()
    if child == 0:
        print(json.dumps([folder, failures(folder, checks)]), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def failures(checks: dict[str, str]) -> dict[str, list[str]]:
    """Run checks in copies, and return the failures of each copy."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOARD_", "PYTHON"))}
    command = [sys.executable, "-B", "-W", "ignore", "-P", "-c", RUN]  # -B: the compiled files are links
    answer = subprocess.run(command, input=json.dumps(checks), env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return dict(json.loads(line) for line in answer.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.title)
def test_all_changes_are_enough_and_each_is_needed(walk, tmp_path):
    copies = {"nothing": walk.changes}
    files = {change.file for change in walk.changes}
    copies |= {file: tuple(change for change in walk.changes if change.file != file) for file in files}
    checks = {}
    for number, changes in enumerate(copies.values()):
        copy_sources(tmp_path / str(number), changes)
        checks[str(tmp_path / str(number))] = walk.checks
    failures_of = dict(zip(copies, failures(checks).values(), strict=True))
    assert failures_of.pop("nothing") == []
    unneeded = [left_out for left_out, failed in failures_of.items() if not failed]
    assert unneeded == [], "no check fails without these"


def lacking(page: str, walk: Walk) -> list[str]:
    """Return the changed files that the page's steps do not name. A new file stands in the folder of a named one."""
    named = named_files(section(page, walk.title)).files
    folders = {file.rpartition("/")[0] for file in named}
    return [
        change.file
        for change in walk.changes
        if change.file not in named and not (not change.before and change.file.rpartition("/")[0] in folders)
    ]


# The page says "if sim has it": where its table is filled is the driver's own business.
_OWN = ["drivers/sim/entries_event.cpp"]


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.title)
def test_the_page_names_every_changed_file(walk):
    missing = [file for file in lacking(PAGE, walk) if file not in _OWN]
    assert missing == [], f"docs/maintaining.md, {walk.title!r}, lacks: {', '.join(missing)}"


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.title)
def test_a_file_that_the_page_leaves_out_would_be_seen(walk):
    for change in walk.changes:
        name = change.file.rpartition("/")[2]
        if change.before and change.file not in _OWN:
            shorter = PAGE.replace(f"/{name}`", "/elsewhere`").replace(f"`{name}`", "`elsewhere`")
            assert change.file in lacking(shorter, walk)


def entry_words(name: str) -> list[str]:
    return [name]


def provider_words(name: str) -> list[str]:
    return [f'"{name}"']


def dtype_words(name: str) -> list[str]:
    return [name, f"OB_{name.upper()}", f'"{name}"']


ENTRIES = {name for names in table_entries() for name in names}
DTYPE_NAMES = {str(dtype).removeprefix("torch.") for dtype in DTYPES}
LISTS = (
    ("Add an entry to the contract", ENTRIES, 0.75, entry_words),
    ("Add a dtype", DTYPE_NAMES, 0.9, dtype_words),
    ("Add a provider", set(PROVIDERS), 1.0, provider_words),
)
# They have all of these names and list none: what they say holds for further ones too.
_NO_LISTS = {"tests/unit/test_maintaining.py"}


def unnamed_lists(page, title, names, share, spelled):
    files = {file for file in listing(ROOT, names, share, spelled) if not file.startswith("tests/unit/test_")}
    assert len(files) >= 3
    return sorted(files - _NO_LISTS - named_files(section(page, title)).files)


@pytest.mark.parametrize("title, names, share, spelled", LISTS, ids=lambda arg: arg if isinstance(arg, str) else "")
def test_the_page_names_every_list(title, names, share, spelled):
    """Whatever lists entries, dtypes or providers needs the new one: another such file is to be on the page."""
    missing = unnamed_lists(PAGE, title, names, share, spelled)
    assert missing == [], f"docs/maintaining.md, {title!r}, lacks: {', '.join(missing)}"


@pytest.mark.parametrize("title, names, share, spelled", LISTS, ids=lambda arg: arg if isinstance(arg, str) else "")
def test_a_list_that_the_page_leaves_out_would_be_seen(title, names, share, spelled):
    lists = listing(ROOT, names, share, spelled)
    steps = section(PAGE, title)
    assert set(unnamed_lists(PAGE.replace(steps, ""), title, names, share, spelled)) >= {
        file for file in lists if file in named_files(steps).files
    }


def checklist(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "torch_checklist"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_checklist_of_another_torch():
    answer = checklist()
    assert answer.returncode == 0, answer.stderr
    for file in ("torch_outboard/_build.py", "pyproject.toml", "README.md", "csrc/torch/guard.cpp"):
        assert f"  [ ] {file}:" in answer.stdout
    versions = answer.stdout.partition("\n\n")[0]
    for place in (
        ".github/workflows/release.yml",
        "Makefile:",
        "README.md",
        "docs/vendor-questions.md",
        "csrc/distributed/backend.h",
        "tests/README.md",
        "scripts/wheel",
    ):
        assert f"  [ ] {place}" in versions
    for other in ("egg-info", "chip.minor", "ncclConfig"):  # a built file, a processor's number, NCCL's version
        assert other not in answer.stdout
    patches = {line.split(" def ")[1].split("(")[0] for line in answer.stdout.splitlines() if " def needs_" in line}
    from torch_outboard._compat.patches import PATCHES

    assert {patch.question.partition(".")[2] for patch in PATCHES if patch.question} <= patches


def test_a_new_condition_is_on_the_checklist(tmp_path):
    (tmp_path / "one.cpp").write_text("#if OUTBOARD_TORCH_MINOR >= 16\n#endif\n")
    (tmp_path / "two.py").write_text(
        "import torch\nif torch.__version__ >= (2, 16):\n    pass\nprint(torch.__version__)\n"
    )
    answer = checklist(str(tmp_path))
    assert "Conditions in C++ (1)\n  [ ] one.cpp:1: #if" in answer.stdout
    assert "Conditions in Python (1)\n  [ ] two.py:2: if torch" in answer.stdout
    assert answer.returncode == 1 and "nothing was found" in answer.stderr
    assert "The range of versions" in answer.stderr and "Conditions" not in answer.stderr
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "two.py"], check=True)
    answer = checklist(str(tmp_path))
    assert "one.cpp" not in answer.stdout and "  [ ] two.py:2: if torch" in answer.stdout
