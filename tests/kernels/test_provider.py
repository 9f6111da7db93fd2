# SPDX-License-Identifier: BSD-3-Clause
"""Eager operators run as generated kernels of the device, with the results of the CPU's kernels."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_map

import torch_outboard
from torch_outboard import _C, NotSupportedError
from torch_outboard.kernels import refused_operators
from torch_outboard.kernels.reasons import explained
from torch_outboard.testing.database.calls import poison

from .device_kernels import UNUSED


def run(function: Callable[..., Any], *arguments: Any, device: torch.device, has_strides_of_one: bool = True) -> Any:
    """Compare a function's results on the device, and its changes to its arguments, with the CPU's.

    `has_strides_of_one` compares the strides of dimensions of size 1 too, which lead to no element.
    """

    def strides(x: torch.Tensor) -> list[int]:
        return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if has_strides_of_one or size != 1]

    ours = tree_map(lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, arguments)
    poison(device)
    torch_outboard.reset_coverage()
    got = function(*ours)
    providers = {row.provider for row in torch_outboard.coverage()}
    assert providers <= {"generated"}, torch_outboard.coverage()
    theirs = tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, arguments)
    want = function(*theirs)
    for left, right in zip(tree_leaves((got, ours)), tree_leaves((want, theirs)), strict=True):
        if isinstance(right, torch.Tensor):
            torch.testing.assert_close(left.cpu(), right, equal_nan=True)
            assert strides(left) == strides(right) or right.numel() == 0
    return got


def compiled(op: str) -> int:
    return torch_outboard.coverage().calls(op, "generated")


r = torch.randn


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x, y: (x + y, x * y - 1, x.maximum(y), x > y), (r(5, 7), r(7))),
        (lambda x: (x.t() * 2, x[::2, 1:].exp(), x.expand(3, 5, 7).sin()), (r(5, 7),)),
        (lambda x, y: (x + y, x.sum(), x.relu()), (r(()), r(()))),
        (lambda x: (x + 1, x.sum(1), x.sum()), (r(0, 4),)),
        (lambda x, y: torch.where(x > y, x, y), (r(4, 1, 3), r(5, 1))),
        (lambda x: (x.softmax(-1), x.log_softmax(0), x.mean(0), x.var(1), x.argmax(1), x.cumsum(1)), (r(9, 33),)),
        (lambda x: (F.gelu(x), F.layer_norm(x, (33,)), x.amax(0), x.prod(1)), (r(9, 33),)),
        (lambda x: (torch.cat([x, x * 2], 1), torch.stack([x, x]), x.t().contiguous(), x.flip(0)), (r(4, 6),)),
        (lambda x: (x.double(), x.half().float(), x.int(), x.to(torch.bool)), (r(6, 3) * 5,)),
        (lambda x: (x + 2, x * 2.5, x / 2, x // 3, x > 1.5), (torch.randint(-9, 9, (3, 5)),)),
        (lambda x: (x.new_zeros(3) + torch.arange(3, device=x.device), torch.eye(3, 4, device=x.device)), (r(2),)),
    ],
)
def test_values(function: Callable[..., Any], arguments: tuple[Any, ...], device: torch.device) -> None:
    run(function, *arguments, device=device)


def test_indices(device: torch.device) -> None:
    places = torch.tensor([3, -1, 0])
    run(lambda x, i: (x[i], x[:, i], x[i, i], x.roll(1, 0)), r(5, 7), places, device=device)
    run(lambda x, i: (x.gather(0, i), F.embedding(i, x)), r(5, 3), torch.tensor([[3, 1, 0]]), device=device)
    with pytest.raises(IndexError, match="out of bounds"):
        torch.rand(5, device=device)[places.to(device) + 5]
        torch.accelerator.synchronize(device)
    run(lambda x, i: x[i], r(5, 7), places, device=device)
    x = torch.rand(5)
    assert torch.equal(x.to(device)[x.to(device) > 0.5].cpu(), x[x > 0.5])  # on copies


def test_an_index_is_reported_as_by_the_operator_that_was_called(device: torch.device) -> None:
    x, places = torch.rand(5, 2, device=device), torch.tensor([[1], [9]], device=device)
    for kind, name, call in (
        (IndexError, "index_select", lambda: x.index_select(0, places[:, 0])),
        (IndexError, "nll_loss_forward", lambda: F.nll_loss(x[:2], places[:, 0])),
        (RuntimeError, "gather", lambda: x.gather(0, places)),
        (RuntimeError, "scatter_add", lambda: x.scatter_add_(0, places, x[:2] * 1)),
        (RuntimeError, "index_add", lambda: x.index_add_(0, places[:, 0], x[:2] * 1)),
        (IndexError, "index_add", lambda: x[:, 0].clone().index_add_(0, places[:, 0], x[:2, 0] * 1)),
        (RuntimeError, "multi_margin_loss", lambda: F.multi_margin_loss(x[:2], places[:, 0])),
        (
            RuntimeError,
            "multilabel_margin_loss_forward",
            lambda: F.multilabel_margin_loss(x, places.new_full(x.shape, 9)),
        ),
    ):
        with pytest.raises(kind, match=f"aten::{name}: index 9 is out of bounds"):
            call()
            torch.accelerator.synchronize(device)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", ["index_select", "index_copy", "embedding"])
def test_negative_indices_are_refused_where_they_do_not_count_from_the_end(
    name: str, size: int, device: torch.device
) -> None:
    x, source = torch.rand(size, 2), torch.rand(1, 2)
    calls: dict[str, Callable[..., Any]] = {
        "index_select": lambda x, i, s: x.index_select(0, i),
        "index_copy": lambda x, i, s: x.index_copy(0, i, s),
        "embedding": lambda x, i, s: F.embedding(i, x),
    }
    for index in (-1, -size, size):
        indices = torch.tensor([index])
        with pytest.raises(IndexError):
            calls[name](x, indices, source)
        with pytest.raises(IndexError, match=f"index {index} is out of bounds for a dimension of size {size}"):
            calls[name](x.to(device), indices.to(device), source.to(device))
            torch.accelerator.synchronize(device)
    run(calls[name], x, torch.tensor([size - 1]), source, device=device)
    run(lambda x, i: x.index_fill(0, i, 2.0), x, torch.tensor([-1]), device=device)


def test_rows_are_selected_of_any_layout_and_type(device: torch.device) -> None:
    x, rows = r(3, 4, 5, 6), torch.tensor([2, 0, 2])
    for image in (x, x.to(memory_format=torch.channels_last), x.transpose(0, 3), x[:, ::2, 1:]):
        for dim in (0, 1, -1):
            index = rows.clamp_max(image.shape[dim] - 1)
            run(lambda x, i: x.index_select(dim, i), image, index, device=device)  # noqa: B023
            run(lambda x, i: x.index_select(dim, i), image, index.int(), device=device)  # noqa: B023
            source = image.index_select(dim, index) * 2
            run(lambda x, i, s: x.index_copy(dim, i, s), image, index[:2], source.narrow(dim, 0, 2), device=device)  # noqa: B023
            run(lambda x, i: x.index_fill(dim, i, 7), image, -1 - index, device=device)  # noqa: B023
    run(lambda x, i: x.index_select(0, i), torch.tensor(3.0), torch.tensor([0]), device=device)
    run(lambda x, i: x.index_select(0, i), torch.tensor(3.0), torch.tensor(0), device=device)
    run(lambda x, i: x.index_select(1, i), x, rows[:0], device=device)


_NAN = float("nan")


@pytest.mark.parametrize(
    ("call", "right", "wrong", "words"),
    [
        (torch.bernoulli, [0.0, 1.0], [[0.5, 2.0], [0.5, _NAN], [-1.0, 0.5]], "p_in >= 0 && p_in <= 1 to be true"),
        (lambda p: torch.empty_like(p).bernoulli_(p), [0.0, 1.0], [[0.5, 2.0]], "p_in >= 0 && p_in <= 1 to be true"),
        (lambda s: torch.normal(0.0, s), [0.0, 1.0], [[1.0, -1.0], [1.0, _NAN]], "all elements of std >= 0"),
        (lambda s: torch.normal(s.clone(), s), [0.0, 1.0], [[1.0, -1.0]], "all elements of std >= 0"),
        (lambda s: torch.normal(s[0].clone(), s[0]), [1.0], [[-1.0], [_NAN]], "all elements of std >= 0"),
        (lambda p: F.binary_cross_entropy(p, p * 0), [0.0, 1.0], [[0.5, 1.5]], "of input should be between 0 and 1"),
        (
            lambda i: F.max_unpool1d(torch.ones(1, 2, 1, device=i.device), i.long().view(1, 2, 1), 2),
            [0.0, 1.0],
            [[1.0, -1.0], [2.0, 0.0]],  # of another channel
            "invalid max index|index 2 is out of bounds",
        ),
        (torch.histc, [0.0, 1.0], [[1.0, _NAN], [1.0, float("inf")]], "range of .* is not finite"),
        (
            lambda s: torch.searchsorted(torch.tensor([3.0, 1.0], device=s.device), s[:1].float(), sorter=s.long()),
            [1.0, 0.0],
            [[1.0, 2.0], [-1.0, 0.0]],
            "sorter index out of range",
        ),
        (
            lambda v: torch.zeros(2, dtype=torch.uint8, device=v.device).index_fill(0, v[:1].long() * 0, v[1].long()),
            [0.0, -255.0],
            [[0.0, 256.0], [0.0, -256.0]],
            "without overflow",
        ),
    ],
)
def test_values_that_the_cpu_refuses(
    call: Callable[..., Any], right: list[float], wrong: list[list[float]], words: str, device: torch.device
) -> None:
    for values in wrong:
        tensor = torch.tensor(values)
        with pytest.raises(RuntimeError, match=words):
            call(tensor)
        with pytest.raises(RuntimeError, match=words):
            call(tensor.to(device))
            torch.accelerator.synchronize(device)
        tensor.to(device).neg().cpu()  # what comes behind it is not charged
    call(torch.tensor(right, device=device)).cpu()


def test_divisions_that_are_rounded_down(device: torch.device) -> None:
    places = torch.tensor([0.0, -0.0, 1, -3, 0.1, 1e-40, 1e38, float("inf"), -float("inf"), float("nan")])
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x, y = r(500).to(dtype), torch.randint(-50, 50, (500,)).to(dtype)
        # Quotients that round up to a whole number.
        run(lambda x, y: (x // y, torch.div(x, y, rounding_mode="floor")), x * y, x, device=device)
        special = places.to(dtype)
        run(lambda x, y: 1 / (x // y).nan_to_num(1), special[:, None], special, device=device)
    run(
        lambda x, y: (x // y, x % y, x // 2, x % -3),
        torch.randint(-50, 50, (500,)),
        torch.randint(1, 9, (500,)),
        device=device,
    )


def test_divisors_that_are_checked(device: torch.device) -> None:
    x, y = torch.arange(-8, 8, device=device), torch.ones(16, dtype=torch.int64, device=device)
    for divide in (torch.floor_divide, torch.remainder, torch.fmod):
        divide(x, y)
        y[11] = 0
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide(x, y)
            torch.accelerator.synchronize(device)
        y[11] = 1
    torch.accelerator.synchronize(device)


def test_what_a_kernel_cannot_warn_of(device: torch.device) -> None:
    for call in (
        lambda: torch.ones(1, device=device).std(),
        lambda: torch.ones(3, 2, device=device).var(1, correction=2),
    ):
        for _ in range(2):
            with pytest.warns(UserWarning, match=r"^(std|var)\(\): degrees of freedom is <= 0"):
                call()
    torch.ones(3, 2, device=device).var(0)


def test_arguments_are_given_back_with_the_call(device: torch.device) -> None:
    """The builder leaves Python's collector no object that holds the memory of a first call's arguments."""
    gc.collect()
    gc.disable()
    try:
        for call in (lambda x: x.exp2(), lambda x: x.nonzero(), lambda x: x.cumprod(0)):
            before = torch.accelerator.memory_allocated(device)
            x = torch.ones(317, 3, device=device)
            call(x)
            torch.accelerator.synchronize(device)
            del x
            assert torch.accelerator.memory_allocated(device) == before
    finally:
        gc.enable()


def test_in_place(device: torch.device) -> None:
    run(lambda x, y: x.add_(y), r(5, 7), r(7), device=device)
    run(lambda x: x[1:4, ::2].mul_(3), r(5, 7), device=device)
    run(lambda x: x.t().exp_(), r(5, 7), device=device)
    run(lambda x, y: x.copy_(y), r(5, 7), r(7, 5).double().t(), device=device)
    run(lambda x: x.add_(1.5), r(4).half(), device=device)
    run(lambda x: x.cumsum_(0), r(4, 3), device=device)


def test_in_place_with_an_argument_in_the_same_memory(device: torch.device) -> None:
    run(lambda x: x.add_(x), r(5, 7), device=device)
    run(lambda x: x.addcmul_(x, x), r(6, 6), device=device)
    run(lambda x: x[0].copy_(x[1]).add_(x[2]), r(6, 6), device=device)
    run(lambda x: torch.cumsum(x, 0, out=x), r(6, 6), device=device)


def test_out(device: torch.device) -> None:
    run(lambda x, y, out: torch.add(x, y, out=out), r(5, 7), r(7), r(5, 7), device=device)
    run(lambda x, y, out: torch.add(x, y, out=out), r(5, 7), r(7), r(7, 5).t(), device=device)
    run(lambda x, y: torch.add(x, y, out=x.new_empty(0)), r(5, 7), r(7), device=device)
    run(lambda x, y: torch.add(x, y, out=y), r(5, 5), r(5, 5), device=device)
    run(lambda x, y, out: torch.add(x, y, out=out), r(5), r(5), r(5).double(), device=device)
    run(
        lambda x, values, places: torch.max(x, 0, out=(values, places)),
        r(9, 4),
        r(4),
        torch.zeros(4).long(),
        device=device,
    )


def test_numbers_promote_as_on_the_cpu(device: torch.device) -> None:
    for dtype in (torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.float32, torch.float64):
        x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
        for number in (True, 3, 2.5):
            run(lambda x, number=number: (x + number, x * number, x == number), x, device=device)
    run(lambda x, y: (x + y, y * x), torch.tensor(2.0), torch.tensor(3.0).double(), device=device)
    run(lambda x: (x + 2.5, x * 3), torch.tensor(2.0), device=device)


def test_a_number_on_the_cpu_is_read_at_each_call(device: torch.device) -> None:
    x, number = torch.ones(4, device=device), torch.tensor(2.0)
    results = []
    for value in (2.0, 5.0, 7.0):
        number.fill_(value)
        results.append(x * number)
    assert [result.tolist() for result in results] == [[2.0] * 4, [5.0] * 4, [7.0] * 4]


def test_numbers_by_value_need_no_new_plan(device: torch.device) -> None:
    x, y, z = (torch.rand(6, 8) + 1 for _ in range(3))
    run(lambda x, y, z: x.addcdiv_(y, z, value=0.5), x, y, z, device=device)
    run(lambda x, y: torch.add(x, y, alpha=0.5), x, y, device=device)
    run(lambda x, y: x.lerp_(y, 0.1), x, y, device=device)
    before = _C.built_plans()
    for value in (0.25, -3.0, 1e-3, 0.5, 0.9):
        run(lambda x, y, value=value: x.lerp_(y, value), x, y, device=device)
        run(lambda x, y, z, value=value: x.addcdiv_(y, z, value=value), x, y, z, device=device)
        run(lambda x, y, value=value: torch.add(x, y, alpha=value), x, y, device=device)
    assert _C.built_plans() == before


def test_one_recipe_serves_many_sizes(device: torch.device) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.hypot(x, y)

    run(function, r(6, 10), r(10), device=device)
    before = _C.built_plans()
    for rows, columns in ((7, 11), (3, 100), (200, 2), (65, 33)):
        run(function, r(rows, columns), r(columns), device=device)
    assert _C.built_plans() == before
    run(function, r(1, 10), r(10), device=device)  # broadcast along a dimension that was none before
    assert _C.built_plans() == before + 1


def test_one_recipe_finds_elements_of_many_sizes(device: torch.device) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.isin(x[:, -1:], y), torch.isin(x[:, -1:], y, invert=True)

    run(function, torch.randint(0, 9, (4, 7)), torch.randint(0, 9, (20,)), device=device)
    before = _C.built_plans()
    for columns in (18, 60, 100):  # of one order, which counts on a GPU
        run(function, torch.randint(0, 9, (5, columns)), torch.randint(0, 9, (columns,)), device=device)
    assert _C.built_plans() == before
    run(torch.isin, torch.randint(0, 9, (4, 7)), torch.randint(0, 9, (2, 3)), device=device)
    run(torch.isin, torch.randint(0, 9, (4, 7)), torch.empty(0, dtype=torch.int64), device=device)


def test_views_stay_views(device: torch.device) -> None:
    x = torch.randn(4, 6, device=device)
    torch_outboard.reset_coverage()
    for view in (x.t(), x[1:, ::2], x.view(24), x.expand(2, 4, 6), x.unsqueeze(0), x.diagonal()):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch_outboard.coverage().calls() == 0


def test_a_graph_replays_it(device: torch.device) -> None:
    module = getattr(torch, device.type)
    x, y = torch.ones(50, device=device), torch.full((50,), 2.0, device=device)
    out = torch.zeros(50, device=device)
    graph = module.Graph()
    with module.graph(graph):
        result = torch.nn.functional.softplus(x * y + 0.5)  # plans that may be built within the capture
        out.add_(result)
    for value in (1.0, 3.0):
        x.fill_(value)
        before = out.cpu()
        graph.replay()
        want = torch.nn.functional.softplus(torch.full((50,), value * 2 + 0.5))
        torch.testing.assert_close(out.cpu() - before, want)


def test_threads_that_come_first_build_once(device: torch.device) -> None:
    x = torch.rand(6, 6, device=device)
    before = _C.built_plans()
    results: list[Any] = []
    start = threading.Barrier(4)

    def call() -> None:
        start.wait()
        results.append(torch.special.entr(x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _C.built_plans() == before + 1
    want = torch.special.entr(x.cpu())
    for result in results:
        torch.testing.assert_close(result.cpu(), want)


@pytest.mark.filterwarnings(f"ignore:{UNUSED}")
def test_a_build_that_fails_names_the_operator_and_harms_nothing(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, change_texts: Any
) -> None:
    change_texts(lambda name, code: code.replace(b"xindex", b"nowhere", 1))
    x = torch.rand(2, 3, 2, 3, 2, 3, 2)  # of a rank that no other test uses
    torch_outboard.reset_coverage()
    result = torch.logaddexp2(x.to(device), x.to(device))
    torch.testing.assert_close(result.cpu(), torch.logaddexp2(x, x))
    assert torch_outboard.coverage().calls("aten::logaddexp2", "fallback") == 1
    (reason,) = [reason for op, reason in refused_operators() if op == "aten::logaddexp2"]
    assert "program_build (aten::logaddexp2/0)" in reason and "xindex" in reason
    monkeypatch.undo()
    run(lambda x: x.tanh(), x, device=device)


def test_what_is_refused_goes_on_down_the_chain_and_is_listed(device: torch.device) -> None:
    x, name = torch.rand(6, 6), "aten::linalg_ldl_factor_ex"
    torch_outboard.reset_coverage()
    for _ in range(2):
        result = torch.linalg.ldl_factor_ex(x.to(device))[0]
    torch.testing.assert_close(result.cpu(), torch.linalg.ldl_factor_ex(x)[0])
    assert torch_outboard.coverage().calls(name, "fallback") == 2
    reason = explained("Inductor has no lowering for this operator [no-definition]")
    assert "Register a kernel of your own" in reason
    assert (name, reason) in refused_operators()
    coverage = torch_outboard.coverage()
    assert coverage.reasons[name] == (reason,) == coverage[:].reasons[name]
    assert "Register a kernel" in str(coverage)
    _C.set_fallback_mode("error")
    try:
        with pytest.raises(
            NotSupportedError,
            match=r"for this operator \[no-definition\]\. It has .* CPU\. OUTBOARD_FALLBACK=error",
        ):
            torch.linalg.ldl_factor_ex(x.to(device))
        # The CPU's kernel refuses lengths by their sum, which no stand-in for them has.
        with pytest.raises(NotSupportedError, match="aten::segment_reduce has no kernel"):
            torch.segment_reduce(torch.ones(6, device=device), "sum", lengths=torch.tensor([2, 4], device=device))
    finally:
        _C.set_fallback_mode(os.environ.get("OUTBOARD_FALLBACK", "warn"))


@pytest.mark.parametrize("dtype", [torch.int4, torch.float8_e8m0fnu], ids=str)
def test_types_of_memory_alone_are_refused_by_name(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.empty(2, 3, dtype=dtype, device=device)
    _C.set_fallback_mode("error")
    try:
        with pytest.raises(
            NotSupportedError, match=f"kernels don't support {dtype} .storage-type.. The type can be stored but not"
        ):
            torch.cat([x, x])
    finally:
        _C.set_fallback_mode(os.environ.get("OUTBOARD_FALLBACK", "warn"))


def test_what_would_be_rounded_elsewhere_is_refused(device: torch.device) -> None:
    arguments = [(torch.rand(5, 10) * 9).bfloat16(), (torch.rand(5) * 9).bfloat16(), (torch.rand(10) * 9).bfloat16()]
    got = torch.addr(*(tensor.to(device) for tensor in arguments), beta=0.6, alpha=0.2)
    torch.testing.assert_close(got.cpu(), torch.addr(*arguments, beta=0.6, alpha=0.2))
    assert any(op == "aten::addr" and "[rounding]" in reason for op, reason in refused_operators())


def test_wrong_arguments_raise_what_the_cpu_raises_and_refuse_no_others(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.fmod(torch.rand(3, device=device), torch.rand(4, device=device))
    run(torch.fmod, torch.rand(4), torch.rand(4), device=device)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch.rand(3, device=device).add_(torch.rand(2, 3, device=device))


def test_the_profiler_and_errors_know_kernels_by_their_operators(device: torch.device) -> None:
    x = torch.rand(8, 8, device=device)
    torch.special.expit(x)
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities()), acc_events=True) as profile:
        torch.special.expit(x)
        torch.accelerator.synchronize(device)
    assert any("simt_fused" in event.name or "aten::sigmoid/0" in event.name for event in profile.events())


def test_gradients(device: torch.device) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        (F.silu(x * w).softmax(-1) * x).sum().backward()
        return torch.cat([x.grad.flatten(), w.grad.flatten()])

    run(function, r(6, 9), r(9), device=device)


def test_kernels_that_only_check_need_no_tensor(device: torch.device) -> None:
    """The count of an empty mask is known, and the kernel that compares the count reads nothing."""
    for shape in ((0, 3), (0,), (2, 0)):
        run(torch.masked_scatter, torch.zeros(shape), torch.ones(shape) > 0, r(2), device=device)
        run(F.binary_cross_entropy, torch.zeros(shape), torch.zeros(shape), device=device)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0)], ids=str)
def test_a_matrix_of_no_elements_is_filled_by_no_copy(device, sizes):
    torch_outboard.reset_coverage()
    assert torch.eye(*sizes, device=device).shape == sizes
    out = torch.empty(0, device=device)
    assert torch.eye(*sizes, out=out).shape == out.shape == sizes
    assert torch_outboard.coverage().calls(provider="fallback") == 0
