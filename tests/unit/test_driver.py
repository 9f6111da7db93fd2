# SPDX-License-Identifier: BSD-3-Clause
"""Descriptions: entries, options, properties; nothing is attached."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import subprocess
import sys

import pytest
import torch

from torch_outboard import DeviceProperties, Driver, Option, RegistrationError, Status
from torch_outboard._properties import DTYPES, dtype_bits, to_table
from torch_outboard.driver import OPTIONAL_ENTRIES, REQUIRED_ENTRIES, driver_entries

from . import contract
from .toys import Toy


def test_the_entries_are_those_of_the_header():
    required, optional = contract.table_entries()
    assert list(REQUIRED_ENTRIES) == required
    assert set(OPTIONAL_ENTRIES) == set(optional)


def test_the_skeleton_has_every_entry():
    entries = {name for names in contract.table_entries() for name in names}
    skeleton = (contract.ROOT / "drivers" / "null" / "null.c").read_text(encoding="utf-8")
    assert {*re.findall(r"^ +\.(\w+) = \1,", skeleton, re.MULTILINE)} == entries


def test_the_build_reads_the_header(tmp_path):
    """The lists are whole, and a header in another style stops the build."""
    reader = [sys.executable, str(contract.ROOT / "cmake" / "contract.py")]
    (tmp_path / "driver.h").write_text(contract.header(), encoding="utf-8")
    subprocess.run([*reader, tmp_path / "driver.h", tmp_path / "built" / "contract.inc"], check=True)
    written = (tmp_path / "built" / "contract.inc").read_text(encoding="utf-8")
    lists = {name: re.findall(r"X\((\w+)\)", text) for name, text in re.findall(r"#define (\w+)\(X\) (.*)", written)}
    required, optional = contract.table_entries()
    assert lists["OB_ENTRIES"] == [*required, *optional] and lists["OB_REQUIRED_ENTRIES"] == required
    assert set(lists["OB_STATUSES"]) == set(Status.__members__)
    assert set(lists["OB_PROPERTIES"]) == {field.name for field in dataclasses.fields(DeviceProperties)}
    (tmp_path / "driver.h").write_text(contract.header().replace("(void* self", "( void* self"), encoding="utf-8")
    answer = subprocess.run([*reader, tmp_path / "driver.h", tmp_path / "other.inc"], capture_output=True, text=True)
    assert answer.returncode != 0 and "OB_ENTRIES" in answer.stderr and not (tmp_path / "other.inc").exists()


def test_dtypes_are_those_of_torch_and_have_names_in_plans():
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    guard = (contract.ROOT / "csrc" / "torch" / "guard.cpp").read_text(encoding="utf-8")
    assert [name for name in names if f"static_assert(OB_{name.upper()} == static_cast<int>(" not in guard] == []
    plans = (contract.ROOT / "csrc" / "kernels" / "dtypes.cpp").read_text(encoding="utf-8")
    assert [name for name in names if f'"{name}"' not in plans] == ["complex32"]  # no kernel is generated for it


def test_every_entry_is_documented():
    assert all(getattr(Driver, name).__doc__ for name in (*REQUIRED_ENTRIES, *OPTIONAL_ENTRIES[:-2]))


def test_properties_and_dtypes_are_those_of_the_header():
    fields = [
        field
        for field in contract.struct_fields("ob_device_properties")
        if field != "struct_size" and not field.startswith("reserved")
    ]
    assert sorted(fields) == sorted(field.name for field in dataclasses.fields(DeviceProperties))
    names = {"OB_" + str(dtype).removeprefix("torch.").upper(): number for dtype, number in DTYPES.items()}
    block = contract.header().split("typedef int32_t ob_dtype;")[1].split("};")[0]
    assert {
        f"OB_{name}": number for name, number in contract.enumerators("OB_").items() if f"OB_{name} = " in block
    } == names


def test_a_driver_has_the_entries_that_it_defines():
    entries = driver_entries(Toy())
    assert set(entries) == {*REQUIRED_ENTRIES, "device_open"}
    assert entries["device_count"]() == 2


def test_a_missing_required_entry_is_named():
    class Incomplete(Toy):
        mem_free = None
        event_query = Driver.event_query

    with pytest.raises(RegistrationError, match="lacks the required entries mem_free, event_query"):
        driver_entries(Incomplete())


def test_a_misspelt_entry_is_named():
    class Misspelt(Toy):
        def mem_inof(self, device):
            return 0, 0

    with pytest.raises(RegistrationError, match="'mem_inof' is not an entry. Did you mean 'mem_info'"):
        driver_entries(Misspelt())


def test_ctypes_functions_are_bound_by_address():
    class WithAddress(Toy):
        stream_destroy = ctypes.CDLL(None).getpid
        stream_query = 4096

    entries = driver_entries(WithAddress())
    assert isinstance(entries["stream_destroy"], int)
    assert entries["stream_query"] == 4096


OPTIONS = {
    "count": Option(int, 3, "A number."),
    "ratio": Option(float, None, "A ratio."),
    "on": Option(bool, False, "A switch."),
    "mode": Option(str, "fast", "A mode.", choices=("fast", "slow")),
}


class Optional(Toy):
    name = "toy"
    options = OPTIONS


def test_options_are_converted():
    values = Optional(count="0x10", ratio="0.5", on="yes", mode="slow").option_values
    assert values == {"count": 16, "ratio": 0.5, "on": True, "mode": "slow"}
    assert Optional().option_values == {"count": 3, "ratio": None, "on": False, "mode": "fast"}


def test_options_come_from_the_environment_unless_given(monkeypatch):
    monkeypatch.setenv("OUTBOARD_TOY_COUNT", "5")
    monkeypatch.setenv("OUTBOARD_TOY_MODE", "")
    assert Optional().option_values["count"] == 5
    assert Optional().option_values["mode"] == "fast"
    assert Optional(count=4).option_values["count"] == 4


@pytest.mark.parametrize(
    "given, message",
    [
        ({"cuont": 1}, "no option 'cuont'. Did you mean 'count'"),
        ({"zzz": 1}, "no option 'zzz'. Choose from: count, mode, on, ratio"),
        ({"count": "many"}, "option 'count' must be int, not 'many'. A number."),
        ({"count": 1.5}, "option 'count' must be a whole number, not 1.5"),
        ({"count": True}, "option 'count' must be int, not bool"),
        ({"on": "maybe"}, "option 'on' must be true or false, not 'maybe'"),
        ({"mode": "medium"}, "option 'mode' must be one of fast, slow, not 'medium'"),
        ({"ratio": []}, "option 'ratio' must be float, not list"),
    ],
)
def test_bad_options_say_what_to_write(given, message):
    with pytest.raises(RegistrationError, match=message):
        Optional(**given)


def test_a_bad_option_of_the_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("OUTBOARD_TOY_COUNT", "many")
    with pytest.raises(RegistrationError, match="OUTBOARD_TOY_COUNT must be int, not 'many'"):
        Optional()


def test_properties_become_a_table():
    assert to_table({"name": "x", "dtypes": [torch.float32, torch.bool]})["dtypes"] == 1 << 6 | 1 << 11
    assert to_table(DeviceProperties(name="x"))["dtypes"] == dtype_bits(DTYPES)
    with pytest.raises(ValueError, match="no property 'names'. Did you mean 'name'"):
        to_table({"names": "x"})
    with pytest.raises(ValueError, match="cannot declare torch.qint8"):
        to_table({"dtypes": [torch.qint8]})
    with pytest.raises(TypeError, match="must return a dict or DeviceProperties, not int"):
        to_table(3)


def test_no_dtypes_mean_all():
    table = {field.name: getattr(DeviceProperties(), field.name) for field in dataclasses.fields(DeviceProperties)}
    assert DeviceProperties.from_table({**table, "dtypes": 0}).dtypes == set(DTYPES)
    assert DeviceProperties.from_table({**table, "dtypes": 1 << 6}).dtypes == {torch.float32}
