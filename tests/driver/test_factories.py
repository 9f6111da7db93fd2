# SPDX-License-Identifier: BSD-3-Clause
"""Factories of tensors on the device, and views of the tensors."""

from __future__ import annotations

import pytest
import torch

from .support import assert_same

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]

FACTORIES = {
    "zeros": lambda **kw: torch.zeros(3, 4, **kw),
    "ones": lambda **kw: torch.ones(3, 4, **kw),
    "full": lambda **kw: torch.full((3, 4), 5, **{"dtype": torch.int32, **kw}),
    "arange": lambda **kw: torch.arange(2, 20, 3, **kw),
    "linspace": lambda **kw: torch.linspace(0, 1, 7, **kw),
    "logspace": lambda **kw: torch.logspace(0, 1, 7, **kw),
    "eye": lambda **kw: torch.eye(3, 4, **kw),
    "tensor": lambda **kw: torch.tensor([[1.5, 2.5], [3.5, 4.5]], **kw),
    "scalar_tensor": lambda **kw: torch.scalar_tensor(3, **kw),
    "tril_indices": lambda **kw: torch.tril_indices(3, 3, **kw),
    "triu_indices": lambda **kw: torch.triu_indices(4, 5, -1, **kw),
    "tril_indices(0)": lambda **kw: torch.tril_indices(0, 4, **kw),
    "hann_window": lambda **kw: torch.hann_window(8, **kw),
    "hamming_window": lambda **kw: torch.hamming_window(8, False, 0.3, **kw),
    "blackman_window": lambda **kw: torch.blackman_window(8, **kw),
    "bartlett_window": lambda **kw: torch.bartlett_window(8, **kw),
    "fftfreq": lambda **kw: torch.fft.fftfreq(7, **kw),
    "empty(0)": lambda **kw: torch.empty(0, 3, **kw),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factory_gives_the_cpu_values_on_the_device(device, name):
    assert_same(FACTORIES[name](device=device), FACTORIES[name](device="cpu"), device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_kaiser_windows(device, dtype):
    for arguments in ((9,), (300, False), (41, True, 6.5), (2, False, 3.5), (1, False), (0,)):
        ours = torch.kaiser_window(*arguments, dtype=dtype, device=device)
        assert ours.device == device
        # The CPU rounds each step of the formula to the type.
        torch.testing.assert_close(ours.cpu(), torch.kaiser_window(*arguments, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window_length": -1}, "non-negative window_length, got window_length=-1"),
        ({"window_length": 4, "dtype": torch.int32}, "expects floating point dtypes"),
        ({"window_length": 4, "layout": torch.sparse_coo}, "is not implemented for"),
    ],
)
def test_a_wrong_window_is_refused(device, wrong, message):
    for place in ("cpu", device):
        with pytest.raises(RuntimeError, match=message):
            torch.kaiser_window(device=place, **wrong)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_goes_there_and_back(device, dtype):
    host = torch.arange(-3, 5).to(dtype)
    ours = host.to(device)
    assert ours.dtype == dtype
    assert_same(ours, host, device)
    assert_same(torch.tensor(host.tolist(), dtype=dtype, device=device), host, device)


def test_a_device_without_index_is_the_current_one(device, driver_name):
    assert torch.empty(1, device=driver_name).device == torch.device(
        driver_name, torch.accelerator.current_device_index()
    )


@pytest.mark.parametrize("make", [torch.empty_like, torch.zeros_like, torch.ones_like, torch.rand_like])
def test_like_keeps_the_device_and_the_layout(device, make):
    source = torch.ones(4, 3, device=device).t()
    result = make(source)
    assert (result.device, result.shape, result.stride()) == (device, source.shape, source.stride())


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_memory_formats(device, memory_format):
    host = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5).contiguous(memory_format=memory_format)
    ours = host.to(device)
    assert ours.stride() == host.stride()
    assert ours.is_contiguous(memory_format=memory_format)
    assert torch.empty_like(ours).stride() == host.stride()
    assert_same(ours.contiguous(), host.contiguous(), device)


@pytest.mark.parametrize("size", [0, 1, 511, 513, 1 << 20, (1 << 20) + 1])
def test_sizes_round_the_allocator_edges(device, size):
    host = torch.arange(size, dtype=torch.int64).to(torch.uint8)
    ours = host.to(device)
    assert_same(ours, host, device)
    assert ours.untyped_storage().nbytes() == size
    assert size == 0 or ours.data_ptr() % 512 == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.view(6, 4),
        lambda t: t.reshape(-1),
        lambda t: t[1],
        lambda t: t[:, 1:3],
        lambda t: t[..., ::2],
        lambda t: t.transpose(0, 2),
        lambda t: t.permute(2, 0, 1),
        lambda t: t.unsqueeze(1).squeeze(1),
        lambda t: t[:1].expand(5, 3, 4),
        lambda t: t.narrow(1, 1, 2),
        lambda t: t.unfold(2, 2, 1),
        lambda t: t.as_strided((2, 2), (7, 3), 1),
        lambda t: t.diagonal(0, 1, 2),
        lambda t: t.view(torch.int32),
        lambda t: t.movedim(0, -1),
        lambda t: t.unflatten(2, (2, 2)).flatten(0, 1),
        lambda t: t.detach(),
        lambda t: t.split(2, 1)[1],
        lambda t: t.chunk(2, 0)[1],
        lambda t: t.unbind(1)[2],
        lambda t: t.swapaxes(0, 1),
    ],
)
def test_views_share_memory_and_show_the_cpu_values(device, view):
    host = torch.arange(24.0).reshape(2, 3, 4)
    ours = host.to(device)
    result, expected = view(ours), view(host)
    assert result.stride() == expected.stride()
    assert result.storage_offset() == expected.storage_offset()
    assert result.untyped_storage().data_ptr() == ours.untyped_storage().data_ptr()
    assert_same(result, expected, device)


def test_writing_through_a_view_shows_in_the_base(device):
    ours, host = torch.zeros(3, 4, device=device), torch.zeros(3, 4)
    for tensor in (ours, host):
        tensor[1] = 2
        tensor[:, 2].add_(5)
        tensor.t()[0].copy_(torch.arange(3.0))
        tensor[2:, 1:3] = torch.tensor([7.0, 8.0])
        tensor.view(-1)[::5] = -1
    assert_same(ours, host, device)


def test_resize_and_set(device):
    tensor = torch.arange(6.0).to(device)
    tensor.resize_(2, 2)
    assert tensor.tolist() == [[0, 1], [2, 3]]
    tensor.resize_(3, 4)
    assert tensor.shape == (3, 4)
    assert tensor.view(-1)[:6].tolist() == [0, 1, 2, 3, 4, 5]
    alias = torch.empty(0, device=device).set_(tensor)
    assert alias.data_ptr() == tensor.data_ptr()
    assert torch.empty(0, device=device).set_(tensor.untyped_storage(), 1, (2,), (2,)).tolist() == [1, 3]
    tensor.set_()
    assert tensor.numel() == 0 and tensor.device == device
    assert alias[0, :2].tolist() == [0, 1]


def test_item_tolist_bool_and_format(device):
    tensor = torch.tensor([[1.5, -2.0], [0.0, torch.inf]], device=device)
    assert tensor[0, 0].item() == 1.5
    assert tensor.tolist() == [[1.5, -2.0], [0.0, torch.inf]]
    assert bool(tensor[0, 1]) and not bool(tensor[1, 0])
    assert int(torch.tensor(7, device=device)) == 7
    text = repr(tensor)
    assert "1.5" in text and f"device='{device}'" in text
    assert torch.tensor(1 - 2j, device=device).item() == 1 - 2j
    assert torch.tensor(True, device=device).item() is True


def test_default_device_and_device_context(device):
    with device:
        assert torch.ones(2).device == device
        assert torch.arange(3).device == device
    assert torch.ones(2).device.type == "cpu"


def test_methods_named_after_the_device(device, driver_name):
    host = torch.ones(2)
    ours = getattr(host, driver_name)()
    assert ours.device.type == driver_name
    assert getattr(ours, f"is_{driver_name}") and not getattr(host, f"is_{driver_name}")
    module = getattr(torch.nn.Linear(2, 2), driver_name)()
    assert {parameter.device.type for parameter in module.parameters()} == {driver_name}


def test_properties_of_a_tensor(device):
    tensor = torch.empty(2, 3, device=device)
    assert type(tensor) is torch.Tensor
    assert not tensor.is_cpu and not tensor.is_cuda and not tensor.is_meta
    assert tensor.get_device() == device.index
    assert tensor.new_ones(2).device == device
    assert tensor.untyped_storage().device == device
    with pytest.raises(TypeError):
        tensor.numpy()


@pytest.mark.parametrize("size", [(-1,), (2, -3)])
def test_a_negative_size_is_refused(device, size):
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(size, device=device)


def test_an_absurd_size_is_refused_and_the_device_goes_on(device):
    with pytest.raises(RuntimeError):
        torch.empty(1 << 62, dtype=torch.int64, device=device)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 55, dtype=torch.uint8, device=device)
    assert torch.ones(3, device=device).sum().item() == 3


def test_a_device_index_out_of_range_is_refused(driver_name):
    count = torch.accelerator.device_count()
    with pytest.raises((RuntimeError, ValueError), match=str(count)):
        torch.empty(1, device=f"{driver_name}:{count}")
    assert torch.ones(2, device=f"{driver_name}:0").sum().item() == 2
