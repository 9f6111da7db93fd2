# SPDX-License-Identifier: BSD-3-Clause
"""The last lines of `outboard test`, and the programs that it builds in a driver's language."""

from __future__ import annotations

import re

import pytest

from examples.own_device import OwnDeviceDriver
from examples.own_kernels.dialect import DIALECT, LANGUAGE
from examples.pure_python_driver import PythonDriver
from torch_outboard._discovery import find_driver
from torch_outboard.driver import OPTIONAL_ENTRIES
from torch_outboard.testing.conclusion import conclusion
from torch_outboard.testing.programs import TestPrograms, programs_of

from .contract import ROOT

ALL = dict.fromkeys(OPTIONAL_ENTRIES, True)
MAPPING = ("mem_reserve", "mem_release", "mem_map", "mem_unmap")
RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:], prog_name='outboard')"


def lines_for(driver=None, **changes):
    run = {"passed": 3, "failed": [], "skipped": [], "entries": ALL, "reaches_memory": False, "generates": False}
    return conclusion("chip", driver or OwnDeviceDriver(), **{**run, **changes})


def test_what_passed_and_why_the_rest_was_skipped():
    skipped = ["capability: mem_reserve. No map", "needs two devices", "capability: mem_reserve. No map"]
    assert lines_for(skipped=skipped, generates=True)[:3] == [
        "Passed: 3 tests. Failed: 0. Skipped: 3, for:",
        "     2  mem_reserve. No map",
        "     1  needs two devices",
    ]
    assert lines_for()[0] == "Passed: 3 tests. Failed: 0. Skipped: 0."


def test_what_is_missing_and_what_it_costs():
    lines = lines_for(entries=ALL | dict.fromkeys(MAPPING, False), generates=True)
    assert lines[1:3] == [
        "Missing in the driver, and what it costs users:",
        "  mem_reserve, mem_release, mem_map, mem_unmap: no expandable segments",
    ]
    assert len(lines_for()) == 2, "nothing is missing"
    free = ("destroy", "device_close", "graph_launch", "activity_read", "event_elapsed")
    assert len(lines_for(entries=ALL | dict.fromkeys(free, False))) == 2, "the core does without"
    lines = lines_for(entries=ALL | dict.fromkeys(("event_elapsed", "event_timestamp"), False))
    assert "  event_timestamp: no timestamps" in lines
    copies = ALL | dict.fromkeys(("host_address", "host_callback", "copy_nd_async"), False)
    assert "  host_address, host_callback: operators without a generated kernel run on copies on the CPU" in "\n".join(
        lines_for(entries=copies, generates=True)
    )
    assert "operators go through copies" in "\n".join(lines_for(entries=copies))


def test_what_to_do_next():
    assert lines_for(failed=["tests/driver/test_streams.py::test_order[1]"])[-1] == (
        "Next: fix the first failure: outboard test chip test_streams.py::test_order -x"
    )
    assert lines_for(generates=True)[-1].endswith("outboard kernels check --driver chip")
    assert "operators run on copies. Generate kernels" in lines_for(PythonDriver())[-1]
    assert lines_for(PythonDriver(), reaches_memory=True)[-1].endswith("outboard test chip --operators")


def test_they_are_the_last_lines(run_python):
    answer = run_python(RUN, "test", "null", "-q", "test_streams.py", "-k", "timing or streams_of_the_pool")
    *_, of_pytest, passed, last = answer.stdout.splitlines()
    assert " passed, " in of_pytest and re.fullmatch(r"Passed: [1-9]\d* tests\. Failed: 0\. Skipped: 0\.", passed)
    assert last.startswith("Next: operators run on copies")


def test_programs_are_written_in_the_dialect_of_the_generator():
    written = programs_of(OwnDeviceDriver())
    assert written is not None and written.language == LANGUAGE and written.options == DIALECT.options
    assert written.scale.count("kernel void scale(in_memory") or "kernel void scale(OB_GLOBAL" in written.scale
    assert "unknown * x" in written.refused and "a * x" not in written.refused
    assert written.sums == "" and "x299" in written.many(300)
    opencl = programs_of(find_driver("opencl")())
    assert opencl is not None and opencl.sums_by_argument and "__kernel void sums" in opencl.sums
    assert programs_of(PythonDriver()) is None


def test_a_driver_brings_its_own():
    class Own(PythonDriver):
        test_programs = TestPrograms("assembly", "scale:", "unknown:")

    assert programs_of(Own()) is Own.test_programs


@pytest.mark.parametrize("file", sorted((ROOT / "tests" / "driver").glob("test_*.py")), ids=lambda file: file.name)
def test_driver_tests_are_skipped_for_a_capability_alone(file):
    reasons = re.findall(r"pytest\.skip\(\s*f?[\"'](.*?)[\"']\)", file.read_text(encoding="utf-8"))
    assert [reason for reason in reasons if not reason.startswith("capability: ")] == []
