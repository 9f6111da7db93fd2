# SPDX-License-Identifier: BSD-3-Clause
"""torch.amp.GradScaler and its two operators: arithmetic, waits, devices, dtypes, sparse gradients, state."""

from __future__ import annotations

import struct

import pytest
import torch
from driver.support import has_entry, pins, reaches_memory, reset_waits, waits

from torch_outboard import _C

CHECK = "aten::_amp_foreach_non_finite_check_and_unscale_"
UPDATE = "aten::_amp_update_scale_"
ITEM = "aten::_local_scalar_dense"


@pytest.fixture
def needs_queued_calls(device):
    # A driver has `host_address` for each of its devices, and may return no address on some.
    if not (has_entry("host_callback") and reaches_memory(device)):
        pytest.skip("capability: host_address and host_callback, without which each host call drains its stream")


def scalar(value, device, dtype=torch.float32):
    return torch.full((), value, dtype=dtype, device=device)


def to_float32(value: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return float("inf")


class Reference:
    """The computation of CUDA's kernel: the product in double, rounded to float32 once."""

    def __init__(self, scale: float, growth: float, backoff: float, interval: int) -> None:
        self.scale, self.tracker = to_float32(scale), 0
        self.growth, self.backoff, self.interval = growth, backoff, interval

    def update(self, found_inf: bool) -> None:
        if found_inf:
            self.scale, self.tracker = to_float32(self.scale * self.backoff), 0
            return
        self.tracker += 1
        if self.tracker == self.interval:
            grown = to_float32(self.scale * self.growth)
            self.scale = grown if grown != float("inf") else self.scale
            self.tracker = 0


@pytest.mark.parametrize(
    ("scale", "growth", "backoff", "interval"),
    [(65536.0, 2.0, 0.5, 3), (1000.1, 1.1, 0.3, 1), (3e38, 2.0, 0.5, 1), (1e-38, 1.7, 0.01, 2), (7.7, 1.001, 0.999, 2)],
)
def test_growth_and_backoff_are_cuda_s_bit_for_bit(device, scale, growth, backoff, interval):
    reference = Reference(scale, growth, backoff, interval)
    ours, tracker = scalar(scale, device), scalar(0, device, torch.int32)
    pattern = [False, False, True, False, False, False, False, True, True, False, False, False]
    for found_inf in pattern * 3:
        result = torch._amp_update_scale_(ours, tracker, scalar(float(found_inf), device), growth, backoff, interval)
        assert result is ours
        reference.update(found_inf)
        assert (ours.item(), tracker.item()) == (reference.scale, reference.tracker)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.1, 1 / 3, 2.0**-16])
def test_unscaling_is_cuda_s_bit_for_bit(device, dtype, scale):
    grads = [(torch.randn(n) * 100).to(dtype) for n in (1, 7, 64, 1000)]
    inverse = torch.tensor(scale, dtype=torch.float32)
    # In float32 for the smaller dtypes, rounded once; untouched if the factor is 1.
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = [grad if scale == 1 else (grad.to(wide) * inverse.to(wide)).to(dtype) for grad in grads]
    ours, found_inf = [grad.to(device) for grad in grads], scalar(0.0, device)
    torch._amp_foreach_non_finite_check_and_unscale_(ours, found_inf, inverse.to(device))
    assert found_inf.item() == 0.0
    for grad, wanted in zip(ours, expected, strict=True):
        assert torch.equal(grad.cpu(), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("place", [0, 5, 999])
def test_a_value_that_is_not_finite_is_found(device, dtype, bad, place):
    grads = [torch.ones(1000, dtype=dtype, device=device) for _ in range(3)]
    grads[1][place] = bad
    found_inf = scalar(0.0, device)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, scalar(0.5, device))
    assert found_inf.item() == 1.0
    assert grads[0].unique().tolist() == grads[2].unique().tolist() == [0.5]
    assert found_inf.copy_(scalar(0.0, device)).item() == 0.0


def test_strided_and_empty_gradients(device):
    base = torch.ones(6, 8, device=device)
    grads = [base.t(), torch.empty(0, device=device), torch.ones(8, 8, device=device)[::2, ::2], scalar(1.0, device)]
    found_inf = scalar(0.0, device)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, scalar(0.5, device))
    assert base.unique().tolist() == [0.5] and grads[2].unique().tolist() == [0.5] and grads[3].item() == 0.5


# ---- Steps ----


def make(device, optimizer="SGD", scale=8.0, dtype=torch.float32, **options):
    parameters = [torch.ones(3, device=device, dtype=dtype, requires_grad=True) for _ in range(2)]
    built = getattr(torch.optim, optimizer)(parameters, lr=0.5, **options)
    return parameters, built, torch.amp.GradScaler(device.type, init_scale=scale, growth_interval=2)


def backward(parameters, scaler, factor=1.0):
    for parameter in parameters:
        parameter.grad = None
    scaler.scale(sum((parameter * factor).sum() for parameter in parameters)).backward()


OPTIMIZERS = [("SGD", {}), ("AdamW", {"foreach": True}), ("AdamW", {"fused": True}), ("SGD", {"fused": True})]


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_an_inf_skips_that_step_and_halves_the_scale(device, optimizer, options):
    parameters, opt, scaler = make(device, optimizer, **options)
    plain, plain_opt, _ = make(device, optimizer, **options)
    for step in range(6):
        is_bad = step == 3
        backward(parameters, scaler, float("inf") if is_bad else 1.0)
        scaler.step(opt)
        scaler.update()
        if not is_bad:
            for parameter in plain:
                parameter.grad = torch.ones_like(parameter)
            plain_opt.step()
        for ours, expected in zip(parameters, plain, strict=True):
            torch.testing.assert_close(ours, expected)
        assert scaler.get_scale() == [8.0, 16.0, 16.0, 8.0, 8.0, 16.0][step]


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_waits_of_a_step(device, needs_queued_calls, optimizer, options):
    """As on CUDA: one read of found_inf for each step, none if the optimizer takes it as a tensor."""
    if not pins():
        pytest.skip("capability: host_alloc, without which copies from the host wait")
    parameters, opt, scaler = make(device, optimizer, **options)

    def step():
        backward(parameters, scaler)
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        scaler.step(opt)
        scaler.update()

    step()
    torch.accelerator.synchronize(device)
    reset_waits()
    for _ in range(3):
        step()
    assert waits() == ({} if options.get("fused") else {ITEM: 3})


def test_the_operators_are_queued(device, needs_queued_calls):
    grads = [torch.ones(100, device=device) for _ in range(5)]
    found_inf, inverse = scalar(0.0, device), scalar(0.5, device)
    scale, tracker = scalar(8.0, device), scalar(0, device, torch.int32)
    reset_waits()
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inverse)
    torch._amp_update_scale_(scale, tracker, found_inf, 2.0, 0.5, 1)
    assert waits() == {} and _C.host_counters() == (2, 0)
    assert scale.item() == 16.0 and grads[4].unique().tolist() == [0.5]


def test_gradients_on_two_devices(device, second_device):
    here = torch.ones(3, device=device, requires_grad=True)
    there = torch.ones(3, device=second_device, requires_grad=True)
    opt = torch.optim.SGD([here, there], lr=0.5)
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    for factor, expected in ((1.0, 0.5), (float("inf"), 0.5), (1.0, 0.0)):
        opt.zero_grad()
        losses = [here.sum(), (there * factor).sum()]
        for loss in scaler.scale(losses):
            loss.backward()
        scaler.unscale_(opt)
        assert {grad.device for grad in scaler._found_inf_per_device(opt).values()} == {device, second_device}
        scaler.step(opt)
        scaler.update()
        assert here.tolist() == there.tolist() == [expected] * 3
    assert scaler.get_scale() == 2.0


def test_gradients_of_several_dtypes(device):
    parameters = [
        torch.ones(3, device=device, dtype=dtype, requires_grad=True)
        for dtype in (torch.float32, torch.bfloat16, torch.float64)
    ]
    opt = torch.optim.SGD(parameters, lr=0.5)
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    backward(parameters, scaler)
    scaler.step(opt)
    scaler.update()
    assert [parameter.tolist() for parameter in parameters] == [[0.5] * 3] * 3


@pytest.mark.parametrize("bad", [False, True])
def test_sparse_gradients(device, bad):
    weight = torch.ones(6, 2, device=device, requires_grad=True)
    opt = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    index = torch.tensor([1, 3, 3], device=device)
    result = torch.nn.functional.embedding(index, weight, sparse=True)
    scaler.scale(result.sum() * (float("inf") if bad else 1.0)).backward()
    assert weight.grad.is_sparse
    scaler.step(opt)
    scaler.update()
    column = [1.0] * 6 if bad else [1.0, 0.5, 1.0, 0.0, 1.0, 1.0]
    assert weight[:, 0].tolist() == column and scaler.get_scale() == (2.0 if bad else 4.0)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_sparse_gradients_in_float16_are_coalesced_first(device):
    """Two finite halves have an infinite sum, and the sum is checked."""
    weight = torch.ones(4, 1, device=device, dtype=torch.float16, requires_grad=True)
    opt = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    scaler.scale(torch.ones((), device=device))
    weight.grad = torch.sparse_coo_tensor(
        torch.tensor([[2, 2]], device=device), torch.full((2, 1), 6e4, dtype=torch.float16, device=device), (4, 1)
    )
    found_inf = scalar(0.0, device)
    per_device = scaler._unscale_grads_(opt, scalar(0.25, device), found_inf, True)
    assert [float(value) for value in per_device.values()] == [1.0]


def test_a_checkpoint_gives_the_identical_continuation(device, tmp_path):
    def run(scaler, parameters, opt, steps):
        for step in steps:
            backward(parameters, scaler, float("inf") if step % 4 == 2 else 1.5)
            scaler.step(opt)
            scaler.update()
        return scaler.state_dict(), [parameter.tolist() for parameter in parameters]

    parameters, opt, scaler = make(device, "AdamW")
    run(scaler, parameters, opt, range(5))
    path = tmp_path / "scaler.pt"
    torch.save({"scaler": scaler.state_dict(), "opt": opt.state_dict(), "parameters": parameters}, path)
    expected = run(scaler, parameters, opt, range(5, 12))

    saved = torch.load(path, weights_only=True)
    others, other_opt, new_scaler = make(device, "AdamW", scale=1.0)
    with torch.no_grad():
        for parameter, value in zip(others, saved["parameters"], strict=True):
            parameter.copy_(value)
    other_opt.load_state_dict(saved["opt"])
    new_scaler.load_state_dict(saved["scaler"])
    assert run(new_scaler, others, other_opt, range(5, 12)) == expected


def test_a_scaler_that_is_off(device):
    parameters, opt, _ = make(device)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    loss = parameters[0].sum()
    assert scaler.scale(loss) is loss and scaler.get_scale() == 1.0 and scaler.state_dict() == {}


# ---- Misuse: torch's own words ----


def test_misuse(device):
    parameters, opt, scaler = make(device)
    with pytest.raises(AssertionError, match="outside of the scope|Attempted unscale_ but _scale is None"):
        scaler.unscale_(opt)
    with pytest.raises(AssertionError, match="_scale is None"):
        scaler.step(opt)
    backward(parameters, scaler)
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        scaler.unscale_(opt)
    scaler.step(opt)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        scaler.step(opt)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step"):
        scaler.unscale_(opt)
    scaler.update()
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(opt, closure=lambda: None)


def test_an_optimizer_without_gradients(device):
    parameters, opt, scaler = make(device)
    scaler.scale(parameters[0].sum())
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.step(opt)


def test_float16_gradients_are_refused(device):
    parameters, opt, scaler = make(device, dtype=torch.float16)
    backward(parameters, scaler)
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(opt)


def test_wrong_operands(device, request):
    grad, found_inf, inverse = torch.ones(3, device=device), scalar(0.0, device), scalar(0.5, device)
    unscale = torch._amp_foreach_non_finite_check_and_unscale_

    def assert_refused(*arguments):
        with pytest.raises((RuntimeError, ValueError)):
            unscale(*arguments)
            torch.accelerator.synchronize(device)

    assert_refused([grad], found_inf, torch.ones(2, device=device))
    assert_refused([grad], torch.zeros(2, device=device), inverse)
    assert_refused([grad], found_inf.double(), inverse)
    assert_refused([torch.ones(3)], found_inf, inverse)
    assert_refused([torch.ones(3, dtype=torch.int64, device=device)], found_inf, inverse)
    with pytest.raises(RuntimeError):
        torch._amp_update_scale_(scalar(1.0, device), scalar(0, device), found_inf, 2.0, 0.5, 1)
        torch.accelerator.synchronize(device)


def test_the_shim(device, tmp_path):
    shim = torch.get_device_module(device).amp.GradScaler
    scaler = shim(init_scale=4.0)
    assert isinstance(scaler, torch.amp.GradScaler) and scaler._device == device.type
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="init_scale must be positive, not"):
            shim(init_scale=scale)
        scaler.scale(torch.ones((), device=device))
        with pytest.raises(ValueError, match="new_scale must be positive, not"):
            scaler.update(scale)
    assert shim(0.0, enabled=False).is_enabled() is False
    scaler.update(2.0)
    assert scaler.get_scale() == 2.0
    scaler.update(scalar(3.0, device))
    assert scaler.get_scale() == 3.0
    with pytest.raises(AssertionError):
        shim(growth_factor=1.0)
    with pytest.raises(AssertionError):
        shim(backoff_factor=1.0)
