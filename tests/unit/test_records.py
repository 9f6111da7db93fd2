# SPDX-License-Identifier: BSD-3-Clause
"""Records that Python passes to _C are read by the names of their fields: csrc/bindings/records.h."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from torch_outboard import _C
from torch_outboard._launch import ParameterRecord, TypedKernelRecord
from torch_outboard.codegen.program import DeviceProgram, KernelRecord

KERNEL = KernelRecord("k", "opencl_c", b"", "", "k", "ri", ("1",) * 6 + ("0",))
TYPED = TypedKernelRecord("k", "opencl_c", b"", "", (ParameterRecord("tensor", torch.float32),))


class ReorderedRecord(NamedTuple):
    """A KernelRecord whose fields come in another order."""

    checks: tuple[str, ...]
    geometry: tuple[str, ...]
    letters: str
    entry: str
    options: str
    code: bytes
    language: str
    name: str
    read_binary: Callable[[], bytes] | None


def test_fields_have_names_and_no_order() -> None:
    turned = ReorderedRecord(**{name: getattr(KERNEL, name) for name in ReorderedRecord._fields})
    assert callable(_C.device_kernel(KERNEL)) and callable(_C.device_kernel(turned))
    assert callable(_C.typed_kernel(TYPED))


@pytest.mark.parametrize("field", KernelRecord._fields)
def test_a_missing_field_is_named(field: str) -> None:
    rest = {name: value for name, value in KERNEL._asdict().items() if name != field}
    with pytest.raises(
        TypeError, match=f"a KernelRecord needs the field '{field}', but got a SimpleNamespace without it"
    ):
        _C.device_kernel(SimpleNamespace(**rest))


def test_a_plain_tuple_is_no_record() -> None:
    with pytest.raises(TypeError, match="a KernelRecord needs the field 'geometry', but got a tuple without it"):
        _C.device_kernel(tuple(KERNEL))
    with pytest.raises(TypeError, match="a TypedKernelRecord needs the field 'parameters', but got a tuple without it"):
        _C.typed_kernel(tuple(TYPED))
    with pytest.raises(TypeError, match="a ParameterRecord needs the field 'kind', but got a tuple without it"):
        _C.typed_kernel(TYPED._replace(parameters=(("tensor", None, False, False),)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", b"k", "'name' of a KernelRecord must be str, not bytes"),
        ("language", None, "'language' of a KernelRecord must be str, not NoneType"),
        ("code", "text", "'code' of a KernelRecord must be bytes, not str"),
        ("options", ["-O3"], "'options' of a KernelRecord must be str, not list"),
        ("entry", "\ud800", "'entry' of a KernelRecord has text that UTF-8 cannot encode"),
        ("letters", ("r", "i"), "'letters' of a KernelRecord must be str, not tuple"),
        ("geometry", "1111110", "'geometry' of a KernelRecord must be tuple or list, not str"),
        ("geometry", (1,) * 7, "'geometry' of a KernelRecord must be tuple or list of str, not int"),
        ("checks", (None,), "'checks' of a KernelRecord must be tuple or list of str, not NoneType"),
        ("read_binary", b"", "'read_binary' of a KernelRecord must be None or a callable, not bytes"),
    ],
)
def test_another_type_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"the field {message}"):
        _C.device_kernel(KERNEL._replace(**{field: value}))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("letters", "r?", r"the unknown letter '\?' in 'r\?'.*r \(the address of a tensor that is read\)"),
        ("geometry", ("1",) * 6, "'geometry' of a KernelRecord needs seven formulas .* not 6"),
        ("geometry", ("1 1",) * 7, "formula"),
        ("checks", ("index aten::add",), "the kernel k has 1 checks and the arguments 'ri'"),
    ],
)
def test_what_makes_no_sense_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _C.device_kernel(KERNEL._replace(**{field: value}))


@pytest.mark.parametrize(
    ("parameter", "kind", "message"),
    [
        (ParameterRecord("matrix"), ValueError, "must be 'tensor', 'number' or 'local', not 'matrix'"),
        (ParameterRecord(2), TypeError, "'kind' of a ParameterRecord must be str, not int"),  # type: ignore[arg-type]
        (ParameterRecord("tensor", "float32"), TypeError, "must be a torch.dtype or None"),  # type: ignore[arg-type]
        (ParameterRecord("number"), ValueError, "cannot take a number of dtype UNKNOWN_SCALAR by value"),
        (ParameterRecord("tensor", None, 1), TypeError, "'is_written' of a ParameterRecord must be bool, not int"),
    ],
)
def test_bad_parameters_are_refused(parameter: ParameterRecord, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        _C.typed_kernel(TYPED._replace(parameters=(parameter,)))


def test_an_error_of_the_record_itself_is_raised() -> None:
    class Broken:
        @property
        def geometry(self) -> None:
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        _C.device_kernel(Broken())


def test_the_record_of_a_program() -> None:
    program = DeviceProgram("k", "opencl_c", ("const float *", "int64_t"), "text", "f", ("a1",), checks=("assert no",))
    assert program.record() == KernelRecord(
        "k", "opencl_c", b"text", "", "f", "ri", ("a1", "1", "1", "1", "1", "1", "0"), ("assert no",)
    )
    with pytest.raises(TypeError, match="the kernel k has an argument of type 'matrix', which launches don't support"):
        DeviceProgram("k", "opencl_c", ("matrix",), "", "f", ("1",)).record()
