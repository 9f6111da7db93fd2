# SPDX-License-Identifier: BSD-3-Clause
"""Operators that torch implements for its own devices, and operators that no device of this package supports."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from .support import assert_same

QUANTIZED = "ignore:.*quantized tensor creation functions:UserWarning"


@pytest.mark.parametrize(
    "product",
    [
        torch.dot,
        torch.vdot,
        torch.matmul,
        torch.inner,
        torch.linalg.vecdot,
        lambda a, b: torch.tensordot(a, b, 1),
        lambda a, b: torch.linalg.solve(torch.outer(a, b) + torch.eye(3, device=a.device) * 9, b),
        lambda a, b: torch.linalg.solve(torch.diag(b), a),
    ],
)
@pytest.mark.parametrize("dual", [0, 1])
def test_forward_mode_gradients_of_vectors(device, product, dual):
    def tangent(place):
        arguments = [torch.arange(1.0, 4.0).to(place), torch.arange(2.0, 5.0).to(place)]
        with forward_ad.dual_level():
            arguments[dual] = forward_ad.make_dual(arguments[dual], torch.ones(3, device=place))
            return forward_ad.unpack_dual(product(*arguments)).tangent

    assert_same(tangent(device), tangent("cpu"), device, tolerance=1e-5)


def test_zero_tensors_have_views(device):
    zeros = torch._efficientzerotensor((3, 4), device=device)
    assert zeros.t()[1:].unsqueeze(0).shape == (1, 3, 3)
    assert_same(zeros[1].clone() + 1, torch.ones(4), device)


def test_complex_conjugation_in_place(device):
    host = torch.randn(3, 3, dtype=torch.complex64)
    assert_same(host.to(device).conj_physical_(), host.clone().conj_physical_(), device)
    assert_same(torch.conj_physical(host.to(device), out=torch.empty_like(host, device=device)), host.conj(), device)


def test_complex_singular_values_into_given_outputs(device):
    host = torch.randn(4, 3, dtype=torch.complex64)
    out = [torch.empty(0, dtype=dtype, device=device) for dtype in (host.dtype, torch.float32, host.dtype)]
    u, s, v = torch.svd(host.to(device), out=tuple(out))
    assert u is out[0] and s is out[1] and v is out[2]
    assert_same(u @ torch.diag(s).to(u.dtype) @ v.mH, host, device, tolerance=1e-4)


def test_mode_into_given_outputs(device):
    host = torch.tensor([[1, 1, 2], [2, 3, 3]])
    out = [torch.empty(0, dtype=torch.long, device=device) for _ in range(2)]
    torch.mode(host.to(device), out=tuple(out))
    assert_same(out[0], torch.mode(host).values, device)
    assert_same(out[1], torch.mode(host).indices, device)


def test_batch_norm_without_update(device):
    host = torch.linspace(-2, 3, 12).reshape(4, 3)

    def normed(place):
        mean, variance = torch.full((3,), 0.5, device=place), torch.full((3,), 2.0, device=place)
        return torch.ops.aten._batch_norm_no_update(host.to(place), None, None, mean, variance, 0.1, 1e-5)

    for result, expected in zip(normed(device), normed("cpu"), strict=True):
        assert_same(result, expected, device, tolerance=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_histograms_of_integers(device, dtype):
    """Mixtures of experts count the requests to each expert; on devices other than the CPU they count in integers."""
    host = torch.tensor([0, 3, 3, 1, 7, 3, 5, 7], dtype=dtype)
    counts = torch.histc(host.to(device), bins=8, min=0, max=7)
    assert_same(counts, torch.bincount(host, minlength=8).to(dtype), device)
    assert_same(torch.histc(host.to(device), 4), torch.histc(host.float(), 4).to(dtype), device)


def test_histograms_of_integers_are_traced(device):
    """Fake tensors trace them, as in torch.compile. On the CPU, which counts no integers, they are still refused."""
    host = torch.tensor([0, 3, 3, 1], dtype=torch.int32)
    ours = host.to(device)
    with FakeTensorMode() as mode:
        counts = torch.histc(mode.from_tensor(ours), bins=8, min=0, max=7)
        assert counts.shape == (8,) and counts.dtype == torch.int32 and counts.device.type == device.type
        with pytest.raises(RuntimeError, match="not implemented for"):
            torch.histc(mode.from_tensor(host), bins=8, min=0, max=7)


GROUPED = {
    "rows": (lambda: torch.randn(10, 8), lambda: torch.randn(3, 8, 4)),
    "columns": (lambda: torch.randn(3, 6, 8), lambda: torch.randn(8, 12)),
    "sums": (lambda: torch.randn(8, 12), lambda: torch.randn(12, 4)),
    "a batch": (lambda: torch.randn(3, 6, 8), lambda: torch.randn(3, 8, 4)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_products(device, name):
    left, right = (make() for make in GROUPED[name])
    offs = None if name == "a batch" else torch.tensor([2, 2, 8], dtype=torch.int32)

    def product(place):
        a, b = (tensor.to(place).requires_grad_() for tensor in (left, right))
        result = torch._grouped_mm(a, b, offs=None if offs is None else offs.to(place))
        # Behind the last group nothing is written.
        ends = {"rows": (slice(8),), "columns": (slice(None), slice(8))}.get(name, ())
        return result[ends], result.stride()

    ours, expected = product(device), product("cpu")
    assert_same(ours[0].detach(), expected[0].detach(), device, tolerance=1e-5)
    assert ours[1] == expected[1]


def test_gradients_of_grouped_products(device):
    left, right, offs = torch.randn(8, 8), torch.randn(2, 8, 4), torch.tensor([4, 8], dtype=torch.int32)

    def gradients(place):
        a, b = (tensor.to(place).requires_grad_() for tensor in (left, right))
        torch._grouped_mm(a, b, offs=offs.to(place)).square().sum().backward()
        return a.grad, b.grad

    for ours, expected in zip(gradients(device), gradients("cpu"), strict=True):
        assert_same(ours, expected, device, tolerance=1e-4)


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        (((8, 8), (3, 8, 4)), (torch.float32, torch.float32, torch.int32)),
        (((8, 8), (2, 7, 4)), (torch.float32, torch.float32, torch.int32)),
        (((8, 8), (2, 8, 4)), (torch.float32, torch.float16, torch.int32)),
        (((8, 8), (2, 8, 4)), (torch.float64, torch.float64, torch.int32)),
        (((8, 8), (2, 8, 4)), (torch.float32, torch.float32, torch.int64)),
        (((8, 8), (2, 8, 3)), (torch.float32, torch.float32, torch.int32)),
    ],
)
def test_grouped_products_that_are_refused(device, shapes, dtypes):
    raised = []
    for place in ("cpu", device):
        a, b = (torch.ones(shape, dtype=dtype).to(place) for shape, dtype in zip(shapes, dtypes, strict=False))
        with pytest.raises(RuntimeError) as error:
            torch._grouped_mm(a, b, offs=torch.tensor([4, 8], dtype=dtypes[2]).to(place))
        raised.append(str(error.value).splitlines()[0])
    assert raised[0] == raised[1]


@pytest.mark.parametrize("name", ["default_per_channel_weight_fake_quant", "default_fused_per_channel_wt_fake_quant"])
def test_fake_quantization_per_channel(device, name):
    def quantized(place):
        module = getattr(torch.ao.quantization, name)().to(place)
        host = torch.linspace(-3, 4, 24).reshape(4, 6)
        first, second = module(host.to(place)), module(host.to(place) * 2)
        return first, second, module.scale, module.activation_post_process.min_val

    for result, expected in zip(quantized(device), quantized("cpu"), strict=True):
        assert_same(result, expected, device)


@pytest.mark.filterwarnings(QUANTIZED)
@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.quantize_per_tensor(torch.ones(3, device=d), 0.1, 0, torch.qint8),
        lambda d: torch.quantize_per_channel(
            torch.ones(3, 2, device=d), torch.ones(3, device=d), torch.zeros(3, device=d), 0, torch.qint8
        ),
        lambda d: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to(d),
        lambda d: torch.empty(3, dtype=torch.qint8, device=d),
    ],
)
def test_quantized_tensors_are_refused_at_the_call(device, make):
    with pytest.raises(NotImplementedError):
        make(device)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_supported_dtypes_are_those_that_empty_takes(device):
    supported = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert torch.float32 in supported and torch.int64 in supported
    for dtype in supported:
        assert torch.empty(2, dtype=dtype, device=device).dtype == dtype


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_tensors_are_refused_at_the_call(device):
    parts = [torch.ones(2, 3, device=device, requires_grad=True), torch.ones(1, 3, device=device)]
    with pytest.raises(NotImplementedError, match="use layout=torch.jagged|Use layout=torch.jagged"):
        torch.nested.as_nested_tensor(parts)
    jagged = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    assert_same(jagged.values().detach(), torch.ones(3, 3), device)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_takes_a_padding_mask_in_evaluation(device):
    def encoded(place):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 2).eval().to(place)
        padding = torch.tensor([[False, False, True, True], [False] * 4], device=place)
        with torch.no_grad():
            return encoder(torch.linspace(-1, 1, 64).reshape(2, 4, 8).to(place), src_key_padding_mask=padding)

    ours, expected = encoded(device).cpu(), encoded("cpu")
    kept = torch.tensor([[True, True, False, False], [True] * 4])
    torch.testing.assert_close(ours[kept], expected[kept])


LOSSES = {
    "hidden": lambda hy, cy: (hy * hy).sum(),
    "cell": lambda hy, cy: (cy * cy).sum(),
    "both": lambda hy, cy: (hy * hy * cy).sum(),
    "expanded": lambda hy, cy: hy.sum() + cy.sum(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_a_cell_of_an_lstm_and_its_gradients(device, loss, dtype, is_strided):
    torch.manual_seed(1)
    host = torch.nn.LSTMCell(5, 7, dtype=dtype)
    ours = torch.nn.LSTMCell(5, 7, dtype=dtype)
    ours.load_state_dict(host.state_dict())
    ours.to(device)
    values = [torch.randn(3, 5), torch.randn(3, 7), torch.randn(3, 7)]
    seen = []
    for model, place in ((host, torch.device("cpu")), (ours, device)):
        x, h, c = (value.to(place, dtype).detach() for value in values)
        if is_strided:
            c = c.t().contiguous().t()
        inputs = [each.clone().requires_grad_() for each in (x, h, c)]
        hy, cy = model(inputs[0], (inputs[1], inputs[2]))
        LOSSES[loss](hy, cy).backward()
        seen.append([hy, cy, *(each.grad for each in (*inputs, *model.parameters()))])
    tolerance = {"atol": 0.05, "rtol": 0.05} if dtype == torch.bfloat16 else {}
    for got, want in zip(seen[1], seen[0], strict=True):
        torch.testing.assert_close(got.cpu(), want, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_the_operators_of_sync_batch_norm(device, dtype):
    """Two ranks of 2 and of 4 images have the statistics and gradients that batch norm has of all 6."""
    x = torch.randn(6, 5, 4, 3).to(dtype)
    weight, bias, gradient = torch.randn(5), torch.randn(5), torch.randn(6, 5, 4, 3).to(dtype)
    running = [torch.randn(5), torch.rand(5) + 1]
    exact = [tensor.double().requires_grad_() for tensor in (x, weight, bias)]
    kept = [tensor.double() for tensor in running]
    wanted = torch.nn.functional.batch_norm(exact[0], *kept, *exact[1:], True, 0.2, 1e-5)
    gradients = torch.autograd.grad(wanted, exact, gradient.double())

    parts, signals = x.to(device).split([2, 4]), gradient.to(device).split([2, 4])
    w, b, *running_ours = (tensor.to(device) for tensor in (weight, bias, *running))
    stats = [torch.batch_norm_stats(part, 1e-5) for part in parts]
    counts = torch.tensor([24.0, 48.0], device=device)
    means, scales = (torch.stack([pair[place] for pair in stats]) for place in (0, 1))
    mean, scale = torch.batch_norm_gather_stats_with_counts(parts[0], means, scales, *running_ours, 0.2, 1e-5, counts)
    assert mean.dtype == scale.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    results = [torch.batch_norm_elemt(part, w, b, mean, scale, 1e-5) for part in parts]
    sums = [
        torch.batch_norm_backward_reduce(signal, part, mean, scale, w, True, True, True)
        for signal, part in zip(signals, parts, strict=True)
    ]
    dy, dy_xmu, dw, db = (a + b for a, b in zip(*sums, strict=True))
    inputs = [
        torch.batch_norm_backward_elemt(signal, part, mean, scale, w, dy, dy_xmu, counts.int())
        for signal, part in zip(signals, parts, strict=True)
    ]
    computed = [torch.cat(results), torch.cat(inputs), dw, db, *running_ours]
    assert computed[0].dtype == computed[1].dtype == dtype
    for ours, theirs in zip(computed, [wanted, *gradients, *kept], strict=True):
        tolerance = 2e-2 if dtype == torch.float16 else 1e-4
        torch.testing.assert_close(ours.cpu().double(), theirs.detach(), atol=tolerance, rtol=tolerance)
    assert torch.batch_norm_backward_reduce(signals[0], parts[0], mean, scale, w, False, False, True)[:3] == (None,) * 3


def test_sync_batch_norm_refuses_what_does_not_fit(device):
    x, five, four = torch.randn(2, 5, 3, device=device), torch.ones(5, device=device), torch.ones(4, device=device)
    refused = [
        (RuntimeError, "a batch and a channel dimension", lambda: torch.batch_norm_stats(five, 1e-5)),
        (TypeError, "floating point", lambda: torch.batch_norm_stats(x.long(), 1e-5)),
        (RuntimeError, "mean has sizes", lambda: torch.batch_norm_elemt(x, None, None, four, five, 1e-5)),
        (RuntimeError, "weight has sizes", lambda: torch.batch_norm_elemt(x, four, None, five, five, 1e-5)),
        (
            RuntimeError,
            "counts has sizes",
            lambda: torch.batch_norm_gather_stats_with_counts(x, five[None], five[None], None, None, 0.1, 1e-5, four),
        ),
        (
            RuntimeError,
            "the gradient has sizes",
            lambda: torch.batch_norm_backward_reduce(x[:1], x, five, five, None, True, True, True),
        ),
        (
            RuntimeError,
            "sum_dy has sizes",
            lambda: torch.batch_norm_backward_elemt(x, x, five, five, None, four, five, five.int()),
        ),
    ]
    for kind, words, call in refused:
        with pytest.raises(kind, match=words):
            call()
