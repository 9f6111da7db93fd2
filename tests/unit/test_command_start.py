# SPDX-License-Identifier: BSD-3-Clause
"""The command `outboard` starts without torch, and the package is complete without the command."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterator

import click
import pytest

import torch_outboard
from torch_outboard.cli import main
from torch_outboard.testing.plugin import RunPython


@pytest.fixture
def run_python(run_python: RunPython) -> RunPython:
    """Return a `run_python` whose processes have not imported torch."""
    return functools.partial(run_python, fresh=True)


# torch's __init__ imports submodules of torch before it calls anything.
COMMAND = """
import importlib.abc, sys

class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torch."):
            raise AssertionError("torch is imported")

sys.meta_path.insert(0, NoTorch())
sys.argv[0] = "outboard"
import torch_outboard_command
torch_outboard_command.main()
"""

WITH_TORCH = COMMAND.replace("sys.meta_path.insert(0, NoTorch())", "")


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that call this command and each command below it."""
    yield path
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, (*path, name))


COMMANDS = list(commands(main))


def test_there_are_commands_in_groups():
    assert {(), ("info",), ("kernels", "tune")} <= set(COMMANDS)


@pytest.mark.database
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_does_not_import_torch(run_python, words):
    answer = run_python(COMMAND, *words, "--help")
    assert answer.stdout.startswith(f"Usage: {' '.join(('outboard', *words))} ")


@pytest.mark.database
@pytest.mark.parametrize(
    "words",
    [
        ("nothing",),
        ("info", "--nothing"),
        ("info", "--option", "devices"),
        ("kernels", "nothing"),
        ("kernels", "check"),
        ("kernels", "tune", "--driver", "sim", "--rounds", "0"),
        ("memory",),
        ("new",),
        ("new", "mychip", "--template", "nothing"),
        ("new", "mychip", "--template", "triton", "--kernels"),
        ("test",),
        ("test", "-x"),
        ("compile-report", "nowhere.py"),
    ],
    ids=" ".join,
)
def test_wrong_arguments_do_not_import_torch(run_python, words):
    answer = run_python(COMMAND, *words, status=2)
    assert "Usage: outboard" in answer.stderr and "Error: " in answer.stderr


def test_the_version_does_not_import_torch(run_python):
    assert torch_outboard.__version__ in run_python(COMMAND, "--version").stdout


def test_an_import_of_torch_would_be_seen(run_python):
    answer = run_python(COMMAND, "info", "--patches", status=1)
    assert "torch is imported" in answer.stderr


# Whether a vendor's entry point attaches a driver is known only after torch was imported.
OWN_ENTRY_POINT_ALONE = """
import torch_outboard_command
import torch_outboard._discovery as discovery
assert not discovery.attaches_itself(), "another package of this environment attaches a driver"
"""


def test_info_without_a_driver_does_not_import_torch(run_python):
    output = run_python(OWN_ENTRY_POINT_ALONE + COMMAND, "info", "--json").stdout
    with_torch = run_python("import torch\n" + WITH_TORCH, "info", "--json")
    assert json.loads(output) == json.loads(with_torch.stdout)
    assert json.loads(output)["extension"]["error"] is None


def test_info_looks_at_the_extension_without_torch(run_python):
    built = """
import torch_outboard_command, torch_outboard._build as build
build.build_info = lambda: build.BuildInfo(torch="2.0.1", python="3.11")
"""
    report = json.loads(run_python(built + COMMAND, "info", "--json").stdout)
    assert "was built for torch 2.0.1, but torch" in report["extension"]["error"]
    missing = "import sys; sys.modules['torch_outboard._C'] = None\n"
    report = json.loads(run_python(missing + COMMAND, "info", "--json").stdout)
    assert "torch_outboard._C is missing from the package" in report["extension"]["error"]
    assert "Rebuild it: " in report["extension"]["error"]


def test_info_shows_what_attaches_itself(run_python):
    answer = run_python(WITH_TORCH, "info", "--json", env={"OUTBOARD_DRIVER": "unit.toys:Toy"})
    assert json.loads(answer.stdout)["attached"]["name"] == "toy"


def test_the_public_names_have_modules():
    found = {*torch_outboard._MODULE_OF, *torch_outboard._LAZY_MODULES, "__version__", "amp"}
    assert found == set(torch_outboard.__all__)
    for name, module_name in torch_outboard._MODULE_OF.items():
        module = importlib.import_module(f"torch_outboard.{module_name}")
        assert name in module.__all__ and getattr(torch_outboard, name) is getattr(module, name)
    assert set(torch_outboard.__all__) <= set(dir(torch_outboard))


FIRST = """
import sys, torch_outboard_command, torch_outboard
assert "torch" not in sys.modules
assert not hasattr(torch_outboard, "nothing") and "torch" not in sys.modules
{first}
import torch
assert torch_outboard.attached_driver() is None and torch_outboard.driver.Driver is torch_outboard.Driver
torch_outboard.attach("sim")
assert torch.ones(2, device="sim").sum().item() == 2
"""


@pytest.mark.parametrize(
    "first",
    [
        "from torch_outboard import _C; assert not _C.any_device_opened()",
        "from torch_outboard import *; assert attach is torch_outboard.attach",
        "from torch_outboard import Driver; assert 'torch' not in sys.modules",
        "torch_outboard.amp",
    ],
)
def test_a_driver_may_import_the_package_before_the_command_imports_torch(run_python, first):
    run_python(FIRST.format(first=first))


def test_the_package_imports_torch_without_the_command(run_python):
    run_python("""
import sys, torch_outboard
assert "torch" in sys.modules and {*torch_outboard.__all__} - {*torch_outboard._LAZY_MODULES} <= {*vars(torch_outboard)}
""")


@pytest.mark.parametrize(
    "words",
    [("kernels", "list"), ("new", "mychip", "--folder", "{tmp}/a"), ("info", "--driver", "sim"), ("info", "--patches")],
    ids=" ".join,
)
def test_commands_bear_a_driver_that_attaches_itself(run_python, tmp_path, words):
    """torch's import attaches the driver, in the middle of the command's imports."""
    words = [word.format(tmp=tmp_path) for word in words]
    environment = {"OUTBOARD_DRIVER": "unit.toys:Toy", "OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path / "kernels")}
    answer = run_python(WITH_TORCH, *words, env=environment)
    assert "Warning" not in answer.stderr
