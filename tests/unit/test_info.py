# SPDX-License-Identifier: BSD-3-Clause
"""`outboard info`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from torch_outboard import _compat
from torch_outboard._compat.patches import PATCHES
from torch_outboard.driver import OPTIONAL_ENTRIES, WITHOUT

RUN = """
import sys
from torch_outboard.cli import main
main(sys.argv[1:], prog_name="outboard")
"""

# A command's answer to programs, then that to people, in one process.
BOTH = """
import sys
from torch_outboard.cli import main
main([*sys.argv[1:], "--json"], prog_name="outboard", standalone_mode=False)
print("TEXT")
main(sys.argv[1:], prog_name="outboard", standalone_mode=False)
"""


def both(run_python, *arguments, code="", columns="200"):
    """Return a command's output for programs, and for people."""
    report, text = run_python(code + BOTH, "info", *arguments, env={"COLUMNS": columns}).stdout.split("TEXT\n")
    return json.loads(report), text


def test_it_lists_versions_and_drivers(run_python):
    report, text = both(run_python)
    assert report["extension"]["error"] is None
    assert report["drivers"] and all(driver["error"] is None for driver in report["drivers"])
    assert report["attached"] is None
    assert f"torch-outboard {report['outboard']}, torch {report['torch']}" in text
    assert all(driver["name"] in text for driver in report["drivers"])


def test_it_shows_devices_and_entries(run_python):
    report, text = both(run_python, "--driver", "unit.toys:Toy", "-o", "devices=3")
    report = report["attached"]
    assert [device["name"] for device in report["devices"]] == ["Toy 0", "Toy 1", "Toy 2"]
    assert report["entries"]["device_open"] and not report["entries"]["host_address"]
    assert "Toy 2" in text and "1.00 GiB" in text and WITHOUT["host_address"] in text


def test_it_lists_the_kernels(run_python):
    code = "import unit.toys as toys; toys.Toy.kernels = {'aten::mm': print, 'aten::add.out': print}\n"
    report, text = both(run_python, "--driver", "unit.toys:Toy", code=code)
    assert report["attached"]["kernels"] == ["aten::add.out", "aten::mm"]
    assert "2: aten::add.out, aten::mm" in text


def test_it_tells_where_operators_run(run_python):
    report, text = both(run_python, "--driver", "sim")
    [operators] = {json.dumps(device["operators"]) for device in report["attached"]["devices"]}
    assert json.loads(operators)["generator"] is None
    assert "eager: all by the CPU's kernels, in the device's memory" in text and "torch.compile: cpp" in text
    assert "Next: outboard test sim" in text


def test_it_names_the_generator_of_kernels(run_python):
    code = "import os; os.environ['OUTBOARD_PROVIDERS'] = 'native,generated'\n"
    report, text = both(run_python, "--driver", "tests.simt_drivers:DiscreteOpenCL", code=code)
    dialect = report["attached"]["devices"][0]["operators"]["generator"]
    assert f"eager: by kernels generated in {dialect}" in text
    assert "on copies, which OUTBOARD_FALLBACK=error refuses" in text


def test_a_driver_is_found_by_the_name_of_its_devices(run_python):
    report, text = both(run_python)
    names = {driver["name"]: driver["device"] for driver in report["drivers"]}
    assert names["opencl"] == "ocl" and names["sim"] == "sim"
    run_python("from torch_outboard._discovery import find_driver; assert find_driver('ocl') is find_driver('opencl')")


WRONG_META_KERNEL = """
import torch, torch_outboard
torch_outboard.attach("sim")
library = torch.library.Library("info_test", "DEF")
library.define("liar(Tensor x) -> Tensor")
library.impl("liar", lambda x: x.double().repeat(2), "CPU")
library.impl("liar", torch.empty_like, "Meta")
for _ in range(3):
    torch.ops.info_test.liar(torch.ones(3, device="sim"))
"""


def test_it_lists_the_operators_that_wait_for_their_shapes(run_python):
    report, text = both(run_python, code=WRONG_META_KERNEL, columns="80")
    [row] = report["attached"]["waiting"]
    assert row["operator"] == "info_test::liar" and row["waits"] == 2
    assert "Float [3]" in row["difference"] and "Double [6]" in row["difference"]
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:2] == ["info_test::liar", "2"] for line in lines)
    assert json.loads(run_python(RUN, "info", "--driver", "sim", "--json").stdout)["attached"]["waiting"] == []


def test_it_reads_well_in_80_columns(run_python):
    answer = run_python(RUN, "info", "--driver", "unit.toys:Toy", env={"COLUMNS": "80"})
    lines = answer.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    # No name is broken, and entries that are missing together are reported once.
    words = {word.strip(",.") for line in lines for word in line.split()}
    assert set(OPTIONAL_ENTRIES) | {"Toy"} <= words
    assert sum("no expandable segments" in line for line in lines) == 1


def test_it_lists_what_is_changed_of_torch(run_python):
    rows, text = both(run_python, "--patches", columns="40")  # names and URLs are whole at any width
    keys = ("target", "purpose", "upstream", "ends_when")
    assert all(row[key] in text and row[key] for row in rows for key in keys)
    assert any(row["is_needed"] for row in rows)


def test_every_patch_is_listed():
    """Each function of _compat that asks torch whether a patch is needed stands for one patch."""
    folder = Path(_compat.__file__).parent
    questions = {
        name for path in folder.glob("*.py") for name in re.findall(r"^def (needs_\w+)", path.read_text(), re.MULTILINE)
    }
    named = {patch.question.partition(".")[2] for patch in PATCHES if patch.question is not None}
    assert named == questions


def test_it_says_why_a_driver_is_not_usable(run_python):
    answer = run_python(RUN, "info", "--driver", "nothing", env={"COLUMNS": "300"}, status=1)
    assert "no driver is called 'nothing'" in answer.stdout
    answer = run_python(RUN, "info", "--driver", "unit.toys:Toy", "-o", "devices=0", status=1)
    assert "Driver unit.toys:Toy: no device: the driver reports none" in answer.stdout
    answer = run_python(RUN, "info", "-o", "devices", status=2)
    assert "write KEY=VALUE" in answer.stderr


def test_it_shows_what_the_variable_attached(run_python):
    answer = run_python(RUN, "info", "--json", env={"OUTBOARD_DRIVER": "unit.toys:Toy"})
    assert json.loads(answer.stdout)["attached"]["name"] == "toy"


def test_it_works_when_the_extension_does_not_load(run_python):
    broken = """
import torch_outboard._build as build
build.build_info = lambda: build.BuildInfo(torch="2.0.1", python="3.11")
"""
    answer = run_python(broken + RUN, "info", env={"COLUMNS": "300"})
    assert "The extension does not load: torch-outboard was built for torch 2.0.1, but torch" in answer.stdout
    missing = "import sys; sys.modules['torch_outboard._C'] = None\n"
    report = json.loads(run_python(missing + RUN, "info", "--json").stdout)
    assert "torch_outboard._C" in report["extension"]["error"]
