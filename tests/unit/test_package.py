# SPDX-License-Identifier: BSD-3-Clause
"""The package as a whole: the cost of its import, coverage before a driver, the example's size."""

from __future__ import annotations

import re
import tomllib

import pytest
import torch

import torch_outboard
from torch_outboard import Coverage, CoverageRow
from torch_outboard._discovery import found_drivers

from .contract import ROOT

# What the package is made of before a driver is attached;
# benchmarks/imports.py measures what that costs.
LOADED = {
    *("", "._attach", "._autoload", "._build", "._compat", "._coverage", "._discovery", "._errors", "._extension"),
    *("._direct_calls", "._host_view", "._kernels", "._launch", "._options", "._properties", "._triton", "._version"),
    *("._check", "._device_name", "._exit", "._install", "._settings", "._variables"),
    *(".amp", ".driver", ".kernels"),
}


def test_importing_loads_no_more_than_it_must(run_python):
    answer = run_python(
        "import torch, sys; before = set(sys.modules); import torch_outboard; print(*sorted(set(sys.modules) - before))"
    )
    assert set(answer.stdout.split()) == {f"torch_outboard{name}" for name in LOADED}


FIRST_OPERATORS = """
import sys, torch, torch_outboard
torch_outboard.attach(sys.argv[1])
x = torch.rand(4, 4, device=torch_outboard.attached_driver().name)
y = (x + 1) * 2.5 / x
y = torch.where(y > 0, y.lgamma(), y.softmax(0)).clamp(0, 1).nan_to_num() - x.var()
torch.nn.functional.gelu(x), torch.nn.functional.mse_loss(x, y), torch.nn.functional.hardtanh(x)
p = torch.nn.Parameter(x.clone())
(p * p).sum().backward()
assert torch.isfinite(y).all() and repr(y)
assert "torch._dynamo" not in sys.modules
import torch._dynamo
from torch_outboard._compat.dynamo import _importers
assert not [f for f in _importers() if getattr(f, "__dynamo_disable", None) is f], "Dynamo disables itself there again"
assert torch.equal((x * 2.5).cpu(), x.cpu() * 2.5)
"""


@pytest.mark.parametrize("driver", ["sim", "examples.pure_python_driver:PythonDriver"])
def test_the_first_operators_do_not_import_dynamo(run_python, driver):
    run_python(FIRST_OPERATORS, driver)


PRINTING = """
import sys, torch, torch_outboard
from torch.utils._python_dispatch import TorchDispatchMode
torch_outboard.attach(sys.argv[1])
name = torch_outboard.attached_driver().name

class Calls(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, arguments=(), keywords=None):
        if any(isinstance(a, torch.Tensor) and a.device.type == name for a in arguments):
            seen.append(str(op))
        return op(*arguments, **(keywords or {}))

for host in (torch.randn(3, 4), torch.arange(12).view(3, 4).t(), torch.randn(40, 50), torch.tensor(1.5), torch.ones(0)):
    x = host.to(name)
    torch_outboard.reset_coverage()
    seen = []
    with Calls():
        text = repr(x)
    assert text.split() == (repr(host)[:-1] + f", device='{name}:0')").split(), text
    assert [op for op in seen if "detach" not in op] in (["aten._to_copy.default"], []), seen
    assert len(torch_outboard.coverage()) == 0, torch_outboard.coverage()
p = torch.nn.Parameter(torch.ones(2, device=name))
assert repr(p) == f"Parameter containing:\\ntensor([1., 1.], device='{name}:0', requires_grad=True)"
"""


@pytest.mark.parametrize("driver", ["sim", "null", "examples.pure_python_driver:PythonDriver"])
def test_printing_copies_once_and_counts_nothing(run_python, driver):
    run_python(PRINTING, driver, env={"OUTBOARD_FALLBACK": "silent"})


def test_coverage_is_a_table():
    rows = [CoverageRow("aten::mm", "host", 3), CoverageRow("aten::add.Tensor", "native", 20)]
    coverage = Coverage(rows)
    assert list(coverage) == sorted(rows) and len(coverage) == 2 and coverage[0].op == "aten::add.Tensor"
    assert coverage.calls() == 23 and coverage.calls(provider="host") == 3 and coverage.calls("aten::mm", "native") == 0
    assert coverage.to_dicts()[1] == {"op": "aten::mm", "provider": "host", "calls": 3}
    lines = str(coverage).splitlines()
    assert any(re.search(r"aten::add\.Tensor\s*│ native\s*│\s*20", line) for line in lines)
    assert "2 operators, 23 calls" in lines[-1]
    assert coverage == Coverage(reversed(rows)) and coverage[:1] == Coverage([rows[1]])


def test_coverage_says_why_there_was_no_generated_kernel():
    rows = [CoverageRow("aten::mm", "fallback", 3), CoverageRow("aten::add.Tensor", "generated", 20)]
    coverage = Coverage(rows, [("aten::mm", "it is [odd]. Do this."), ("aten::mm", "so."), ("aten::add.Tensor", "no")])
    assert coverage.reasons == {"aten::mm": ("it is [odd]. Do this.", "so.")}
    assert coverage[1:].reasons == coverage.reasons and coverage[:1].reasons == {}
    assert "it is [odd]. Do this." in str(coverage) and "2 operators, 23 calls" in str(coverage)


def test_coverage_without_a_driver_is_empty():
    assert len(torch_outboard.coverage()) == 0
    torch_outboard.reset_coverage()


def test_the_fallback_modes(run_python):
    run_python(
        """
import os, warnings
import pytest, torch, torch_outboard
from unit.toys import Toy
torch_outboard.attach(Toy)
x = torch.empty(3, device="toy")
with pytest.raises(RuntimeError, match="aten::sinh"):
    x.sinh()
from torch_outboard import _C
_C.set_fallback_mode("warn")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x.cosh(), x.cosh(), x.acosh(), x.tan()
assert len(caught) == 1
text = str(caught[0].message)
assert "aten::cosh" in text and "appears once" in text and "torch_outboard.coverage()" in text
_C.set_fallback_mode("silent")
with warnings.catch_warnings():
    warnings.simplefilter("error")
    x.tan()
assert torch_outboard.coverage().calls(provider="fallback") >= 3
with pytest.raises(ValueError, match="'warn', 'error' or 'silent', not 'loud'"):
    _C.set_fallback_mode("loud")
""",
        env={"OUTBOARD_FALLBACK": "error"},
    )


def test_the_example_is_short():
    lines = (ROOT / "examples" / "pure_python_driver.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120


SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".c", ".jinja", ".html", ".cmake", ".txt"}


def test_only_drivers_know_the_names_of_drivers():
    own = {name: entry for name, entry in found_drivers().items() if entry.target.startswith("torch_outboard.")}
    assert own
    words = set()
    for name, entry in own.items():
        driver = entry.load()
        words |= {name, driver.name, driver.__name__, f"libob_{name}"}
    # Languages of kernels are named after languages, also in what they write: opencl_c,
    # #pragma OPENCL, attributes of Slang ([[vk::…]]), and macros of compilers, which begin with
    # two underscores.
    # "null" is a word of C, and a driver's only in quotes.
    quoted = {word for word in words if word == "null"}
    pattern = re.compile(
        "|".join(
            [rf"(?<![a-z])(?<!#pragma )(?<!\b__){word}(?!_c\b)(?![a-z])(?!::)" for word in sorted(words - quoted)]
            + [rf"[\"'`]{word}[\"'`]" for word in quoted]
        ),
        re.IGNORECASE,
    )
    assert pattern.search('attach("sim")') and pattern.search("OUTBOARD_SIM_DEVICES") and pattern.search('"null"')
    assert not pattern.search("opencl_c simple null")
    files = [
        path
        for folder in ("csrc", "torch_outboard")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES - {".cmake", ".txt"} and not path.is_relative_to(ROOT / "torch_outboard" / "drivers")
    ]
    assert len(files) > 80
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not named, "\n".join(named)


# What a name of a driver elsewhere must not stand in. Documentation tells users of it.
CORE = ("cmake", "csrc", "drivers", "examples", "include", "scripts", "tests", "torch_outboard")


def names_of_distributions() -> set[str]:
    """Return what the packages in distributions/ are called: drivers, classes, modules, distributions, variables."""
    words = set()
    for path in (ROOT / "distributions").glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        words |= {project["name"], project["name"].replace("-", "_")}
        for name, target in project["entry-points"]["torch_outboard.drivers"].items():
            words |= {name, target.partition(":")[2], f"libob_{name}", f"OUTBOARD_{name.upper()}_[A-Z_]+"}
    return words


def test_nothing_in_the_core_names_the_distributions():
    words = names_of_distributions()
    assert {"nv", "torch_outboard_nv"} <= words  # of this file alone
    pattern = re.compile(rf"\b({'|'.join(sorted(words))})\b")
    assert pattern.search('attach("nv")') and pattern.search("OUTBOARD_NV_LIBRARY=x")
    assert not pattern.search("CL_DEVICE_WARP_SIZE_NV cl_nv_device_attribute_query")
    files = [
        path
        for folder in CORE
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in {"", *SUFFIXES} and path.name != "test_package.py"
    ]
    assert len(files) > 700
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in [*files, ROOT / "CMakeLists.txt"]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not named, "\n".join(named)


def test_this_process_has_no_driver():
    assert torch_outboard.attached_driver() is None
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
