# SPDX-License-Identifier: BSD-3-Clause
"""The graph compiler of docs/vendor-questions.md works as printed there, in a package with its entry point."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torch_outboard.testing.plugin import RunPython

from .contract import ROOT

PAGE = ROOT / "docs" / "vendor-questions.md"

DRIVER = """
from torch_outboard.drivers.sim import SimDriver

class MyChipDriver(SimDriver):
    name = "mychip"
"""

USE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import torch_outboard
torch_outboard.attach("torch_mychip:MyChipDriver")
import torch_mychip.graph_compiler as compiler
ran = []
forward = compiler.Program.forward
def watched(self, *tensors):
    ran.extend(str(instruction) for instruction, *_ in self.code)
    return forward(self, *tensors)
compiler.Program.forward = watched
torch.manual_seed(0)
USAGE
assert {"aten.tanh.default", "aten.mul.Tensor"} <= {*ran}, ran  # of the forward and of the backward graph
gradients = [parameter.grad for parameter in model.parameters()]
model.zero_grad()
model(inputs).relu().sum().backward()
for ours, parameter in zip(gradients, model.parameters(), strict=True):
    torch.testing.assert_close(ours, parameter.grad)
assert "mychip" in torch._dynamo.list_backends()

def several(x, y):  # results of several parts, numbers, an argument that is a result
    a = torch.relu(x + 2.5)
    return a, torch.sort(a)[0] * y, x
found, wanted = torch.compile(several, backend="mychip")(inputs, inputs), several(inputs, inputs)
torch.testing.assert_close(found, wanted)
torch.testing.assert_close(torch.compile(several, backend="mychip", dynamic=True)(inputs[:3], inputs[:3]),
                           several(inputs[:3], inputs[:3]))
"""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a vendor's package, laid out as if pip had installed it."""
    compiler, _ = blocks("python")
    inner, about = tmp_path / "torch_mychip", tmp_path / "torch_mychip-0.1.dist-info"
    inner.mkdir()
    about.mkdir()
    (inner / "__init__.py").write_text(DRIVER)
    (inner / "graph_compiler.py").write_text(compiler)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-mychip\nVersion: 0.1\n")
    (entry,) = re.findall(r'^\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"$', blocks("toml")[0], re.MULTILINE)
    (about / "entry_points.txt").write_text("[{}]\n{} = {}\n".format(*entry))
    return tmp_path


def test_the_graph_compiler_runs_from_its_entry_point(run_python: RunPython, package: Path) -> None:
    _, usage = blocks("python")
    usage = usage.replace('attach("mychip")', 'attach("torch_mychip:MyChipDriver")')
    run_python(USE.replace("USAGE", usage), str(package))


def test_the_graph_compiler_is_short() -> None:
    assert len(blocks("python")[0].splitlines()) <= 60
