# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import pickle
import re

from torch_outboard import DriverError, NotSupportedError, OutboardError, RegistrationError, Status
from torch_outboard._errors import from_core

from . import contract


def test_the_tree():
    assert issubclass(OutboardError, RuntimeError)
    assert issubclass(DriverError, OutboardError)
    assert issubclass(NotSupportedError, OutboardError)
    assert issubclass(NotSupportedError, NotImplementedError)
    assert issubclass(RegistrationError, OutboardError)


def test_status_codes_are_those_of_the_header():
    header = contract.header()
    statuses = contract.enumerators("OB_")
    assert {status.name: status.value for status in Status} == {name: statuses[name] for name in Status.__members__}
    block = header.split("typedef int32_t ob_status;")[1].split("};")[0]
    assert len(re.findall(r"^ *OB_\w+ = ", block, re.MULTILINE)) == len(Status)


def test_errors_of_the_core_say_entry_and_device():
    error = from_core(0, 13, "gone", "mem_free", 3)
    assert (type(error), error.code, error.entry, error.device) == (DriverError, Status.INTERNAL, "mem_free", 3)
    error = from_core(0, 77, "gone", "destroy")
    assert (error.code, error.entry, error.device) == (77, "destroy", None)
    assert type(from_core(1, 12, "no")) is NotSupportedError
    assert type(from_core(2, 3, "no")) is RegistrationError


def test_driver_errors_are_pickled_whole():
    error = DriverError("no", Status.ABORTED, entry="mem_free", device=1)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.entry, copy.device) == ("no", Status.ABORTED, "mem_free", 1)
