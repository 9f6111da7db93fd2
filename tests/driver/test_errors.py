# SPDX-License-Identifier: BSD-3-Clause
"""Errors: tensors of two devices in one operator, and failures of queued work."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn import functional

from .support import assert_same, ran

MIXED = {
    "add": lambda a, b: torch.add(a(3), b(3)),
    "mul_": lambda a, b: a(3).mul_(b(3)),
    "mm": lambda a, b: torch.mm(a(3, 3), b(3, 3)),
    "bmm": lambda a, b: torch.bmm(a(2, 3, 3), b(2, 3, 3)),
    "addmm": lambda a, b: torch.addmm(a(3), a(3, 3), b(3, 3)),
    "linear": lambda a, b: functional.linear(a(2, 3), b(4, 3)),
    "cat": lambda a, b: torch.cat([a(3), b(3)]),
    "stack": lambda a, b: torch.stack([a(3), b(3)]),
    "conv1d": lambda a, b: functional.conv1d(a(1, 2, 8), b(3, 2, 3)),
    "conv2d": lambda a, b: functional.conv2d(a(1, 2, 8, 8), b(3, 2, 3, 3)),
    "embedding": lambda a, b: functional.embedding(a(3).long(), b(5, 2)),
    "batch_norm": lambda a, b: functional.batch_norm(a(2, 3), None, None, b(3), b(3), training=True),
    "layer_norm": lambda a, b: functional.layer_norm(a(2, 3), (3,), b(3), b(3)),
    "gather": lambda a, b: torch.gather(a(3, 3), 0, b(3, 3).long()),
    "index_select": lambda a, b: torch.index_select(a(3, 3), 0, b(3).long()),
    "where": lambda a, b: torch.where(a(3) > 0, a(3), b(3)),
    "cross_entropy": lambda a, b: functional.cross_entropy(a(2, 3), b(2).long()),
    "add out": lambda a, b: torch.add(a(3), a(3), out=b(3)),
    "mm out": lambda a, b: torch.mm(a(3, 3), a(3, 3), out=b(3, 3)),
    "attention": lambda a, b: functional.scaled_dot_product_attention(a(1, 2, 4, 8), b(1, 2, 4, 8), a(1, 2, 4, 8)),
    "_foreach_add": lambda a, b: torch._foreach_add([a(3)], [b(3)]),
}


def maker(device):
    return lambda *shape: torch.ones(shape, device=device)


# torch may word the error of operators that it checks itself; operators
# without a check must be refused too.
MESSAGE = "(?i)expected all tensors to be on the same device|device type|same device|on device|is on cpu|on CPU"


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_are_refused(device, second_device, name):
    for pair in ((device, second_device), (second_device, device)):
        with pytest.raises(RuntimeError, match=MESSAGE):
            MIXED[name](*map(maker, pair))
            torch.accelerator.synchronize(device)
            torch.accelerator.synchronize(second_device)
    assert (torch.ones(2, device=device) + 1).tolist() == [2, 2]


@pytest.mark.parametrize("name", ["mm", "cat", "conv1d", "embedding"])
def test_the_message_for_two_devices_is_torchs(device, second_device, name):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device") as caught:
        MIXED[name](maker(device), maker(second_device))
    assert str(device) in str(caught.value) and str(second_device) in str(caught.value)


@pytest.mark.parametrize("name", MIXED)
def test_a_cpu_tensor_beside_one_of_the_device_is_refused(device, name):
    with pytest.raises(RuntimeError, match=MESSAGE):
        MIXED[name](maker(device), maker("cpu"))
        torch.accelerator.synchronize(device)
    assert (torch.ones(2, device=device) + 1).tolist() == [2, 2]


def test_cpu_scalars_and_index_tensors_are_accepted(device):
    ours = torch.arange(6.0, device=device).reshape(2, 3)
    assert (ours + torch.tensor(1.0)).device == device
    assert (torch.tensor(2.0) * ours)[1, 2].item() == 10
    assert ours[torch.tensor([1, 0])].tolist() == [[3, 4, 5], [0, 1, 2]]
    assert ours[:, torch.tensor([True, False, True])].tolist() == [[0, 2], [3, 5]]
    ours[torch.tensor([0]), torch.tensor([1])] = 9
    assert ours.tolist() == [[0, 9, 2], [3, 4, 5]]
    assert torch.where(ours > 3, ours, torch.tensor(0.0)).sum().item() == 18


def test_a_number_of_any_device_fills(device):
    assert torch.zeros(3).fill_(torch.tensor(2.0, device=device)).tolist() == [2] * 3
    assert torch.zeros(3, device=device).fill_(torch.tensor(2.0)).tolist() == [2] * 3
    with pytest.raises(RuntimeError, match="0-dimension"):
        torch.zeros(3, device=device).fill_(torch.ones(3, device=device))


# Some operators are made of others, which then are the ones that fail.
NAMES = {"embedding": ("embedding", "index_select")}


def calls_that_fail(device):
    weight = torch.ones(5, 2, device=device)
    bad = torch.tensor([1, 9], device=device)
    return {
        "embedding": (IndexError, lambda: functional.embedding(bad, weight)),
        "index_select": (IndexError, lambda: torch.index_select(weight, 0, bad)),
        "gather": (RuntimeError, lambda: torch.gather(weight, 0, bad[:, None])),
        "index": (IndexError, lambda: weight[bad]),
    }


@pytest.mark.parametrize("name", ["embedding", "index_select", "gather", "index"])
def test_a_failure_of_queued_work_is_raised_once_at_the_next_wait(device, name):
    torch.accelerator.synchronize(device)
    kind, call = calls_that_fail(device)[name]
    reference, reference_call = calls_that_fail(torch.device("cpu"))[name]
    with pytest.raises(reference) as expected:
        reference_call()
    raised_by_the_call = True
    with pytest.raises(kind) as caught:
        call()
        raised_by_the_call = False
        torch.accelerator.synchronize(device)
    assert type(caught.value) is type(expected.value)
    # A kernel of the device knows no more than the index and the size.
    words = "index 9 is out of bounds for a dimension of size 5" if ran("generated") else str(expected.value)
    assert words.splitlines()[0] in str(caught.value)
    assert raised_by_the_call or any(each in str(caught.value) for each in NAMES.get(name, (name,)))
    # Once only, and the device goes on.
    torch.accelerator.synchronize(device)
    assert (torch.ones(4, device=device) * 3).tolist() == [3] * 4


def test_a_failure_is_reported_at_a_wait_on_its_own_stream(device):
    module = torch.get_device_module(device)
    side = torch.Stream(device)
    _, call = calls_that_fail(device)["embedding"]
    side.wait_stream(module.current_stream(device))
    with pytest.raises(IndexError):
        with module.stream(side):
            call()
        side.synchronize()
    module.current_stream(device).synchronize()
    side.synchronize()
    with module.stream(side):
        assert torch.ones(3, device=device).sum().item() == 3


def test_a_failure_is_reported_by_item_and_by_copies_to_the_host(device):
    for wait in (lambda t: t.sum().item(), lambda t: t.cpu(), lambda t: t.tolist()):
        _, call = calls_that_fail(device)["embedding"]
        with pytest.raises(IndexError):
            wait(call())
        torch.accelerator.synchronize(device)
    assert torch.ones(3, device=device).sum().item() == 3


def test_work_queued_behind_a_failure_does_not_hide_it(device):
    _, call = calls_that_fail(device)["embedding"]
    with pytest.raises(IndexError, match="(?i)index"):
        result = call()
        for _ in range(20):
            result = result + 1
        torch.accelerator.synchronize(device)
    torch.accelerator.synchronize(device)


def test_calls_after_many_failures_are_whole(device):
    # A failed call's record that were kept twice would be shared by two later calls.
    _, fail = calls_that_fail(device)["embedding"]
    for _ in range(30):
        with pytest.raises(IndexError):
            fail()
            torch.accelerator.synchronize(device)
    wrong = []

    def work(number):
        for step in range(200):
            result = torch.full((16,), float(number), device=device) + step
            if (torch.cat([result, result]) * 2).unique().tolist() != [2.0 * (number + step)]:
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_in_a_call_that_needs_no_device_is_raised_at_once(device):
    ours = torch.ones(3, 4, device=device)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(ours, ours)
    with pytest.raises(IndexError, match="Dimension out of range"):
        ours.sum(5)
    with pytest.raises(RuntimeError, match="size of tensor"):
        ours + torch.ones(5, device=device)
    with pytest.raises(RuntimeError):
        ours.view(7)
    assert ours.sum().item() == 12


@pytest.mark.parametrize(
    "divide",
    [
        torch.floor_divide,
        torch.remainder,
        torch.fmod,
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        lambda a, b: a.clone().floor_divide_(b),
        lambda a, b: a // b[0].item(),
    ],
    ids=["floor", "remainder", "fmod", "trunc", "in place", "number"],
)
def test_integer_division_by_zero_is_reported(device, divide):
    ours = torch.tensor([1, 2], device=device)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        divide(ours, torch.zeros_like(ours))
        torch.accelerator.synchronize(device)
    torch.accelerator.synchronize(device)
    assert ours.tolist() == [1, 2]
    assert_same(divide(ours, ours + 1), divide(ours.cpu(), ours.cpu() + 1), device)


def test_linear_algebra_raises_at_the_call_what_it_raises_there_on_any_device(device):
    """`except LinAlgError` around the call, as for a retry with jitter, must see the error."""
    singular, not_positive = torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    calls = [
        lambda: torch.linalg.cholesky_ex(not_positive.to(device), check_errors=True),
        lambda: torch.linalg.inv_ex(singular.to(device), check_errors=True),
        lambda: torch.linalg.solve_ex(singular.to(device), singular.to(device), check_errors=True),
        lambda: torch.linalg.lu_factor_ex(singular.to(device), check_errors=True),
        lambda: torch.linalg.svd(torch.full((2, 2), torch.nan).to(device)),
        lambda: torch.linalg.eig(torch.full((2, 2), torch.nan).to(device)),
    ]
    for call in calls:
        with pytest.raises(RuntimeError):
            call()
        torch.accelerator.synchronize(device)  # nothing comes later
