# SPDX-License-Identifier: BSD-3-Clause
"""Memory shared with other libraries: DLPack, and the view on the host."""

from __future__ import annotations

import ctypes
import gc

import numpy
import pytest
import torch

import torch_outboard

from .support import module_of, reaches_memory

EXT_DEV = 12


class DLTensor(ctypes.Structure):
    """The struct as dlpack.h declares it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Library:
    """An array of another library on the device, which passes on the capsule that it got."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.__dlpack_device__()
        self.capsule = tensor.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: object) -> object:
        return self.capsule

    def view(self) -> DLTensor:
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        return DLTensor.from_address(pointer(self.capsule, b"dltensor"))


def test_the_device_of_the_protocol(device, second_device):
    for where in (device, second_device):
        assert torch.empty(1, device=where).__dlpack_device__() == (EXT_DEV, where.index)
    assert torch.empty(1).__dlpack_device__()[0] == 1
    assert torch.nn.Parameter(torch.empty(1, device=device)).__dlpack_device__() == (EXT_DEV, device.index)


def test_another_library_sees_the_tensor(device):
    x = torch.arange(24, dtype=torch.int16, device=device).reshape(2, 3, 4)[:, 1:, ::2]
    library = Library(x)
    seen = library.view()
    assert (seen.device_type, seen.device_id) == (EXT_DEV, device.index)
    assert seen.data + seen.byte_offset == x.data_ptr()
    assert (seen.code, seen.bits, seen.lanes, seen.ndim) == (0, 16, 1, 3)
    assert tuple(seen.shape[:3]) == x.shape and tuple(seen.strides[:3]) == x.stride()


def test_there_and_back_shares_memory(device):
    x = torch.arange(6.0, device=device)
    for shared in (torch.from_dlpack(x), torch.from_dlpack(Library(x)), torch.from_dlpack(x.__dlpack__())):
        assert shared.device == device and shared.data_ptr() == x.data_ptr()
        shared.add_(1)
    assert x.tolist() == [3, 4, 5, 6, 7, 8]
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()


def test_an_imported_tensor_keeps_the_memory(device):
    x = torch.full((1 << 12,), 3.0, device=device)
    library = Library(x)
    del x
    gc.collect()
    others = [torch.full((1 << 12,), 7.0, device=device) for _ in range(4)]
    back = torch.from_dlpack(library)
    assert back.unique().tolist() == [3.0] and len(others) == 4


def test_numpy_both_ways(device):
    x = torch.arange(4.0, device=device)
    assert numpy.from_dlpack(x, device="cpu").tolist() == [0, 1, 2, 3]
    with pytest.raises((RuntimeError, BufferError), match="(?i)device"):
        numpy.from_dlpack(x)
    array = numpy.arange(5.0)
    ours = torch.from_dlpack(array, device=device)
    assert ours.device == device and ours.tolist() == array.tolist()


def test_what_cannot_be_exported(device):
    with pytest.raises(BufferError, match="gradient"):
        torch.ones(2, device=device, requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="conjugate"):
        torch.ones(2, dtype=torch.complex64, device=device).conj().__dlpack__()


def test_a_view_on_the_host(device):
    x = torch.arange(12.0, device=device).reshape(3, 4)
    if not reaches_memory(device):
        with pytest.raises(torch_outboard.NotSupportedError, match="host_address"):
            torch_outboard.host_view(x)
        return
    view = torch_outboard.host_view(x.t()[1:])
    assert view.device.type == "cpu" and view.stride() == (1, 4)
    assert torch.equal(view, x.cpu().t()[1:])
    array = view.numpy()
    array[:] = 5
    assert x[:, 1:].unique().tolist() == [5]
    del x
    gc.collect()
    assert array.sum() == 45, "the view keeps the memory"


def test_a_view_on_the_host_waits_for_the_stream(device):
    if not reaches_memory(device):
        pytest.skip("capability: host_address. The host can't reach the device's memory")
    with module_of(device).stream(torch.Stream(device)):
        x = torch.zeros(1 << 16, device=device)
        for _ in range(50):
            x.add_(1)
        assert torch_outboard.host_view(x).unique().tolist() == [50]


def test_what_has_no_view_on_the_host(device):
    if not reaches_memory(device):
        pytest.skip("capability: host_address. The host can't reach the device's memory")
    with pytest.raises(ValueError, match="takes a tensor of"):
        torch_outboard.host_view(torch.ones(2))
    with pytest.raises(RuntimeError, match="requires grad"):
        torch_outboard.host_view(torch.ones(2, device=device, requires_grad=True))
    with pytest.raises(TypeError):
        torch_outboard.host_view(3)
    assert torch_outboard.host_view(torch.empty(0, device=device)).shape == (0,)
