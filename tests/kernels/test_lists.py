# SPDX-License-Identifier: BSD-3-Clause
"""Operators over lists of tensors are one launch, and return the results of the operators for single tensors.

The tests cover a fixed choice of the operators; OUTBOARD_TEST_SAMPLES=all covers all, as `make stress` does.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import torch_outboard
from torch_outboard import _C, sanitizer
from torch_outboard.kernels import refused_operators
from torch_outboard.testing.database.calls import poison

from .device_kernels import UNUSED

# None, one, fewer than a group of items has, several chunks.
SIZES = ((0,), (1,), (), (7, 3), (129,), (5000,), (3, 4099))
Case = Callable[[Callable[[], list[torch.Tensor]], Callable[[], list[float]]], tuple[Any, ...]]

BINARY = ("add", "sub", "mul", "div", "clamp_max", "clamp_min", "maximum", "minimum")
UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma"),
    *("log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt"),
    *("tan", "tanh", "trunc"),
)


def _cases() -> dict[str, Case]:
    cases: dict[str, Case] = {name: lambda x, n: (x(),) for name in UNARY}
    for name in BINARY:
        cases[f"{name}.Scalar"] = lambda x, n: (x(), n()[0])
        cases[f"{name}.ScalarList"] = lambda x, n: (x(), n())
        cases[f"{name}.List"] = lambda x, n: (x(), x())
    for name in ("add", "mul", "div"):
        cases[f"{name}.Tensor"] = lambda x, n: (x(), x()[1].reshape(()))
    for name in ("addcmul", "addcdiv"):
        cases[f"{name}.Scalar"] = lambda x, n: (x(), x(), x(), n()[0])
        cases[f"{name}.ScalarList"] = lambda x, n: (x(), x(), x(), n())
        cases[f"{name}.Tensor"] = lambda x, n: (x(), x(), x(), torch.tensor(n()))
    cases["lerp.Scalar"] = lambda x, n: (x(), x(), n()[0])
    cases["lerp.ScalarList"] = lambda x, n: (x(), x(), n())
    cases["lerp.List"] = lambda x, n: (x(), x(), x())
    cases["pow.Scalar"] = lambda x, n: (x(), 3)
    cases["pow.List"] = lambda x, n: (x(), x())
    cases["pow.ScalarList"] = lambda x, n: (x(), n())
    return cases


CASES = _cases()
TAKES_ALL = os.environ.get("OUTBOARD_TEST_SAMPLES") == "all"


def is_in_every_run(dtype: torch.dtype, name: str) -> bool:
    """Return whether every run covers a case: all types of some operators."""
    return TAKES_ALL or zlib.crc32(f"{name} {dtype}".encode()) % 20 == 0


def to_device(value: Any, device: torch.device) -> Any:
    # A tensor of numbers stays where it must be.
    return tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) and x.shape != (7,) else x, value)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.nan_to_num(nan=77.0).cpu().reshape(-1).view(kind)


def operator(name: str, is_in_place: bool) -> torch._ops.OpOverload:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, f"_foreach_{base}{'_' * is_in_place}"), overload or "default")


def one_by_one(op: torch._ops.OpOverload, *arguments: Any) -> Any:
    """Call torch's own composite, which calls an operator for each tensor."""
    return op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *arguments)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("dtype", "name"), [(dtype, name) for dtype in DTYPES for name in CASES if is_in_every_run(dtype, name)], ids=str
)
def test_values(dtype: torch.dtype, name: str, device: torch.device) -> None:
    # With one type each operator returns new tensors, with the other types it writes in place.
    is_in_place = dtype != torch.float32
    op = operator(name, is_in_place)

    def tensors() -> list[torch.Tensor]:
        return [(torch.rand(size) * 3 + 0.2).to(dtype) for size in SIZES]

    # Numbers that halves hold: operators for single tensors round them.
    arguments = CASES[name](tensors, lambda: (torch.randint(1, 9, (len(SIZES),)) / 8).tolist())
    if name in ("acos", "asin"):
        arguments = ([tensor / 4 for tensor in arguments[0]],)
    ours, theirs, singly = (to_device(tree_map(lambda value: value, arguments), device) for _ in range(3))
    theirs = tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, arguments)
    poison(device)
    torch_outboard.reset_coverage()
    got = op(*ours)
    rows = [(row.op, row.provider, row.calls) for row in torch_outboard.coverage()]
    assert rows == [(f"aten::_foreach_{name.replace('.', '_.' if is_in_place else '.')}", "generated", 1)] or (
        "." not in name and [row[1:] for row in rows] == [("generated", 1)]
    ), rows
    want, loop = op(*theirs), one_by_one(op, *singly)
    if is_in_place:
        got, want, loop = ours[0], theirs[0], singly[0]
    for result, wanted, single in zip(got, want, loop, strict=True):
        assert result.dtype == wanted.dtype and result.shape == wanted.shape and result.stride() == wanted.stride()
        torch.testing.assert_close(result.cpu(), wanted, equal_nan=True)
        assert torch.equal(bits(result), bits(single))


def test_powers_of_a_number_and_by_lists(device: torch.device) -> None:
    x = [torch.randn(9), torch.tensor([-0.0, 0.0, -float("inf"), float("inf"), float("nan")]), torch.rand(3, 5000)]
    ours = [tensor.to(device) for tensor in x]
    torch._foreach_pow(ours, [1.5, 0.3, -2.5])
    before = _C.built_plans()
    torch_outboard.reset_coverage()
    for exponents in ([0.5, 0.5, 0.5], [-0.5, -0.5, -0.5], [2.0, -1.0, 3.0], [1.0, -2.0, 0.0], [0.7, 3.0, 2.0]):
        for result, wanted in zip(torch._foreach_pow(ours, exponents), torch._foreach_pow(x, exponents), strict=True):
            torch.testing.assert_close(result.cpu(), wanted, equal_nan=True)
    assert _C.built_plans() == before
    for result, wanted in zip(torch._foreach_pow(0.9, ours), torch._foreach_pow(0.9, x), strict=True):
        torch.testing.assert_close(result.cpu(), wanted, equal_nan=True)
    assert torch_outboard.coverage().calls("aten::_foreach_pow.ScalarList", "generated") == 5
    assert torch_outboard.coverage().calls("aten::_foreach_pow.ScalarAndTensor", "generated") == 1
    assert torch_outboard.coverage().calls() == 6
    # A power that is one number is written into the kernel, which then multiplies.
    for result, base in zip(torch._foreach_pow(ours, 3), ours, strict=True):
        assert torch.equal(bits(result), bits(base.pow(3)))


INFINITY = float("inf")
REDUCTIONS = {
    "norm1": lambda x: torch._foreach_norm(x, 1),
    "norm2": lambda x: torch._foreach_norm(x),
    "norm2-wide": lambda x: torch._foreach_norm(x, 2.0, torch.float64 if x[0].dtype.itemsize > 2 else torch.float32),
    "norm-count": lambda x: torch._foreach_norm(x, 0),
    "norm-inf": lambda x: torch._foreach_norm(x, INFINITY),
    "powsum1": lambda x: torch._foreach_powsum(x, 1),
    "powsum2": lambda x: torch._foreach_powsum(x, 2),
    "max": lambda x: torch._foreach_max(x),
}


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *((torch.float32, name) for name in REDUCTIONS if TAKES_ALL or name in ("norm2", "norm-inf", "max")),
        *((torch.float16, name) for name in REDUCTIONS if TAKES_ALL or name == "powsum2"),
        *((torch.bfloat16, name) for name in REDUCTIONS if TAKES_ALL or name == "norm2-wide"),
    ],
    ids=str,
)
def test_reductions(dtype: torch.dtype, name: str, device: torch.device) -> None:
    """Twice, so that the second call finds its table; no elements, NaN, infinities, results that overflow."""
    function, needs_elements = REDUCTIONS[name], name in ("max", "norm-inf")
    x = [torch.randn(size).to(dtype) for size in SIZES[needs_elements:]]
    ours = [tensor.to(device) for tensor in x]
    for step in range(2):
        if step == 1:
            for at, value in enumerate((float("nan"), -INFINITY, INFINITY, torch.finfo(dtype).max)):
                x[-1 - at].view(-1)[-1] = value
            for target, source in zip(ours, x, strict=True):
                target.copy_(source)
        poison(device)
        torch_outboard.reset_coverage()
        got = function(ours)
        assert [(row.provider, row.calls) for row in torch_outboard.coverage()] == [("generated", 1)]
        # Sums in float are compared with those in float64, which torch's
        # own are not always as near to.
        want = function(x)
        exact = REDUCTIONS[name.removesuffix("-wide")]([tensor.double() for tensor in x])
        for result, wanted, near in zip(got, want, exact, strict=True):
            near = wanted if wanted.isinf() else near  # a sum that overflows
            assert result.dtype == wanted.dtype and result.shape == wanted.shape
            torch.testing.assert_close(result.cpu(), near.to(result.dtype), equal_nan=True)
    if needs_elements:
        with pytest.raises(RuntimeError, match="empty tensor|numel\\(\\) == 0"):
            function([*ours, ours[0][:0]])


def test_a_maximum_of_whole_numbers(device: torch.device) -> None:
    for x in (
        [torch.tensor([-3, -4]), torch.tensor(-(2**63)), torch.randint(-9, 9, (40, 300))],
        [torch.tensor([True, False]), torch.tensor(False), torch.zeros(5000, dtype=torch.bool)],
        [torch.tensor([200, 255], dtype=torch.uint8), torch.tensor(0, dtype=torch.uint8)],
    ):
        ours = [tensor.to(device) for tensor in x]
        torch_outboard.reset_coverage()
        got = torch._foreach_max(ours)
        assert torch_outboard.coverage().calls("aten::_foreach_max", "generated") == 1
        for result, wanted in zip(got, torch._foreach_max(x), strict=True):
            assert torch.equal(result.cpu(), wanted)


@pytest.mark.filterwarnings(f"ignore:{UNUSED}")
def test_what_is_refused_is_listed(device: torch.device, change_texts: Any) -> None:
    x = [torch.rand(5), torch.rand(3)]
    ours = [tensor.to(device) for tensor in x]
    for result, wanted in zip(torch._foreach_norm(ours, 3), torch._foreach_norm(x, 3), strict=True):
        torch.testing.assert_close(result.cpu(), wanted)
    (reason,) = [reason for op, reason in refused_operators() if op == "aten::_foreach_norm.Scalar"]
    assert reason.startswith("norms of order 3 aren't supported [norm-order]. Use order 0, 1, 2 or inf, or register"), (
        reason
    )
    # Nor do kernels that don't compile end a program.
    change_texts(lambda name, code: code.replace(b"xindex", b"nowhere", 1))
    for result, wanted in zip(torch._foreach_pow(ours, 2.125), torch._foreach_pow(x, 2.125), strict=True):
        torch.testing.assert_close(result.cpu(), wanted)
    (reason,) = [reason for op, reason in refused_operators() if op == "aten::_foreach_pow.Scalar"]
    assert "program_build (aten::_foreach_pow.Scalar/0)" in reason and "nowhere" in reason


def test_a_call_that_is_refused_does_not_refuse_its_class(device: torch.device) -> None:
    """A call whose `found_inf` has two elements has no kernel; calls of the same class with one element have one."""

    def calls_of(found_inf: torch.Tensor) -> list[tuple[str, str, int]]:
        x = [torch.full((size,), 4.0, dtype=torch.float64, device=device) for size in (3, 5, 7)]
        torch_outboard.reset_coverage()
        torch._fused_sgd_(
            *(x, [torch.ones_like(tensor) for tensor in x], []),
            **{"weight_decay": 0.0, "momentum": 0.0, "lr": 0.5, "dampening": 0.0, "nesterov": False, "maximize": True},
            **{"is_first_step": False, "found_inf": found_inf.to(device)},
        )
        rows = [(row.op, row.provider, row.calls) for row in torch_outboard.coverage() if "sgd" in row.op]
        for tensor in x:
            assert tensor.tolist() == [4.5] * tensor.numel()
        return rows

    as_one = [("aten::_fused_sgd_", "generated", 1)]
    assert all(calls_of(torch.zeros(2)) != as_one for _ in range(2))
    assert calls_of(torch.zeros(1)) == as_one


def test_threads_that_come_first_build_once(device: torch.device) -> None:
    x = [torch.rand(size, dtype=torch.float64) for size in (3, 5)]  # of a type that no other test uses
    ours = [tensor.to(device) for tensor in x]
    before = _C.built_plans()
    results: list[list[torch.Tensor]] = []
    start = threading.Barrier(4)

    def call() -> None:
        start.wait()
        results.append(torch._foreach_erfc(ours))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _C.built_plans() == before + 1 and len(results) == 4
    for result in results:
        torch.testing.assert_close([tensor.cpu() for tensor in result], torch._foreach_erfc(x))


def test_norms_that_the_cpu_refuses(device: torch.device) -> None:
    for x, dtype in ((torch.arange(3), None), (torch.arange(3), torch.float32), (torch.rand(3), torch.float16)):
        with pytest.raises(RuntimeError, match="vector_norm"):
            torch._foreach_norm([x.to(device)], 2, dtype)
            torch.accelerator.synchronize(device)


def test_results_of_norms_are_tensors_of_their_own(device: torch.device) -> None:
    x = [torch.randn(7, device=device, requires_grad=True) for _ in range(3)]
    norms = torch._foreach_norm(x)
    sum(norms).backward()
    for tensor, norm in zip(x, norms, strict=True):
        torch.testing.assert_close(tensor.grad, (tensor / norm).detach())
    first = norms[0].item()
    with torch.no_grad():
        norms[1].fill_(5.0)
        torch._foreach_mul_(norms, 2.0)
    assert norms[0].item() == 2 * first and norms[1].item() == 10.0


def test_a_graph_replays_norms(device: torch.device) -> None:
    module = getattr(torch, device.type)
    x = [torch.randn(5, device=device), torch.randn(9000, device=device)]
    torch._foreach_norm(x)
    graph = module.Graph()
    with module.graph(graph):
        norms = torch._foreach_norm(x)
    poison(device)
    for _ in range(2):
        for tensor in x:
            tensor.copy_(torch.randn(tensor.shape))
        graph.replay()
        for tensor, norm in zip(x, norms, strict=True):
            torch.testing.assert_close(norm.cpu(), tensor.cpu().double().norm().float())


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_clipping_gradients_is_a_few_launches(device: torch.device, tmp_path: Path) -> None:
    parameters = [torch.zeros(number + 1, requires_grad=True) for number in range(100)]
    ours = [parameter.detach().to(device).requires_grad_() for parameter in parameters]
    for parameter, copy in zip(parameters, ours, strict=True):
        parameter.grad = torch.randn(parameter.shape)
        copy.grad = parameter.grad.to(device)

    def clip(bound: float) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(ours, bound, foreach=True)

    torch.testing.assert_close(clip(50.0).cpu(), torch.nn.utils.clip_grad_norm_(parameters, 50.0))
    launches = kernels(lambda: clip(1.0), device, tmp_path)
    if not launches:
        pytest.skip("capability: times of work, without which profiles show no kernels")
    assert len(launches) <= 8, launches
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for parameter, copy in zip(parameters, ours, strict=True):
        torch.testing.assert_close(copy.grad.cpu(), parameter.grad)


def test_cat_of_many_tensors(device: torch.device) -> None:
    def check(count: int, *tensors: torch.Tensor, dim: int = 0) -> None:
        ours = [tensor.to(device) for tensor in tensors]
        torch_outboard.reset_coverage()
        got, want = torch.cat(ours, dim), torch.cat(tensors, dim)
        assert torch_outboard.coverage().calls("aten::_foreach_copy_", "generated") == count
        assert torch.equal(got.cpu(), want) and got.stride() == want.stride()

    check(1, *(torch.randn(number, 3) for number in range(20)))
    check(1, *(torch.randint(9, (1, number, 2)) for number in range(1, 20)), dim=-2)
    check(1, *(torch.randn(2, 3) for _ in range(9)), dim=1)  # rows of all, which are put in order
    check(0, *(torch.randn(2, 2, 3, 3).to(memory_format=torch.channels_last) for _ in range(9)))
    whole = torch.randn(90, device=device)
    torch_outboard.reset_coverage()
    assert torch.equal(torch.cat(whole.split(7)[1:]), whole[7:])  # parts that lie there in order
    assert torch.equal(torch.stack(whole.unbind()[::-1]).flip(0), whole)
    assert torch_outboard.coverage().calls("aten::_foreach_copy_", "generated") == 1
    for tensors, dim in (([whole] * 10, 1), ([whole[0]] * 10, 0), ([whole.view(9, 10), *[whole.view(10, 9)] * 9], 0)):
        with pytest.raises((IndexError, RuntimeError)):
            torch.cat(tensors, dim)


def test_results_of_other_types(device: torch.device) -> None:
    x = [torch.arange(5), torch.arange(3, 9)]
    y = [tensor.to(device) for tensor in x]
    torch_outboard.reset_coverage()
    for op, arguments in (("sqrt", ()), ("div", (2,)), ("add", (3,)), ("mul", (0.5,)), ("neg", ())):
        got, want = (getattr(torch, f"_foreach_{op}")(tensors, *arguments) for tensors in (y, x))
        for result, wanted in zip(got, want, strict=True):
            torch.testing.assert_close(result.cpu(), wanted)
    assert torch_outboard.coverage().calls() == 5
    source = [torch.randn(9, device=device), torch.randn(2, 3, device=device)]
    target = [torch.zeros_like(tensor, dtype=torch.bfloat16) for tensor in source]
    torch._foreach_copy_(target, source)
    assert all(torch.equal(result, wanted.bfloat16()) for result, wanted in zip(target, source, strict=True))
    torch._foreach_zero_(target)
    assert not any(tensor.any() for tensor in target)


def test_what_takes_the_way_of_single_operators(device: torch.device) -> None:
    def check(function: Callable[..., Any], *lists: Sequence[torch.Tensor]) -> None:
        # Tensors that are one are one on the device too.
        known: dict[int, torch.Tensor] = {}
        ours = [[known.setdefault(id(tensor), tensor.to(device)) for tensor in each] for each in lists]
        torch_outboard.reset_coverage()
        got, want = function(*ours), function(*lists)
        assert not any(row.op.startswith("aten::_foreach") for row in torch_outboard.coverage())
        for result, wanted in zip(tree_leaves((got, ours)), tree_leaves((want, lists)), strict=True):
            torch.testing.assert_close(result.cpu(), wanted)

    r = torch.randn
    check(torch._foreach_add, [r(3, 4), r(5)], [r(4), r(5)])  # broadcast
    check(torch._foreach_add, [r(3), r(5).double()], [r(3), r(5).double()])  # of several types
    check(torch._foreach_mul, [r(())], [r(()).double()])
    check(lambda x: torch._foreach_exp([x[0][:, ::2]]), [r(4, 6)])
    check(torch._foreach_add, [r(4, 6).t()], [r(6, 4)])
    shared = r(6)
    check(lambda x: torch._foreach_add_(x, 1.0), [shared, shared])
    check(torch._foreach_mul_, [shared], [shared])
    x = torch.randn(10, device=device)
    torch_outboard.reset_coverage()
    before = x.cpu()
    torch._foreach_add_([x[:6], x[6:]], 1.0)  # parts that are apart
    assert torch_outboard.coverage().calls("aten::_foreach_add_.Scalar", "generated") == 1
    assert torch.equal(x.cpu(), before + 1)
    torch._foreach_add_([x[:6], x[5:]], 1.0)
    assert torch.equal(x.cpu()[5], before[5] + 1 + 2)
    with pytest.raises(RuntimeError, match="same number of tensors|same length"):
        torch._foreach_add([x], [x, x])


def kernels(work: Callable[[], object], device: torch.device, folder: Path) -> list[str]:
    """Return the names of launched operators' kernels, without the kernels that a vendor's library names."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.accelerator.synchronize(device)
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "kernel" and "::" in event["name"]]


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_two_hundred_tensors_are_one_launch(device: torch.device, tmp_path: Path) -> None:
    x = [torch.randn(number + 1) for number in range(200)]
    ours, grads = [tensor.to(device) for tensor in x], [torch.randn(tensor.shape, device=device) for tensor in x]
    torch._foreach_add_(ours, grads, alpha=-0.1)  # the plan is there from here on
    launches = kernels(lambda: torch._foreach_add_(ours, grads, alpha=0.6), device, tmp_path)
    if not launches:
        pytest.skip("capability: times of work, without which profiles show no kernels")
    assert launches == ["aten::_foreach_add_.List/0"]
    for result, start, grad in zip(ours, x, grads, strict=True):
        torch.testing.assert_close(result.cpu(), start + 0.5 * grad.cpu())


def test_numbers_need_no_new_kernel(device: torch.device) -> None:
    x = [torch.rand(5), torch.rand(33, 7)]

    def function(place: torch.device, numbers: list[float]) -> list[torch.Tensor]:
        y = [tensor.to(place) for tensor in x]
        torch._foreach_mul_(y, numbers[0])
        torch._foreach_add_(y, numbers)
        torch._foreach_addcmul_(y, y_too := [tensor + 1 for tensor in y], y_too, value=numbers[1])
        torch._foreach_lerp_(y, y_too, numbers[1])
        torch._foreach_clamp_min_(y, numbers[0])
        return y

    function(device, [0.3, 0.4])
    before = _C.built_plans()
    for _ in range(5):
        numbers = torch.rand(2).tolist()
        for result, wanted in zip(function(device, numbers), function(torch.device("cpu"), numbers), strict=True):
            torch.testing.assert_close(result.cpu(), wanted)
    assert _C.built_plans() == before


def test_a_table_is_found_again_and_never_stale(device: torch.device) -> None:
    """There are more lists than cached tables; each list is used again, on two streams."""
    module = getattr(torch, device.type)
    lists = [[torch.zeros(3, device=device), torch.zeros(number + 1, device=device)] for number in range(20)]
    side = module.Stream(device)
    for _ in range(3):
        for tensors in lists:
            torch._foreach_add_(tensors, 1.0)
        side.wait_stream(module.current_stream(device))
        with module.stream(side):
            for tensors in lists[::-1]:
                torch._foreach_add_(tensors, 1.0)
        module.current_stream(device).wait_stream(side)
    assert all((tensor.cpu() == 6).all() for tensors in lists for tensor in tensors)


def test_a_known_table_says_nothing_of_tensors_beside_the_lists(device: torch.device) -> None:
    x = [torch.full((5,), 2.0, device=device), torch.full((7,), 3.0, device=device)]
    factor, found_inf = torch.full((), 2.0, device=device), torch.zeros((), device=device)
    check = torch._amp_foreach_non_finite_check_and_unscale_
    torch._foreach_mul_(x, factor)  # from here on the table of each is known
    check(x, found_inf, factor)
    check([found_inf.view(1)], torch.zeros((), device=device), factor)
    torch_outboard.reset_coverage()
    with pytest.raises(RuntimeError, match="single memory location"):
        torch._foreach_mul_(x, x[0][3])
    check([found_inf.view(1)], found_inf, factor)
    assert not any(row.op.startswith("aten::_foreach") for row in torch_outboard.coverage())
    assert not torch_outboard.coverage().calls("aten::_amp_foreach_non_finite_check_and_unscale_", "generated")
    assert [tensor[0].item() for tensor in x] == [8.0, 12.0]


def test_work_of_other_streams_is_ordered_and_seen(device: torch.device) -> None:
    """A late write to a tensor on another stream is waited for; the sanitizer sees the readers and the writers."""
    module = getattr(torch, device.type)
    x = [torch.zeros(20000, device=device), torch.zeros(3, device=device)]
    y = [torch.ones(20000, device=device), torch.ones(3, device=device)]
    side = module.Stream(device)
    module.synchronize(device)
    sanitizer.enable()
    try:
        with module.stream(side):
            for _ in range(20):
                y[0].mul_(1.5)
        module.current_stream(device).wait_stream(side)
        torch._foreach_add_(x, y)
        assert sanitizer.races() == []
        with module.stream(side):
            y[1].fill_(7)  # nothing orders it behind the read
        assert len(sanitizer.races()) == 1
        assert "_foreach_add_" in str(sanitizer.races()[0])
    finally:
        sanitizer.disable()
    torch.testing.assert_close(x[0].cpu(), torch.full((20000,), 1.5**20))


def test_memory_that_is_freed_at_once(device: torch.device) -> None:
    """Lists that die with the call are reused behind it; results stay valid."""
    want = torch.arange(1000.0) * 4
    results = []
    for _ in range(10):
        results.append(torch._foreach_mul([torch.arange(1000.0, device=device) for _ in range(3)], 4.0))
    assert all(torch.equal(tensor.cpu(), want) for result in results for tensor in result)
