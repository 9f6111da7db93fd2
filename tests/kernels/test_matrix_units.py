# SPDX-License-Identifier: BSD-3-Clause
"""Products through matrix units, against float64: every shape at an edge, every layout, every type of a unit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_outboard
from torch_outboard import _C, NotSupportedError
from torch_outboard.compile.generators import generators
from torch_outboard.kernels import bringup, builder
from torch_outboard.kernels.templates.schedules import attention_matrix_gradients, matrix
from torch_outboard.kernels.tune import measuring, schedule_table
from torch_outboard.testing.database.calls import poison

from .device_kernels import UNUSED, has_exchange

r = torch.randn
TYPES = [torch.bfloat16, torch.float16, torch.float32]


def served() -> list[torch.dtype]:
    """Return the types for which the device has units."""
    return [unit.dtype for unit in generators().eager().dialect.units if not unit.is_rounded]


@pytest.fixture(autouse=True)
def _has_units(device: torch.device, request: pytest.FixtureRequest, own_plans: Callable[[], None]) -> Iterator[None]:
    call_spec = getattr(request.node, "callspec", None)
    if (call_spec.params.get("dtype", torch.bfloat16) if call_spec else torch.bfloat16) not in served():
        pytest.skip("capability: a matrix unit of the type in the dialect")
    _C.set_providers(0, 2, 1)  # a driver's libraries come before generated kernels
    _C.set_fallback_mode("error")
    yield
    _C.set_providers(1, 2, 1)
    _C.set_fallback_mode(os.environ.get("OUTBOARD_FALLBACK", "warn"))


def whole(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    """Return integers whose products and sums are exact in float."""
    return torch.randint(-4, 5, sizes).to(dtype)


def check(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, device: torch.device) -> None:
    """Compare results with float64, rounded once to the type: sums of integers are exact."""
    ours = [tensor.to(device) for tensor in inputs]
    poison(device)
    got = function(*ours)
    assert torch.equal(got.cpu(), function(*[tensor.double() for tensor in inputs]).to(inputs[0].dtype))


def test_the_units_serve_their_types_and_no_others(device: torch.device) -> None:
    for dtype in (*TYPES, torch.float64):
        names = measuring.names_of(device, "^(product|convolution)", [str(dtype).removeprefix("torch.")])
        assert len(names) == 3 and all((".matrix " in name) == (dtype in served()) for name in names), names


# A tile has 64 by 64 results and 32 steps of two bytes, or 16 of four.
EDGES = [(63, 65, 67), (64, 64, 64), (65, 63, 31), (2, 129, 17), (67, 2, 2), (128, 3, 33), (61, 130, 128)]


@pytest.mark.parametrize("dtype", TYPES)
def test_sizes_at_the_edges_of_tiles(dtype: torch.dtype, device: torch.device) -> None:
    for rows, columns, depth in EDGES:
        check(torch.mm, whole(rows, depth, dtype=dtype), whole(depth, columns, dtype=dtype), device=device)


def test_sizes_of_one_and_none(device: torch.device) -> None:
    for rows, columns, depth in ((1, 1, 1), (1, 35, 35), (35, 1, 35), (35, 35, 1)):
        x, y = whole(rows, depth, dtype=torch.bfloat16), whole(depth, columns, dtype=torch.bfloat16)
        check(torch.mm, x, y, device=device)
    for rows, columns, depth in ((0, 5, 5), (5, 0, 5), (5, 5, 0)):
        x, y = whole(rows, depth, dtype=torch.bfloat16), whole(depth, columns, dtype=torch.bfloat16)
        check(torch.mm, x, y, device=device)


# Adjacent elements of an operand belong to one line or to one step, or none are adjacent.
LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x,
    lambda x: x.t().contiguous().t(),
    lambda x: F.pad(x, (1, 2, 1, 0))[1:, 1:-2],  # rows that are not aligned
    lambda x: x.repeat_interleave(2, 1)[:, ::2],
]


@pytest.mark.parametrize(
    ("dtype", "left", "right"),
    [
        (torch.bfloat16, 1, 1),
        (torch.float16, 0, 1),
        (torch.float16, 1, 2),
        (torch.float32, 1, 3),
        (torch.float16, 3, 0),
    ],
)
def test_operands_lie_in_any_way(dtype: torch.dtype, left: int, right: int, device: torch.device) -> None:
    for rows, columns, depth in EDGES:
        x, y = whole(rows, depth, dtype=dtype), whole(depth, columns, dtype=dtype)
        ours = LAYOUTS[left](x).to(device), LAYOUTS[right](y).to(device)
        poison(device)
        assert torch.equal((ours[0] @ ours[1]).cpu(), (x.double() @ y.double()).to(dtype))


def among_nans(x: torch.Tensor, offset: int, device: torch.device) -> torch.Tensor:
    """Return a copy on the device whose rows begin anywhere, with NaNs around them."""
    around = torch.full((x.shape[0] + 2, offset + x.shape[1] + 9), float("nan"), dtype=x.dtype).to(device)
    around[1:-1, offset : offset + x.shape[1]] = x.to(device)
    return around[1:-1, offset : offset + x.shape[1]]


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_begin_anywhere(dtype: torch.dtype, device: torch.device) -> None:
    """Elements that are not aligned are shifted out of aligned ones."""
    shapes = ((1, 1, 1), (5, 67, 33), (65, 7, 40), (3, 129, 8), (64, 9, 127))
    for offset, (rows, columns, depth) in enumerate((*shapes, *shapes[1:])):
        x, y = whole(rows, depth, dtype=dtype), whole(depth, columns, dtype=dtype)
        for turns in (False, True) if offset < 5 else (offset % 2 == 0,):  # adjacent elements are of a line or a step
            left, right = (
                among_nans(matrix.t(), at, device).t() if turns else among_nans(matrix, at, device)
                for matrix, at in ((x, offset), (y, 7 - offset % 8))
            )
            poison(device)
            assert torch.equal((left @ right).cpu(), (x.double() @ y.double()).to(dtype)), (offset, turns)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_schedule_is_right(dtype: torch.dtype, device: torch.device, own_plans: Callable[[], None]) -> None:
    """Large tiles, half as many steps: in a batch, with an added row and factors, from aligned and other rows."""
    (name,) = measuring.names_of(device, "^product", [str(dtype).removeprefix("torch.")])
    for depth, columns in ((50, 127), (136, 264), (24, 264)):
        x, y = whole(2, 131, depth, dtype=dtype), whole(2, depth, columns, dtype=dtype)
        row = whole(columns, dtype=dtype)
        for values in ((1, 32), (1, 16), (512, 16)) if dtype == torch.bfloat16 else ((1, 16),):
            own_plans()
            with schedule_table.use_schedules({name: dict(zip(("many", "steps"), values, strict=True))}):
                check(lambda row, x, y: torch.baddbmm(row, x, y, beta=2, alpha=0.5), row, x, y, device=device)


def test_random_numbers_are_within_the_bounds_of_float_sums(device: torch.device) -> None:
    for dtype in served():
        x, y = r(70, 300).to(dtype), r(300, 66).to(dtype)
        want, size = x.double() @ y.double(), x.double().abs() @ y.double().abs()
        bound = torch.finfo(dtype).eps * want.abs() + 300 * torch.finfo(torch.float32).eps * size
        assert ((x.to(device) @ y.to(device)).cpu().double() - want).abs().le(bound).all()


def test_what_is_not_finite_stays_in_its_row_and_column(device: torch.device) -> None:
    x, y = torch.ones(66, 33, dtype=torch.float16), torch.ones(33, 65, dtype=torch.float16)
    x[65, 32], y[32, 64] = float("inf"), float("nan")
    got = (x.to(device) @ y.to(device)).cpu()
    assert got[65, :64].isinf().all() and got[:, 64].isnan().all() and (got[:65, :64] == 33).all()


def test_additions(device: torch.device) -> None:
    x, y = whole(40, 33, dtype=torch.bfloat16), whole(33, 20, dtype=torch.bfloat16)
    check(lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), whole(40, 1, dtype=x.dtype), x, y, device=device)
    nans = torch.full((20,), float("nan"), dtype=x.dtype)
    assert not torch.addmm(nans.to(device), x.to(device), y.to(device), beta=0).cpu().isnan().any()


def check_convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, sizes: list[Any], device: torch.device
) -> None:
    """Compare a convolution and its gradients with float64."""
    dtype = x.dtype
    grad = whole(*torch.convolution(x.float(), weight.float(), None, *sizes).shape, dtype=dtype)

    def results(x, weight, bias, grad):
        out = torch.convolution(x, weight, bias, *sizes)
        return out, *torch.ops.aten.convolution_backward(grad, x, weight, None, *sizes, [True, True, False])[:2]

    if x.dim() == 4 and x.stride(1) == 1:
        grad = grad.contiguous(memory_format=torch.channels_last)
    operands = [x, weight, bias, grad]
    wanted = results(*[tensor if tensor is None else tensor.double() for tensor in operands])
    ours = [tensor if tensor is None else tensor.to(device) for tensor in operands]
    poison(device)
    for got, want in zip(results(*ours), wanted, strict=True):
        assert torch.equal(got.cpu(), want.to(dtype))


def last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def test_convolutions_and_their_gradients(device: torch.device) -> None:
    """Few channels, which are copied to fill 16 bytes."""
    for dtype, groups in ((served()[0], 1), (served()[-1], 2)):
        x, weight = whole(2, 6, 9, 11, dtype=dtype), whole(10, 6 // groups, 3, 2, dtype=dtype)
        check_convolution(x, weight, whole(10, dtype=dtype), [[2, 1], [1, 1], [1, 2], False, [0, 0], groups], device)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_whose_channels_are_adjacent(groups: int, device: torch.device) -> None:
    options = [[1, 1], [1, 1], [1, 1], False, [0, 0], groups]
    for dtype in served()[:1] if groups == 2 else served():
        x, weight = last(whole(2, 32, 7, 5, dtype=dtype)), last(whole(48, 32 // groups, 3, 3, dtype=dtype))
        check_convolution(x, weight, None, options, device)
    by_two = [[2, 2], [0, 1], [1, 1], False, [0, 0], groups]
    check_convolution(x[:, :, 1:, 1:], weight.contiguous(), whole(48, dtype=dtype), by_two, device)
    if groups == 2:  # 18 channels of a group are copied to fill 24
        x, weight = last(whole(1, 36, 5, 6, dtype=dtype)), last(whole(34, 18, 3, 1, dtype=dtype))
        check_convolution(x, weight, None, options, device)


def test_transposed_convolutions(device: torch.device) -> None:
    dtype = served()[0]
    for channels, size in ((16, 24), (5, 3)):
        x, weight = whole(2, channels, 5, 4, dtype=dtype), whole(channels, size, 3, 2, dtype=dtype)
        sizes = [[2, 1], [1, 0], [1, 1], True, [1, 0], 1]
        check_convolution(x, weight, whole(size, dtype=dtype), sizes, device)
        check_convolution(last(x), last(weight), None, sizes, device)


def test_convolutions_of_one_and_of_three_dimensions(device: torch.device) -> None:
    dtype = served()[0]
    for rank in (1, 3):
        x, weight = whole(2, 16, *[5] * rank, dtype=dtype), whole(8, 16, *[3] * rank, dtype=dtype)
        check_convolution(x, weight, None, [[2] * rank, [1] * rank, [1] * rank, False, [0] * rank, 1], device)


def test_pairs_of_results_lie_in_one_image(device: torch.device) -> None:
    """An image of an odd number of pixels ends between two results that a lane stores."""
    x, weight = whole(3, 8, 5, 3, dtype=torch.bfloat16), whole(6, 8, 1, 1, dtype=torch.bfloat16)
    check_convolution(x, weight, None, [[1, 1], [0, 0], [1, 1], False, [0, 0], 1], device)


# Channels of images and results, pixels, sizes of windows, strides, padding, dilation, groups.
APART: list[tuple[Any, ...]] = [
    (8, 16, (5, 7), (3, 3), (2, 2), (1, 1), (1, 1), 1),
    (8, 9, (6, 4), (1, 1), (2, 2), (0, 0), (1, 1), 1),  # most phases have no places
    (16, 8, (8, 5), (2, 2), (2, 2), (0, 1), (1, 1), 1),
    (3, 8, (9, 11), (7, 5), (2, 3), (3, 1), (1, 1), 1),
    (32, 32, (6, 7), (3, 2), (3, 1), (1, 2), (1, 2), 2),
    (8, 8, (1, 2), (4, 1), (4, 2), (3, 0), (2, 1), 1),  # dilated where windows are apart: in no phases
    (40, 8, (13,), (5,), (4,), (2,), (1,), 1),
    (8, 24, (3, 4, 5), (2, 3, 1), (2, 1, 3), (1, 1, 0), (1, 1, 1), 1),
]


@pytest.mark.parametrize("is_transposed", [True, False])
def test_convolutions_whose_windows_are_apart(is_transposed: bool, device: torch.device) -> None:
    """The pixels of a phase meet the same places of windows."""
    for number, (channels, results, pixels, window, stride, padding, dilation, groups) in enumerate(APART):
        dtype = served()[number % len(served())]
        sides = (results, channels // groups) if not is_transposed else (channels, results // groups)
        x, weight = whole(2, channels, *pixels, dtype=dtype), whole(*sides, *window, dtype=dtype)
        more = [step - 1 if is_transposed and number % 2 else 0 for step in stride]
        bias = whole(results, dtype=dtype) if number % 2 else None
        sizes = [list(stride), list(padding), list(dilation), is_transposed, more, groups]
        if len(pixels) == 2 and number % 3 != 1:
            x, weight = last(x), last(weight)
        check_convolution(x, weight, bias, sizes, device)


@pytest.mark.parametrize("is_last", [True, False])
def test_convolutions_of_many_groups(is_last: bool, device: torch.device) -> None:
    """A group of few channels takes no unit."""
    dtype = served()[-1]
    for groups, more in ((12, 1), (3, 4)):
        x, weight = whole(2, 12, 9, 7, dtype=dtype), whole(12 * more // 2 * 2, 12 // groups, 3, 2, dtype=dtype)
        operands = [last(tensor) if is_last else tensor for tensor in (x, weight)]
        torch_outboard.reset_coverage()
        check_convolution(*operands, None, [[2, 1], [1, 1], [1, 1], False, [0, 0], groups], device)


def test_long_sums_are_split(device: torch.device) -> None:
    for rows, columns, depth in ((5, 70, 1100), (130, 3, 2049)):
        for dtype in served()[:2]:
            x, y = (torch.randint(-1, 2, size).to(dtype) for size in ((rows, depth), (depth, columns)))
            check(torch.mm, x, y, device=device)
    bias = whole(9, dtype=torch.bfloat16)
    x, y = (torch.randint(-1, 2, size).bfloat16() for size in ((2, 7, 1200), (2, 1200, 9)))
    check(lambda b, x, y: torch.baddbmm(b, x, y, beta=2), bias, x, y, device=device)
    # The gradient of a weight sums over all pixels.
    x, weight = last(torch.randint(-1, 2, (4, 8, 17, 19)).bfloat16()), last(whole(8, 8, 3, 3, dtype=torch.bfloat16))
    check_convolution(x, weight, None, [[1, 1], [1, 1], [1, 1], False, [0, 0], 1], device)
    x, weight = last(torch.randint(-1, 2, (4, 8, 17, 19)).bfloat16()), whole(8, 1, 3, 3, dtype=torch.bfloat16)
    check_convolution(x, weight, None, [[1, 1], [1, 1], [1, 1], False, [0, 0], 8], device)
    # So has that of an image whose windows are apart, of other lengths in each phase.
    x, weight = torch.randint(-1, 2, (1, 520, 3, 3)).bfloat16(), whole(520, 8, 3, 3, dtype=torch.bfloat16) // 4
    check_convolution(x, weight, whole(8, dtype=torch.bfloat16), [[2, 2], [1, 1], [1, 1], True, [0, 0], 1], device)


def skip_joint_sums() -> None:
    """Skip a test of attention by units, or of the places of a lane's sums, where lanes hold sums jointly."""
    if any(unit.sums for unit in generators().eager().dialect.units):
        pytest.skip("capability: a matrix unit whose lanes know their own sums")


def skip_long_compilations() -> None:
    """Skip a test whose kernels take a minute to compile where lanes exchange nothing. `make stress` has it."""
    if not has_exchange() and os.environ.get("OUTBOARD_TEST_LONG") != "1":
        pytest.skip("capability: time. Where lanes exchange nothing, its kernels take long to compile")


BOUNDS = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}


def attend(
    *inputs: torch.Tensor, mask: torch.Tensor | None = None, device: torch.device, **options: Any
) -> torch.Tensor:
    """Compare attention and the logarithms of its sums with float64, and return the result."""
    operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    ours = [tensor if tensor is None else tensor.to(device) for tensor in (*inputs, mask)]
    poison(device)
    torch_outboard.reset_coverage()
    got, logsumexp, *_ = operator(*ours, **options)
    assert {row.op for row in torch_outboard.coverage()} == {operator.default._schema.name}
    query, key, value = (tensor.double() for tensor in inputs)
    repeats = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5 + (0 if mask is None else mask.double())
    if options.get("is_causal"):
        scores.masked_fill_(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
    bound = BOUNDS[inputs[0].dtype]
    torch.testing.assert_close(got.cpu().double(), scores.softmax(-1).nan_to_num() @ value, atol=bound, rtol=bound)
    some = scores.logsumexp(-1).isfinite()
    torch.testing.assert_close(logsumexp.cpu().double()[some], scores.logsumexp(-1)[some], atol=bound, rtol=bound)
    return got.cpu()


@pytest.mark.parametrize("dtype", TYPES)
def test_attention(dtype: torch.dtype, device: torch.device) -> None:
    skip_joint_sums()
    assert "attention.matrix" in measuring.names_of(device, "^attention", [str(dtype).removeprefix("torch.")])[0]
    skip_long_compilations()
    for queries, keys in ((70, 130), (3, 65)) if has_exchange() else ((70, 130),):
        heads = (
            r(2, length, size, 40).to(dtype).transpose(1, 2) for length, size in ((queries, 4), (keys, 2), (keys, 2))
        )
        attend(*heads, is_causal=True, device=device)


def check_whole() -> None:
    """Check that attention and its gradients ran, and none of the operators of which they are made without kernels."""
    ran = {row.op for row in torch_outboard.coverage() if "detach" not in row.op}
    assert ran == {f"aten::_scaled_dot_product_fused_attention_overrideable{suffix}" for suffix in ("", "_backward")}


def differentiate(*inputs: torch.Tensor, device: torch.device, **options: Any) -> None:
    """Compare gradients of attention with those in float64."""
    grad = r(*inputs[0].shape[:-1], inputs[2].shape[-1]).to(inputs[0].dtype)

    def gradients(inputs: list[torch.Tensor], grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = [tensor.detach().requires_grad_() for tensor in inputs]
        options["enable_gqa"] = inputs[0].shape[1] != inputs[1].shape[1]
        return torch.autograd.grad(F.scaled_dot_product_attention(*inputs, **options), inputs, grad)

    wanted = gradients([tensor.double() for tensor in inputs], grad.double())
    ours = [tensor.to(device) for tensor in (*inputs, grad)]
    poison(device)
    torch_outboard.reset_coverage()
    results = gradients(ours[:3], ours[3])
    check_whole()
    bound = 4 * BOUNDS[grad.dtype]
    for got, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(got.cpu().double(), want, atol=bound, rtol=bound)


@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_of_attention(dtype: torch.dtype, device: torch.device) -> None:
    skip_joint_sums()
    name = str(dtype).removeprefix("torch.")
    assert "attention_gradients.matrix" in measuring.names_of(device, "^attention_gradients", [name])[0]
    skip_long_compilations()
    # In the second case, the last keys take no part.
    for queries, keys in ((70, 100), (35, 131)) if has_exchange() else ((35, 131),):
        heads = [r(1, count, rows, 24).to(dtype) for count, rows in ((2, queries), (1, keys), (1, keys))]
        differentiate(*heads, is_causal=True, device=device)


@pytest.mark.parametrize("head", [40, 64, 128])
def test_gradients_of_many_queries_and_keys(head: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose groups have large tiles, of two matrices a lane, if enough groups are left and registers suffice."""
    if not has_exchange():
        pytest.skip("capability: time. Where lanes exchange nothing, its kernels take long to compile")
    monkeypatch.setattr(builder, "_keeps", lambda: False)
    monkeypatch.setattr(attention_matrix_gradients, "_ENOUGH_LARGE_TILES", 1)
    tilings = []
    original = attention_matrix_gradients.Sizes.tiling

    def tiling(sizes: attention_matrix_gradients.Sizes) -> Any:
        tilings.append((sizes.down, sizes.rows))
        return original(sizes)

    monkeypatch.setattr(attention_matrix_gradients.Sizes, "tiling", tiling)
    for queries, keys, is_causal in ((150, 197, False), (131, 263, True)):
        heads = [r(1, count, rows, head).to(served()[0]) for count, rows in ((2, queries), (1, keys), (1, keys))]
        differentiate(*heads, is_causal=is_causal, device=device)
    if generators().eager().dialect.dynamic and head == 64:
        assert (2, 128) in tilings


def test_causal_attention_of_many_heads(device: torch.device) -> None:
    """The longest tiles of 64 heads come first, then those of the two others."""
    if not has_exchange():
        pytest.skip("capability: time. Where lanes exchange nothing, its kernels take long to compile")
    heads = [r(3, count, 130, 8).to(served()[0]) for count in (22, 11, 11)]
    attend(*heads, is_causal=True, device=device)
    differentiate(*heads, is_causal=True, device=device)


def test_gradients_of_shared_keys_are_split(device: torch.device) -> None:
    """Groups share the heads of queries that a head of keys serves: as many as there are, or fewer."""
    if not has_exchange():
        pytest.skip("capability: time. Where lanes exchange nothing, its kernels take long to compile")
    for count, key_count, queries, keys in ((7, 1, 9, 65), (12, 4, 66, 3)):
        sizes = ((count, queries), (key_count, keys), (key_count, keys))
        differentiate(*(r(2, heads, rows, 24).to(served()[0]) for heads, rows in sizes), device=device)


@pytest.mark.parametrize("dtype", TYPES[:1])
def test_attention_by_the_size_of_heads(dtype: torch.dtype, device: torch.device) -> None:
    """Small heads have two matrices of queries a lane, large ones fewer keys."""
    if not has_exchange():
        pytest.skip("capability: time. Where lanes exchange nothing, its kernels take long to compile")
    for head, queries, keys, is_causal in ((64, 150, 129, False), (128, 129, 65, True), (256, 7, 33, False)):
        heads = [r(1, 2, length, head).to(dtype) for length in (queries, keys, keys)]
        attend(*heads, is_causal=is_causal, device=device)
        differentiate(*heads, is_causal=is_causal, device=device)


def test_attention_with_masks_and_wide_heads(device: torch.device) -> None:
    skip_long_compilations()
    dtype = served()[-1]
    mask = torch.zeros(2, 1, 70, 90, dtype=dtype).masked_fill_(torch.rand(2, 1, 70, 90) > 0.5, float("-inf"))
    mask[0, :, 5:60] = float("-inf")
    result = attend(*(r(2, 2, rows, 17).to(dtype) for rows in (70, 90, 90)), mask=mask, device=device)
    assert (result[0, :, 5:60] == 0).all(), "for which no key is left"
    attend(r(1, 1, 9, 130).to(dtype), r(1, 1, 70, 130).to(dtype), r(1, 1, 70, 136).to(dtype), device=device)


def masks_gradient(
    sizes: tuple[int, ...],
    shape: tuple[int, ...],
    dtypes: tuple[torch.dtype, torch.dtype],
    device: torch.device,
    *,
    is_whole: bool = True,
) -> None:
    """Compare the gradients of attention and of its mask with those in float64."""
    batch, heads, key_heads, queries, keys, head = sizes
    rows = ((heads, queries), (key_heads, keys), (key_heads, keys), (heads, queries))
    inputs = [r(batch, count, length, head).to(dtypes[0]) for count, length in rows]
    mask = r(shape).masked_fill_(torch.rand(shape) > 0.8, float("-inf")).to(dtypes[1])
    mask[..., 0, :] = float("-inf")  # a query without keys

    def gradients(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *inputs, grad = (tensor.detach().requires_grad_() for tensor in inputs)
        result = F.scaled_dot_product_attention(*inputs[:3], attn_mask=inputs[3], enable_gqa=heads != key_heads)
        return torch.autograd.grad(result, inputs, grad)

    wanted = gradients(*[tensor.double() for tensor in (*inputs[:3], mask, inputs[3])])
    ours = [tensor.to(device) for tensor in (*inputs[:3], mask, inputs[3])]
    poison(device)
    torch_outboard.reset_coverage()
    results = gradients(*ours)
    if is_whole:
        check_whole()
    for got, want in zip(results, wanted, strict=True):
        assert got.shape == want.shape
        bound = 8 * BOUNDS[dtypes[0]]  # a mask's gradient is a sum over all that share it
        torch.testing.assert_close(got.cpu().double(), want.nan_to_num(), atol=bound, rtol=bound)


def test_gradients_of_masks(device: torch.device) -> None:
    """Of masks that all batches or all heads share, of as many queries and keys."""
    skip_joint_sums()
    if not has_exchange():
        pytest.skip("capability: time. Where lanes exchange nothing, its kernels take long to compile")
    dtype = served()[0]
    masks_gradient((3, 4, 2, 70, 67, 24), (1, 4, 70, 67), (dtype, dtype), device)
    masks_gradient((3, 4, 2, 65, 1, 24), (3, 1, 65, 1), (dtype, dtype), device)
    masks_gradient((2, 3, 3, 1, 131, 24), (1, 131), (dtype, torch.float32), device)
    masks_gradient((2, 3, 3, 64, 64, 64), (2, 3, 64, 64), (served()[-1], torch.float32), device)
    masks_gradient((1, 2, 2, 9, 66, 200), (2, 9, 66), (dtype, dtype), device)
    # Groups share the batches and heads, of windows as in Swin.
    masks_gradient((19, 2, 2, 9, 7, 24), (1, 2, 9, 7), (dtype, dtype), device)
    masks_gradient((17, 3, 3, 5, 67, 24), (5, 67), (served()[-1], torch.float32), device)


@pytest.mark.filterwarnings(f"ignore:{UNUSED}")
def test_gradients_of_masks_whose_kernels_do_not_compile(device: torch.device, change_texts: Any) -> None:
    skip_joint_sums()
    change_texts(lambda name, code: code.replace(b"score", b"@") if "attention" in name else code)
    dtype = served()[0]
    masks_gradient((2, 4, 2, 9, 11, 8), (1, 4, 9, 11), (dtype, torch.float32), device, is_whole=False)
    masks_gradient((2, 4, 4, 9, 11, 8), (9, 11), (dtype, dtype), device, is_whole=False)


@pytest.fixture
def rounds() -> Iterator[Callable[[bool, bool], None]]:
    """Return the function that lets products and convolutions of float32 be rounded."""
    if not any(unit.is_rounded for unit in generators().eager().dialect.units):
        pytest.skip("capability: a matrix unit that rounds float32")
    products, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    def switch(for_products: bool, for_convolutions: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = for_products
        torch.backends.cudnn.set_flags(_allow_tf32=for_convolutions, _fp32_precision=None)  # type: ignore[no-untyped-call]

    yield switch
    switch(products, convolutions)


def test_float32_is_rounded_where_torch_allows_it(rounds: Callable[[bool, bool], None], device: torch.device) -> None:
    """A number of 12 bits behind the point is rounded, or is not, by the switch of its operator."""
    x, identity = torch.full((2, 5), 1 + 2.0**-12).to(device), torch.eye(5).to(device)
    image, weight = x.reshape(1, 2, 5, 1), torch.eye(2).reshape(2, 2, 1, 1).to(device)
    operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    for switches in ((True, False), (False, True), (False, False), (True, True)):
        rounds(*switches)
        are_rounded = [result.cpu()[0, 0].flatten()[0] == 1 for result in (x @ identity, F.conv2d(image, weight))]
        assert are_rounded == list(switches), switches
        assert operator(image, image, image)[0].cpu()[0, 0, 0, 0] != 1, "attention is not rounded"


def test_products_that_are_rounded(rounds: Callable[[bool, bool], None], device: torch.device) -> None:
    """Integers that TF32 has, in any layout; halves of the last bit are rounded away from zero."""
    rounds(True, False)
    for rows, columns, depth in ((63, 65, 67), (65, 63, 32), (3, 130, 17), (1, 1, 1), (0, 5, 5), (5, 5, 0)):
        x, y = whole(rows, depth, dtype=torch.float32), whole(depth, columns, dtype=torch.float32)
        check(torch.mm, x, y, device=device)
    for left, right in ((0, 1), (1, 2), (2, 3)):
        x, y = whole(35, 37, dtype=torch.float32), whole(37, 66, dtype=torch.float32)
        ours = LAYOUTS[left](x.to(device)), LAYOUTS[right](y.to(device))
        poison(device)
        assert torch.equal((ours[0] @ ours[1]).cpu(), (x.double() @ y.double()).float())
    x, y = r(70, 300), r(300, 66)
    bits = x.view(torch.int32) + 0x1000 & ~0x1FFF, y.view(torch.int32) + 0x1000 & ~0x1FFF
    want, size = (
        function(bits[0].view(torch.float32).double()) @ function(bits[1].view(torch.float32).double())
        for function in (lambda z: z, torch.abs)
    )
    assert ((x.to(device) @ y.to(device)).cpu().double() - want).abs().le(300 * 2.0**-23 * size).all()


def test_convolutions_that_are_rounded(rounds: Callable[[bool, bool], None], device: torch.device) -> None:
    rounds(False, True)
    dtype = torch.float32
    for channels, stride, groups in ((3, 2, 1), (32, 1, 2)):
        x, weight = whole(2, channels, 7, 5, dtype=dtype), whole(18, channels // groups, 3, 3, dtype=dtype)
        check_convolution(x, weight, None, [[stride] * 2, [1, 1], [1, 1], False, [0, 0], groups], device)
        check_convolution(last(x), last(weight), None, [[1, 1], [1, 0], [1, 1], False, [0, 0], groups], device)


def test_a_unit_that_does_not_divide_tiles_is_refused(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_keeps", lambda: False)
    monkeypatch.setattr(matrix, "_SMALL", 20)  # tiles that no unit divides
    x = r(5, 5).bfloat16().to(device)
    words = r"the matrix unit '\w+' of \d+ by \d+ by \d+ and \d+ lanes doesn't divide tiles of 20 by 20"
    with pytest.raises(NotSupportedError, match=words):
        torch.mm(x, x)


def test_a_wrong_unit_is_found_by_the_figures(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, own_plans: Callable[[], None]
) -> None:
    """A unit whose text multiplies in another way than its places say."""
    skip_joint_sums()
    monkeypatch.setattr(builder, "_keeps", lambda: False)
    generator = type(generators().eager())
    (unit,) = (candidate for candidate in generator.dialect.units if candidate.dtype == torch.bfloat16)
    right, speed = bringup._products(unit, device, 64, 1)
    assert right.value == 0 and right.is_reached and speed.value > 0 and speed.is_reached
    swapped = replace(unit, result=replace(unit.result, row=f"{unit.m - 1} - ({unit.result.row})"))
    monkeypatch.setattr(generator, "dialect", replace(generator.dialect, units=(swapped,)))
    own_plans()
    wrong, _ = bringup._products(swapped, device, 64, 1)
    assert wrong.value > 1000 and not wrong.is_reached
