# SPDX-License-Identifier: BSD-3-Clause
"""A second attach: who attached first, and which options still apply. And unknown environment variables."""

from __future__ import annotations

import functools

import pytest

from torch_outboard._options import Option
from torch_outboard._variables import warn_of_unknown_variables
from torch_outboard.testing.plugin import RunPython

from .test_autoload import VENDOR

RUN = "from torch_outboard.cli import main; import sys; main(sys.argv[1:], prog_name='outboard')"


@pytest.fixture
def run_fresh(run_python: RunPython) -> RunPython:
    """Return a `run_python` with fresh processes, in which the import of torch attaches a driver."""
    return functools.partial(run_python, fresh=True)


def test_the_message_names_the_line_that_attached_first(run_python):
    run_python(
        """
import pytest, torch_outboard
from torch_outboard import RegistrationError
from unit.toys import Toy
torch_outboard.attach(Toy)
with pytest.raises(RegistrationError, match=r"'toy' is already attached, at <string>:5, and PyTorch supports only one"):
    torch_outboard.attach("sim")
"""
    )


ENTRY_POINT = (
    VENDOR
    + """
def vendor():
    import torch_outboard
    torch_outboard.autoload("unit.toys:Toy")
"""
)


def test_the_message_names_the_entry_point_that_attached_first(run_fresh):
    run_fresh(
        ENTRY_POINT
        + """
import torch, torch_outboard, pytest
with pytest.raises(torch_outboard.RegistrationError, match="is already attached, by the entry point 'vendor', and"):
    torch_outboard.attach("sim")
"""
    )


def test_the_message_names_the_variable_that_attached_first(run_fresh):
    run_fresh(
        """
import torch, torch_outboard, pytest
with pytest.raises(torch_outboard.RegistrationError, match="is already attached, by OUTBOARD_DRIVER=unit.toys:Toy"):
    torch_outboard.attach("sim")
""",
        env={"OUTBOARD_DRIVER": "unit.toys:Toy"},
    )


def test_new_options_count_while_nothing_is_in_use(run_python):
    run_python(
        """
import pytest, torch, torch_outboard
from torch_outboard import RegistrationError
ended = []
from unit.toys import Toy
class Ending(Toy):
    def destroy(self):
        ended.append(self.option_values["devices"])
first = torch_outboard.attach(Ending)
assert torch_outboard.attach(Ending, devices=3) is first
assert torch_outboard.attached_driver().option_values == {"devices": 3} and ended == [2]
assert torch.toy.device_count() == 3
with pytest.raises(RegistrationError, match="new options it has 1 devices, but this process has already counted 3"):
    torch_outboard.attach(Ending, devices=1)
assert torch.toy.device_count() == 3 and torch_outboard.attached_driver().option_values == {"devices": 3}
torch.empty(2, device="toy:2")
assert torch_outboard.attached_driver().opened == [2], "the refused driver was asked"
with pytest.raises(RegistrationError, match=r"the options \\{'devices': 3\\}. They cannot change"):
    torch_outboard.attach(Ending, devices=3 + 1)
assert torch_outboard.attach(Ending, devices=3) is first
"""
    )


@pytest.mark.parametrize("driver", ["sim", "null"])
def test_libraries_take_new_options_too(run_python, driver):
    run_python(
        """
import sys, torch, torch_outboard
torch_outboard.attach(sys.argv[1], devices=1)
module = torch_outboard.attach(sys.argv[1], devices=3)
name = torch_outboard.attached_driver().name
assert module.device_count() == 3
assert (torch.ones(2, device=f"{name}:2") + 1).tolist() == [2, 2]
""",
        driver,
        env={"OUTBOARD_FALLBACK": "silent"},
    )


def test_the_commands_work_where_another_driver_loads_itself(run_fresh):
    info = run_fresh(ENTRY_POINT + RUN, "info", "--driver", "null", "--json")
    assert '"name": "null"' in info.stdout and '"error": null' in info.stdout
    answer = run_fresh(ENTRY_POINT + RUN, "info", "--driver", "unit.toys:Toy", "-o", "devices=3", "--json")
    assert '"Toy 2"' in answer.stdout
    tests = run_fresh(ENTRY_POINT + RUN, "test", "null", "-q", "test_waits.py")
    assert "passed" in tests.stdout


DECLARED = {"devices": Option(int, 1, ""), "schedule": Option(str, "", "")}


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("OUTBOARD_CHIP_DEVICE", "OUTBOARD_CHIP_DEVICES"),
        ("OUTBOARD_CHIP_SHEDULE", "OUTBOARD_CHIP_SCHEDULE"),
        ("OUTBOARD_CIHP_DEVICES", "OUTBOARD_CHIP_DEVICES"),
        ("OUTBOARD_FALBACK", "OUTBOARD_FALLBACK"),
        ("OUTBOARD_DRIVERS", "OUTBOARD_DRIVER"),
    ],
)
def test_a_misspelt_variable_is_reported_with_the_nearest(monkeypatch, variable, nearest):
    monkeypatch.setenv(variable, "1")
    with pytest.warns(UserWarning, match=f"unknown environment variable {variable}. Did you mean '{nearest}'"):
        warn_of_unknown_variables("chip", DECLARED)


@pytest.mark.parametrize(
    "variable", ["OUTBOARD_CHIP_DEVICES", "OUTBOARD_TOY_DEVICES", "OUTBOARD_SIM_DEVICES", "OUTBOARD_STRESS_SEEDS"]
)
def test_other_variables_are_left_alone(monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    warn_of_unknown_variables("chip", DECLARED)


def test_attach_tells_once(run_python):
    code = "import torch_outboard; torch_outboard.attach('unit.toys:Toy'); torch_outboard.attach('unit.toys:Toy')"
    answer = run_python(code, env={"OUTBOARD_TOY_DEVICS": "3"})
    assert (
        answer.stderr.count("unknown environment variable OUTBOARD_TOY_DEVICS. Did you mean 'OUTBOARD_TOY_DEVICES'?")
        == 1
    )
