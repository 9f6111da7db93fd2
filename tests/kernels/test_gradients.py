# SPDX-License-Identifier: BSD-3-Clause
"""Operators and gradients that Inductor leaves to a library, or lays out differently from the CPU's kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_outboard
from torch_outboard.testing.database.calls import poison

Function = Callable[..., torch.Tensor]


def results(function: Function, inputs: tuple[torch.Tensor, ...], device: Any) -> list[torch.Tensor]:
    arguments = [tensor.detach().to(device).requires_grad_(tensor.is_floating_point()) for tensor in inputs]
    result = function(*arguments)
    weights = torch.arange(result.numel(), dtype=torch.float32).reshape(result.shape).cos().to(result.dtype)
    return [result, *torch.autograd.grad(result, [arg for arg in arguments if arg.requires_grad], weights.to(device))]


def check(function: Function, *inputs: torch.Tensor, device: torch.device, tolerance: float = 1e-5) -> None:
    """Compare a function's values and gradients with the CPU's, and their strides."""
    expected = results(function, inputs, "cpu")
    poison(device)
    torch_outboard.reset_coverage()
    ours = results(function, inputs, device)
    assert {row.provider for row in torch_outboard.coverage()} <= {"generated", "native"}, torch_outboard.coverage()
    for result, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(result.cpu(), wanted, atol=tolerance, rtol=tolerance, equal_nan=True)
        assert result.stride() == wanted.stride() or result.numel() <= 1


# The gradients of interpolate for images, by mode, and what they take behind the sizes.
OF_IMAGES = {
    "nearest": (torch.ops.aten.upsample_nearest2d_backward, ()),
    "nearest-exact": (torch.ops.aten._upsample_nearest_exact2d_backward, ()),
    "bilinear": (torch.ops.aten.upsample_bilinear2d_backward, (False,)),
    "bicubic": (torch.ops.aten.upsample_bicubic2d_backward, (False,)),
    "bilinear, aligned": (torch.ops.aten.upsample_bilinear2d_backward, (True,)),
    "bicubic, aligned": (torch.ops.aten.upsample_bicubic2d_backward, (True,)),
}


@pytest.mark.parametrize("mode", OF_IMAGES)
def test_gradients_of_resized_images(mode: str, device: torch.device) -> None:
    operator, flags = OF_IMAGES[mode]
    none, factors = (None, None), (0.6, 1.3)
    size = (2, 3, 5, 7)
    for to, scales in (((4, 9), none), ((10, 14), none), ((1, 1), none), ((13, 2), none), ((3, 9), factors)):
        _check_gradient(operator, torch.randn(2, 3, *to), to, size, *flags, *scales, device=device)
    _check_gradient(operator, torch.randn(2, 3, 5, 7), (5, 7), size, *flags, *none, device=device)


SMOOTH: dict[str, dict[str, Any]] = {
    "smaller": {"size": (7, 5)},
    "larger": {"size": (40, 33)},
    "one": {"size": (1, 1)},
    "by scales": {"scale_factor": (0.4, 1.7)},
    "aligned": {"size": (9, 3), "align_corners": True},
}


SHORT = [("smaller", "bicubic"), ("aligned", "bilinear"), ("one", "bilinear")]


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(case, mode, marks=() if (case, mode) in SHORT else pytest.mark.long)
        for case in SMOOTH
        for mode in ("bilinear", "bicubic")
    ],
)
def test_images_resized_without_aliasing(case: str, mode: str, device: torch.device) -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, mode=mode, antialias=True, **SMOOTH[case])

    check(resized, torch.randn(2, 3, 17, 23), device=device)
    check(resized, torch.randn(2, 3, 17, 23).to(memory_format=torch.channels_last), device=device)


@pytest.mark.parametrize(
    ("given", "size", "message"),
    [
        (torch.randn(2, 3, 4), (2, 2), "Expected|expected|equal to 2|dimension"),
        (torch.randn(2, 3, 4, 5), (0, 2), "greater than"),
        (torch.ones(1, 1, 2, 2, dtype=torch.int64), (4, 4), "not implemented for 'Long'"),
    ],
    ids=["dimensions", "size", "type"],
)
def test_such_images_that_the_cpu_refuses(
    given: torch.Tensor, size: tuple[int, int], message: str, device: torch.device
) -> None:
    for place in ("cpu", device):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.aten._upsample_bilinear2d_aa(given.to(place), size, False)


@pytest.mark.parametrize("mode", ["nearest", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_gradients_of_resized_images_of_other_types(mode: str, dtype: torch.dtype, device: torch.device) -> None:
    operator, flags = OF_IMAGES[mode]
    grad = torch.randn(2, 3, 10, 14).to(dtype)
    _check_gradient(operator, grad, (10, 14), (2, 3, 5, 7), *flags, 2.0, 2.0, device=device, tolerance=1e-2)


def _check_gradient(
    operator: Any, grad: torch.Tensor, *rest: Any, device: torch.device, tolerance: float = 1e-5
) -> None:
    expected = operator(grad, *rest)
    torch_outboard.reset_coverage()
    result = operator(grad.to(device), *rest)
    assert {row.provider for row in torch_outboard.coverage()} <= {"generated"}, torch_outboard.coverage()
    torch.testing.assert_close(result.cpu(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_resized_images(mode: str, device: torch.device) -> None:
    x = torch.randn(2, 3, 5, 7)
    check(lambda x: F.interpolate(x, scale_factor=2.0, mode=mode), x, device=device)
    if mode == "bilinear":
        last = x.to(memory_format=torch.channels_last)
        check(lambda x: F.interpolate(x, size=(4, 9), mode=mode), last, device=device)


@pytest.mark.parametrize(
    ("mode", "rank"), [("nearest", 1), ("nearest-exact", 1), ("linear", 1), ("nearest", 3), ("trilinear", 3)]
)
def test_resized_rows_and_volumes(mode: str, rank: int, device: torch.device) -> None:
    x = torch.randn(2, 3, *(5, 3, 4)[:rank])
    check(lambda x: F.interpolate(x, size=(9, 2, 7)[:rank], mode=mode), x, device=device)


def test_norms_of_permuted_tensors(device: torch.device) -> None:
    x, w, b = torch.randn(2, 3, 5, 7), torch.randn(3), torch.randn(3)
    check(
        lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (3,), w, b).permute(0, 3, 1, 2),
        x,
        w,
        b,
        device=device,
        tolerance=1e-4,
    )
    check(lambda x: F.log_softmax(x.t(), -1).t(), torch.randn(4, 9), device=device)
    check(lambda x: F.log_softmax(x, -1).transpose(0, 1), torch.randn(4, 5, 9), device=device)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_weight_norm(dim: int, device: torch.device) -> None:
    v, g = torch.randn(4, 5, 3), torch.randn([size if number == dim else 1 for number, size in enumerate((4, 5, 3))])
    check(lambda v, g: torch._weight_norm(v, g, dim), v, g, device=device)
    if dim == 0:
        check(lambda v, g: torch._weight_norm(v, g, dim), v.bfloat16(), g.bfloat16(), device=device, tolerance=5e-2)


TARGETS = torch.tensor([[1, 2, 2, 3], [3, 1, 2, -7], [1, 1, 9, 9]])


@pytest.mark.parametrize(
    ("lengths", "target_lengths", "named"),
    [
        ([12, 10, 11], [4, 3, 2], {}),
        ([12, 10, 11], [4, 3, 2], {"dtype": torch.float64}),
        ([12, 10, 11], [4, 0, 2], {"reduction": "sum"}),
        ([12, 10, 3], [4, 3, 2], {"blank": 5, "reduction": "none"}),
        ([3, 10, 1], [4, 3, 2], {"reduction": "none"}),
        ([3, 10, 1], [4, 3, 2], {"zero_infinity": True, "reduction": "sum"}),
        ([12, 10, 1], [0, 0, 0], {}),
    ],
)
def test_ctc_loss(lengths: list[int], target_lengths: list[int], named: dict[str, Any], device: torch.device) -> None:
    dtype = named.get("dtype", torch.float32)
    named = {name: value for name, value in named.items() if name != "dtype"}

    def loss(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = F.ctc_loss(F.log_softmax(x, -1), TARGETS.to(x.device), lengths, target_lengths, **named)
        return result

    def loss_of_one_row(x: torch.Tensor) -> torch.Tensor:
        row = torch.cat([target[:length] for target, length in zip(TARGETS, target_lengths, strict=True)]).int()
        probabilities = F.log_softmax(x.transpose(0, 1), -1).transpose(0, 1)
        on_cpu = torch.tensor(lengths), torch.tensor(target_lengths)
        result: torch.Tensor = F.ctc_loss(probabilities, row.to(x.device), *on_cpu, **named)
        return result

    x = torch.randn(12, 3, 6, dtype=dtype)
    check(loss, x, device=device)
    check(loss_of_one_row, x, device=device)


def test_ctc_loss_shares_kernels_between_lengths(device: torch.device) -> None:
    x = torch.randn(12, 3, 6, device=device).log_softmax(-1)
    targets = TARGETS.clamp(0, 3).to(device)
    F.ctc_loss(x, targets, [12, 10, 11], [4, 3, 2])
    before = torch_outboard.kernels.plan_statistics()
    for lengths in ([11, 9, 12], [4, 5, 6]):
        F.ctc_loss(x, targets, lengths, [3, 4, 1])
    assert torch_outboard.kernels.plan_statistics() == before


def test_a_label_that_is_no_class_is_an_error(device: torch.device) -> None:
    x = torch.randn(12, 1, 6, device=device).log_softmax(-1)
    with pytest.raises((IndexError, RuntimeError), match="index 6 is out of bounds"):
        F.ctc_loss(x, torch.tensor([[1, 6]], device=device), [12], [2])
        torch.accelerator.synchronize(device)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers(kind: str, has_bias: bool, device: torch.device) -> None:
    layer = getattr(torch.nn, kind)(6, 5, bias=has_bias, bidirectional=True)
    inputs = [torch.randn(3, 2, 6), *(parameter.detach() for parameter in layer.parameters())]
    names = [name for name, _ in layer.named_parameters()]

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        output, state = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))
        last = state[1] if kind == "LSTM" else state
        return torch.cat([output.flatten(), last.flatten()])

    check(run, *inputs, device=device, tolerance=5e-5)  # cuDNN's tanh is within 2e-5


def test_cells_without_the_gradient_of_an_output(device: torch.device) -> None:
    cell = torch.nn.LSTMCell(6, 5)
    parameters = [parameter.detach() for parameter in cell.parameters()]
    names = [name for name, _ in cell.named_parameters()]
    for output in (0, 1):

        def run(x: torch.Tensor, *values: torch.Tensor, output: int = output) -> torch.Tensor:
            result: torch.Tensor = torch.func.functional_call(cell, dict(zip(names, values, strict=True)), (x,))[output]
            return result

        check(run, torch.randn(4, 6), *parameters, device=device)


@pytest.fixture
def _mode(is_deterministic: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_mode")
@pytest.mark.parametrize(
    ("dtype", "is_deterministic"),
    [(torch.int16, True), *((dtype, False) for dtype in (torch.uint8, torch.bool, torch.int64, torch.float16))],
    ids=str,
)
def test_writes_at_indices(dtype: torch.dtype, is_deterministic: bool, device: torch.device) -> None:
    x, i = torch.arange(20).view(4, 5).to(dtype), torch.tensor([3, 1])
    values = (torch.arange(10).view(2, 5) % 3).to(dtype)
    where = torch.tensor([[4, 0], [1, 2]])
    nothing = torch.tensor([], dtype=torch.int64)
    for function in (
        lambda x, i, y, to, none: x.index_put_((i,), y),
        lambda x, i, y, to, none: x.scatter_(1, to, y),
        lambda x, i, y, to, none: x.scatter_(0, none, y),
        lambda x, i, y, to, none: x.scatter_(0, none, 1),
        lambda x, i, y, to, none: x.scatter_add_(0, none, y),
        lambda x, i, y, to, none: x if x.dtype == torch.bool else x.scatter_reduce_(0, none, y, "amax"),
    ):
        inputs = x, i, values, where, nothing
        torch_outboard.reset_coverage()
        result = function(*(tensor.clone().to(device) for tensor in inputs))
        assert {row.provider for row in torch_outboard.coverage()} <= {"generated"}, torch_outboard.coverage()
        assert torch.equal(result.cpu(), function(*(tensor.clone() for tensor in inputs)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_unique_rows_and_runs(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randint(2, (7, 3, 2)).to(dtype)
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=1),
        lambda x: torch.unique(x, return_inverse=True, return_counts=True, dim=0),
        lambda x: torch.unique(x, return_inverse=True, return_counts=True, dim=-1),
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    ]
    for call in calls:
        for result, wanted in zip(call(x.to(device)), call(x), strict=True):
            assert torch.equal(result.cpu(), wanted)


def test_isin(device: torch.device) -> None:
    x = torch.arange(6)
    for elements, tests in ((x, x[2:4]), (x[3], x[2:4]), (x, x[1]), (x[1], x[1]), (x, x[:0])):
        assert torch.equal(torch.isin(elements.to(device), tests.to(device)).cpu(), torch.isin(elements, tests))


# Places beyond the edges too.
@pytest.mark.parametrize(
    ("dims", "mode", "padding", "is_aligned"),
    [pytest.param(2, "bicubic", "reflection", True, marks=pytest.mark.long), (3, "bilinear", "border", False)],
)
def test_samples_of_a_grid(dims: int, mode: str, padding: str, is_aligned: bool, device: torch.device) -> None:
    image = torch.randn(2, 3, *(4, 5, 6)[3 - dims :])
    grid = torch.rand(2, *(2, 3, 4)[3 - dims :], dims) * 3 - 1.5

    def sample(image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(image, grid, mode, padding, is_aligned)

    check(sample, image, grid, device=device, tolerance=1e-4)


def test_samples_outside_of_an_image_take_nothing_of_it(device: torch.device) -> None:
    """Also where the image is NaN, and the gradient of a sample is infinite."""
    image = torch.full((1, 1, 3, 4), float("nan"), device=device, requires_grad=True)
    result = F.grid_sample(image, torch.full((1, 2, 2, 2), 3.0, device=device), align_corners=False)
    (grad,) = torch.autograd.grad(result, image, torch.full_like(result, float("inf")))
    assert not result.any()
    assert not grad.any()


@pytest.mark.parametrize("size", [(2, 3, 4), pytest.param((7, 5, 9), marks=pytest.mark.long)])
def test_means_of_boxes(size: tuple[int, ...], device: torch.device) -> None:
    check(lambda x: F.adaptive_avg_pool3d(x, size), torch.randn(2, 3, 5, 6, 7), device=device)
    assert F.adaptive_avg_pool3d(torch.randn(0, 3, 5, 6, 7, device=device), size).shape == (0, 3, *size)


def test_largest_elements_and_copies_of_edges(device: torch.device) -> None:
    check(lambda x: F.max_pool3d(x, 2, stride=1, padding=1), torch.randn(2, 3, 4, 5, 3), device=device)
    image = torch.randn(2, 3, 5, 6)
    check(lambda x: F.adaptive_max_pool2d(x, (3, 4)), image, device=device)
    check(lambda x: F.adaptive_avg_pool2d(x, (3, 9)), image.to(memory_format=torch.channels_last), device=device)
    check(lambda x: F.pad(x, (2, -1, 0, 3), "replicate"), image, device=device)


def test_distances(device: torch.device) -> None:
    x, y = torch.randn(2, 4, 3), torch.randn(5, 3)
    check(lambda x, y: torch.cdist(x, y, p=1.5), x, y, device=device)
    check(F.pdist, y, device=device)
    check(F.pdist, torch.randn(1, 3), device=device)


def test_losses_by_margins(device: torch.device) -> None:
    x, weight = torch.randn(4, 5), torch.rand(5)
    single, several = (
        torch.tensor([0, 4, 2, 2]),
        torch.tensor([[3, 0, -1, 1, 1], [-1, 0, 0, 0, 0], [4] * 5, [0, 1, 2, 3, 4]]),
    )
    check(lambda x: F.multi_margin_loss(x, single.to(x.device), 2, 0.7, weight.to(x.device)), x, device=device)
    check(lambda x: F.multilabel_margin_loss(x, several.to(x.device), reduction="none"), x, device=device)
    # Of the element type of its input, to which autograd would convert it.
    operator = torch.ops.aten.multi_margin_loss_backward
    grad = torch.ones(())
    result = operator(grad.double().to(device), x.double().to(device), single.to(device), 1, 1.0)
    torch.testing.assert_close(result.cpu(), operator(grad.double(), x.double(), single, 1, 1.0))


@pytest.mark.parametrize("dtypes", [(torch.float64, torch.float32), (torch.bfloat16, torch.float32)], ids=str)
def test_gradients_of_tensors_of_two_types(device, dtypes):
    """Called directly: autograd gives these operators tensors of one type and of shapes that fit."""
    aten = torch.ops.aten
    for first, second in (dtypes, dtypes[::-1]):
        grad, x = torch.randn(5, dtype=first), torch.randn(5, dtype=second)
        check_call(aten.mish_backward, grad, x, device=device)
        check_call(aten.mse_loss_backward, grad, x, torch.randn(5, dtype=first), 1, device=device)
    check_call(aten.native_dropout_backward, torch.arange(5), x, 2.0, device=device)
    check_call(aten._prelu_kernel_backward, x, x.flip(0), x.cos().reshape(1, 5), device=device)


def test_gradients_of_large_numbers(device):
    x = torch.tensor([8.0, 12.0, 30.0, 1e10, 1e30, -12.0, -30.0, -1e10])
    for function in (F.mish, lambda x: F.gelu(x, approximate="tanh"), torch.tanh, F.softsign, F.logsigmoid, F.silu):
        check(function, x, device=device)


def test_losses_of_classes_with_gradients_that_are_not_finite(device):
    """Elements beside the target get 0, which infinity times 0 is not."""
    for x, target in (
        (torch.randn(4, 5), torch.tensor([1, 0, 4, 1])),
        (torch.randn(2, 3, 2, 2), torch.ones(2, 2, 2).long()),
    ):
        for scale in (float("inf"), float("nan"), 2.0):
            for options in ({}, {"ignore_index": 1}, {"weight": torch.rand(x.shape[1]), "reduction": "sum"}):

                def loss(x, target=target, scale=scale, options=options):
                    moved = {
                        name: value.to(x.device) if isinstance(value, torch.Tensor) else value
                        for name, value in options.items()
                    }
                    return F.nll_loss(x, target.to(x.device), **moved) * scale

                check(loss, x, device=device)


def check_call(operator: Any, *arguments: Any, device: torch.device) -> None:
    """Compare a call with the CPU's, which on an older torch may refuse it: then the device refuses it too."""
    moved = [value.to(device) if isinstance(value, torch.Tensor) else value for value in arguments]
    try:
        expected = operator(*arguments)
    except RuntimeError as refused:
        with pytest.raises(RuntimeError, match=re.escape(str(refused))):
            operator(*moved)
        return
    results, expected = (value if isinstance(value, tuple) else (value,) for value in (operator(*moved), expected))
    torch.testing.assert_close([result.cpu() for result in results], list(expected))
