# SPDX-License-Identifier: BSD-3-Clause
"""Results are laid out as the CPU's, whatever the layouts of a call's tensors, and gradients beside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

Function = Callable[[torch.Tensor], torch.Tensor]

LAYOUTS: dict[str, Function] = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "expanded": lambda x: x[:1, :, :1].expand(x.shape),
    "with gaps": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
}
OPERATORS: dict[str, Function] = {
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "reflection_pad2d": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "upsample_bilinear2d": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "huber_loss": lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none"),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), torch.ones_like(x), reduction="none"),
    "roll": lambda x: x.roll((1, 2), (1, 3)),
}
PAIRS = [
    ("channels_last", "contiguous"),
    ("contiguous", "channels_last"),
    ("permuted", "contiguous"),
    ("transposed", "expanded"),
    ("with gaps", "permuted"),
]


@pytest.mark.usefixtures("nothing_on_the_cpu")
@pytest.mark.parametrize(("of_input", "of_gradient"), PAIRS)
@pytest.mark.parametrize("name", OPERATORS)
def test_layouts_of_results_and_gradients(name: str, of_input: str, of_gradient: str, device: torch.device) -> None:
    image = torch.randn(2, 4, 4, 6)
    weights = torch.randn(OPERATORS[name](image).shape)

    def run(place: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        x = LAYOUTS[of_input](image.to(place)).detach().requires_grad_()
        result = OPERATORS[name](x)
        result.backward(LAYOUTS[of_gradient](weights.to(place)))
        assert x.grad is not None
        return result.detach(), x.grad

    for got, expected in zip(run(device), run(torch.device("cpu")), strict=True):
        torch.testing.assert_close(got.cpu(), expected, atol=1e-4, rtol=1e-4)
        assert got.stride() == expected.stride()


@pytest.mark.usefixtures("nothing_on_the_cpu")
def test_numbers_beyond_the_type_of_an_index_are_written(device: torch.device) -> None:
    """No number is converted to an index's type, so that infinities have kernels."""
    index, zeros = torch.tensor([1], device=device), torch.zeros(3, device=device)
    for number in (-float("inf"), 1e30):
        assert zeros.scatter(0, index, number).tolist() == [0.0, pytest.approx(number), 0.0]
        assert zeros.clone().index_fill_(0, index, number).tolist() == [0.0, pytest.approx(number), 0.0]
