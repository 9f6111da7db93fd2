# SPDX-License-Identifier: BSD-3-Clause
"""Attaching during `import torch`, which nothing may stop."""

from __future__ import annotations

import functools
import time

import pytest

from torch_outboard.testing.plugin import RunPython

# An entry point of the group torch.backends, as a vendor has it, in front of torch-outboard's own.
VENDOR = """
import importlib.metadata, sys
from importlib.metadata import EntryPoint
genuine = importlib.metadata.entry_points
def entry_points(**selection):
    found = genuine(**selection)
    if selection.get("group") == "torch.backends":
        own = [entry for entry in found if entry.name == "outboard"]
        return [EntryPoint("vendor", "__main__:vendor", "torch.backends"), *own]
    return found
importlib.metadata.entry_points = entry_points
"""


@pytest.fixture
def run_python(run_python: RunPython) -> RunPython:
    """Return a `run_python` with fresh processes, since these tests are about the import of torch itself."""
    return functools.partial(run_python, fresh=True)


def test_unset_it_imports_nothing(run_python):
    answer = run_python(
        "import torch, sys; print(sorted(name for name in sys.modules if name.startswith('torch_outboard')))"
    )
    assert answer.stdout == "['torch_outboard_autoload']\n"
    assert answer.stderr == ""


def test_unset_it_takes_no_time():
    import torch_outboard_autoload

    start = time.thread_time()  # of the processor: other processes take the rest of the clock's
    torch_outboard_autoload.autoload()
    assert time.thread_time() - start < 0.005


def test_it_attaches_what_the_variable_names(run_python):
    answer = run_python(
        "import torch; print(torch.toy.device_count(), torch.device('toy:1'))",
        env={"OUTBOARD_DRIVER": "unit.toys:Toy", "OUTBOARD_TOY_DEVICES": "3"},
    )
    assert answer.stdout == "3 toy:1\n"
    assert answer.stderr == ""


def test_importing_the_package_first_works_too(run_python):
    answer = run_python(
        "import torch_outboard, torch; print(torch_outboard.attached_driver().name, torch.toy.device_count())",
        env={"OUTBOARD_DRIVER": "unit.toys:Toy"},
    )
    assert answer.stdout == "toy 2\n"
    assert answer.stderr == ""


def test_nonsense_warns_once_and_torch_goes_on(run_python):
    answer = run_python(
        "import torch, torch_outboard_autoload; torch_outboard_autoload.autoload(); print(torch.ones(2).sum().item())",
        env={"OUTBOARD_DRIVER": "nonsense"},
    )
    assert answer.stdout == "2.0\n"
    assert (
        answer.stderr.count("OUTBOARD_DRIVER=nonsense failed: RegistrationError: no driver is called 'nonsense'") == 1
    )


def test_where_warnings_are_errors_it_is_reported_on_stderr(run_python):
    answer = run_python(
        "import torch; print(1)", env={"OUTBOARD_DRIVER": "nonsense"}, flags=("-W", "error::UserWarning")
    )
    assert answer.stdout == "1\n"
    assert "Warning: OUTBOARD_DRIVER=nonsense failed" in answer.stderr


def test_an_option_that_is_wrong_is_reported(run_python):
    answer = run_python(
        "import torch; print(1)", env={"OUTBOARD_DRIVER": "unit.toys:Toy", "OUTBOARD_TOY_DEVICES": "many"}
    )
    assert answer.stdout == "1\n"
    assert "OUTBOARD_TOY_DEVICES must be int, not 'many'" in answer.stderr


def test_autoload_can_be_switched_off(run_python):
    answer = run_python(
        "import torch; print(hasattr(torch, 'toy'))",
        env={"OUTBOARD_DRIVER": "unit.toys:Toy", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert answer.stdout == "False\n"


VENDOR_AUTOLOAD = (
    VENDOR
    + """
def vendor():
    import torch_outboard
    torch_outboard.autoload("examples.pure_python_driver:PythonDriver")
import torch, torch_outboard
torch_outboard.autoload("examples.pure_python_driver:PythonDriver")
print(torch_outboard.attached_driver().name)
"""
)


def test_the_first_vendor_wins(run_python):
    answer = run_python(
        VENDOR_AUTOLOAD
        + """
torch_outboard.autoload("unit.toys:Toy")
torch_outboard.autoload("unit.toys:Toy")
print(torch_outboard.attached_driver().name)
"""
    )
    assert answer.stdout == "python\npython\n"
    assert answer.stderr.count("does not load driver 'unit.toys:Toy': 'python' is attached") == 1


def test_a_vendor_is_loaded_where_the_package_is_imported_before_torch(run_python):
    answer = run_python(VENDOR_AUTOLOAD.replace("import torch, torch_outboard\n", "import torch_outboard, torch\n"))
    assert answer.stdout == "python\n"
    assert answer.stderr == ""


def test_the_variable_wins_over_a_vendor(run_python):
    answer = run_python(VENDOR_AUTOLOAD, env={"OUTBOARD_DRIVER": "unit.toys:Toy"})
    assert answer.stdout == "toy\n"
    assert answer.stderr.count("OUTBOARD_DRIVER names 'unit.toys:Toy'") == 1


def test_a_foreign_backend_that_comes_first_leaves_a_warning(run_python):
    answer = run_python(
        VENDOR
        + """
def vendor():
    import torch
    torch.utils.rename_privateuse1_backend("foreign")
import torch
print(torch.ones(2).sum().item())
""",
        env={"OUTBOARD_DRIVER": "unit.toys:Toy"},
    )
    assert answer.stdout == "2.0\n"
    assert answer.stderr.count("another package has taken PyTorch's only free device type, as 'foreign'") == 1


def test_a_group_asks_for_the_device_that_the_variable_names(run_python):
    """Torch 2.14 loads an entry point for a backend that nobody has registered; this calls it as torch does."""
    ask = "import torch, torch_outboard_autoload as own; own.attach_for_backend(); print(torch.toy.device_count())"
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    answer = run_python(ask, env={**off, "OUTBOARD_DRIVER": "unit.toys:Toy"})
    assert answer.stdout == "2\n"
    answer = run_python(ask, env=off, status=1)
    assert 'RegistrationError: the backend "outboard" needs a device: call torch_outboard.attach' in answer.stderr
    answer = run_python(ask, env={**off, "OUTBOARD_DRIVER": "nonsense"}, status=1)
    assert "no driver is called 'nonsense'" in answer.stderr


def test_torch_finds_that_entry_point_by_the_backends_name():
    import tomllib
    from importlib.metadata import EntryPoint

    from .contract import ROOT

    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    [(name, value)] = groups["torch.distributed.backends"].items()
    assert name == "outboard" and callable(EntryPoint(name, value, "torch.distributed.backends").load())
