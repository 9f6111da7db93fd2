# SPDX-License-Identifier: BSD-3-Clause
"""Modules, autograd and optimisers: the device against the CPU, bit for bit."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from .support import assert_same

# Modules for which the CPU has a fused kernel with another order of additions. The device has its
# own steps of recurrent layers. Attention has torch's composite form if the host cannot reach the
# memory: test_attention.py is exact elsewhere.
FUSED_ON_CPU = {"LSTM", "GRU", "RNN", "LSTMCell", "TransformerEncoderLayer", "Transformer"}
FUSED_TOLERANCE = 2e-5


def assert_module_agrees(module, inputs, device, tolerance=0.0):
    """Run a module forward and backward on the device and on the CPU and compare results and gradients."""
    module = module.double() if any(t.dtype == torch.float64 for t in inputs) else module
    outcomes = []
    for place in (torch.device("cpu"), device):
        ours = copy.deepcopy(module).to(place)
        arguments = [t.detach().to(place).requires_grad_(t.is_floating_point()) for t in inputs]
        result = ours(*arguments)
        results = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        sum(t.square().sum() for t in results if t.requires_grad).backward()
        gradients = [t.grad for t in [*arguments, *ours.parameters()] if t.requires_grad]
        assert all(gradient is not None for gradient in gradients)
        outcomes.append([*results, *gradients, *ours.buffers()])
    for expected, result in zip(*outcomes, strict=True):
        assert_same(result, expected, device, tolerance)


def randn(*shape, seed=3, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


MODULES = {
    "Linear": (lambda: nn.Linear(6, 4), [(5, 6)]),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), [(2, 3, 9)]),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2), [(2, 4, 9, 9)]),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), [(1, 2, 4, 4, 4)]),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2), [(2, 3, 5, 5)]),
    "dilated Conv2d": (lambda: nn.Conv2d(2, 3, 3, dilation=2, bias=False), [(1, 2, 8, 8)]),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), [(4, 3, 5, 5)]),
    "LayerNorm": (lambda: nn.LayerNorm(6), [(4, 6)]),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), [(3, 4, 5)]),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3), [(2, 3, 8)]),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), [(2, 3, 6, 6)]),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2), [(2, 3, 7, 7)]),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), [(2, 3, 7, 7)]),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), [(1, 2, 4, 4)]),
    "LSTM": (lambda: nn.LSTM(5, 7, num_layers=2, bidirectional=True), [(4, 3, 5)]),
    "GRU": (lambda: nn.GRU(5, 7), [(4, 3, 5)]),
    "RNN": (lambda: nn.RNN(5, 7), [(4, 3, 5)]),
    "LSTMCell": (lambda: nn.LSTMCell(5, 7), [(3, 5)]),
    "Bilinear": (lambda: nn.Bilinear(3, 4, 2), [(5, 3), (5, 4)]),
    "PReLU": (lambda: nn.PReLU(3), [(4, 3)]),
    "GELU": (lambda: nn.GELU(), [(4, 30)]),
    "Softmax": (lambda: nn.Softmax(1), [(4, 9)]),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), [(1, 4, 3, 3)]),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        [(2, 6, 16)],
    ),
    "Transformer": (lambda: nn.Transformer(16, 2, 1, 1, 32, dropout=0.0), [(5, 2, 16), (4, 2, 16)]),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("name", MODULES)
def test_module(device, name):
    make, shapes = MODULES[name]
    inputs = [randn(*shape, seed=number) for number, shape in enumerate(shapes)]
    assert_module_agrees(make(), inputs, device, FUSED_TOLERANCE if name in FUSED_ON_CPU else 0.0)


def test_multihead_attention_with_a_mask(device):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
            return self.inner(x, x, x, attn_mask=mask)

    assert_module_agrees(Attention(), [randn(2, 5, 8)], device, FUSED_TOLERANCE)


def test_embedding_and_embedding_bag(device):
    indices = torch.tensor([[1, 2, 4, 4], [0, 3, 2, 9]])
    assert_module_agrees(nn.Embedding(10, 5, padding_idx=2), [indices], device)
    assert_module_agrees(nn.EmbeddingBag(10, 5, mode="sum"), [indices], device)


def test_packed_sequences(device):
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3, 2], batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(self.inner(packed)[0], batch_first=True)[0]

    assert_module_agrees(Packed(), [randn(3, 5, 3)], device, FUSED_TOLERANCE)


def losses(place):
    logits, target = randn(4, 6).to(place).requires_grad_(), torch.tensor([1, 0, 5, 2]).to(place)
    goal = randn(4, 6, seed=8).to(place)
    yield logits, functional.cross_entropy(logits, target, label_smoothing=0.1)
    yield logits, functional.nll_loss(logits.log_softmax(1), target)
    yield logits, functional.mse_loss(logits, goal)
    yield logits, functional.smooth_l1_loss(logits, goal)
    yield logits, functional.binary_cross_entropy_with_logits(logits, goal.sigmoid())
    yield logits, functional.kl_div(logits.log_softmax(1), goal.softmax(1), reduction="batchmean")
    yield logits, functional.cosine_embedding_loss(logits, goal, torch.ones(4, device=place))
    steps = logits.view(4, 1, 6).log_softmax(2)
    yield logits, functional.ctc_loss(steps, target[:1].view(1, 1), (4,), (1,))


def test_losses(device):
    for (ours, loss), (host, expected) in zip(losses(device), losses("cpu"), strict=True):
        assert_same(loss.detach(), expected.detach(), device)
        assert_same(*[torch.autograd.grad(*pair)[0] for pair in ((loss, ours), (expected, host))], device)


def test_moving_a_module_keeps_its_parameters_identity(device):
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    module[0].bias = nn.Parameter(module[1].bias.detach())
    module[1].bias = module[0].bias
    parameters = dict(module.named_parameters())
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    assert module.to(device) is module
    for name, parameter in module.named_parameters():
        assert parameter is parameters[name] and isinstance(parameter, nn.Parameter)
        assert parameter.device == device
    assert module[0].bias is module[1].bias
    module(torch.ones(2, 3, device=device)).sum().backward()
    before = module[0].weight.detach().clone()
    gradient = module[0].weight.grad
    assert gradient.device == device
    optimizer.step()
    assert_same(module[0].weight.detach(), before.cpu() - 0.1 * gradient.cpu(), device)
    module.cpu()
    assert module[0].weight is parameters["0.weight"] and module[0].weight.device.type == "cpu"
    assert module[0].weight.grad.device.type == "cpu"


def train(place, make_optimizer, steps=4):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(place)
    optimizer = make_optimizer(model.parameters())
    inputs, targets = randn(10, 6).to(place), randn(10, 3, seed=7).to(place)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [*model.parameters(), *(value for value in states if isinstance(value, torch.Tensor) and value.dim())]


OPTIMIZERS = {
    "SGD": lambda parameters, **kw: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01, **kw),
    "Adam": lambda parameters, **kw: torch.optim.Adam(parameters, 0.01, **kw),
    "AdamW": lambda parameters, **kw: torch.optim.AdamW(parameters, 0.01, **kw),
    "amsgrad": lambda parameters, **kw: torch.optim.AdamW(parameters, 0.01, amsgrad=True, **kw),
}


@pytest.mark.parametrize(
    "kind", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=["foreach", "fused", "loop"]
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(device, name, kind):
    results = [train(place, lambda p: OPTIMIZERS[name](p, **kind)) for place in (device, "cpu")]
    for result, expected in zip(*results, strict=True):
        assert_same(result.detach(), expected.detach(), device)


@pytest.mark.parametrize("name", ["RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Adamax", "Rprop", "ASGD"])
def test_other_optimizers(device, name):
    results = [
        train(place, lambda p: getattr(torch.optim, name)(p, lr=0.01, foreach=True)) for place in (device, "cpu")
    ]
    for result, expected in zip(*results, strict=True):
        assert_same(result.detach(), expected.detach(), device)


def test_lbfgs(device):
    def run(place):
        parameter = randn(4).to(place).requires_grad_()
        optimizer = torch.optim.LBFGS([parameter], max_iter=5)

        def closure():
            optimizer.zero_grad()
            loss = (parameter - 3).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return parameter.detach()

    assert_same(run(device), run("cpu"), device)


def test_gradient_scaler_and_accumulation(device):
    parameter = torch.ones(3, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 0.5)
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    scaler.scale((parameter * 2).sum()).backward()
    assert parameter.grad.tolist() == [16.0] * 3
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [0.0] * 3
    optimizer.zero_grad()
    scaler.scale((parameter * torch.inf).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [0.0] * 3 and scaler.get_scale() == 4.0


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_higher_derivatives_and_functional_transforms(device):
    def second(x):
        (gradient,) = torch.autograd.grad(x.pow(4).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.sum(), x)[0]

    def of(place):
        x = randn(4).to(place)
        yield second(x.clone().requires_grad_())
        yield torch.func.vmap(lambda t: t.sin().sum())(x.view(2, 2))
        yield torch.func.jacrev(lambda t: t.square() * t.sum())(x)
        yield torch.func.hessian(lambda t: t.pow(3).sum())(x)
        yield torch.func.jvp(lambda t: t.exp(), (x,), (torch.ones_like(x),))[1]

    for result, expected in zip(of(device), of("cpu"), strict=True):
        assert_same(result.detach(), expected.detach(), device)


def test_backward_hooks_and_custom_functions(device):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            assert x.device == gradient.device == device
            return gradient * 2

    seen = []
    ours = torch.ones(3, device=device, requires_grad=True)
    ours.register_hook(lambda gradient: seen.append(gradient.device))
    Double.apply(ours).sum().backward()
    assert ours.grad.tolist() == [2, 2, 2] and seen == [device]


def test_backward_runs_on_the_forward_stream(device):
    module = torch.get_device_module(device)
    side = torch.Stream(device)
    ours = torch.ones(1 << 14, device=device, requires_grad=True)
    side.wait_stream(module.current_stream(device))
    with module.stream(side):
        result = ours
        for _ in range(10):
            result = result * 1.5
        loss = result.sum()
    module.current_stream(device).wait_stream(side)
    loss.backward()
    assert ours.grad.unique().tolist() == pytest.approx([1.5**10])


def test_backward_in_threads_and_on_every_device(device):
    failures = []

    def work(place):
        for number in range(10):
            ours = torch.full((50,), float(number), device=place, requires_grad=True)
            (ours * ours).sum().backward()
            if ours.grad.unique().tolist() != [2.0 * number] or ours.grad.device != place:
                failures.append((place, number))

    places = [torch.device(device.type, index) for index in range(torch.accelerator.device_count())] * 3
    threads = [threading.Thread(target=work, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_gradients_flow_between_devices(device, second_device):
    host = torch.arange(3.0, requires_grad=True)
    ours = host.to(device) * 2
    theirs = ours.to(second_device) * 3
    (theirs.sum() + ours.to(second_device).sum()).backward()
    assert host.grad.tolist() == [8, 8, 8]


def test_no_grad_and_inference_mode(device):
    ours = torch.ones(3, device=device, requires_grad=True)
    with torch.no_grad():
        assert not (ours * 2).requires_grad
    with torch.inference_mode():
        inferred = ours * 2
        assert inferred.is_inference() and inferred.tolist() == [2, 2, 2]
        inferred.add_(1)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled", "ignore:Error detected in")
def test_anomaly_mode_finds_the_operator(device):
    ours = torch.ones(3, device=device, requires_grad=True)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan"):
        (ours - 1).sqrt().mul(0).sum().backward()


def test_in_place_changes_of_saved_tensors_are_noticed(device):
    ours = torch.ones(3, device=device, requires_grad=True)
    result = ours.exp()
    result.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


FORMATS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("grad_format", FORMATS)
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("input_format", FORMATS)
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("convolve", [functional.conv2d, functional.conv_transpose2d])
def test_convolutions_give_the_strides_of_the_cpu(device, convolve, groups, input_format, weight_format, grad_format):
    x = randn(2, 8, 10, 10).to(memory_format=input_format)
    weight = randn(8, 8 // groups, 3, 3).to(memory_format=weight_format)
    # Small: where gradients cancel no two orders of addition agree.
    grad = (randn(2, 8, 10, 10) / 100).to(memory_format=grad_format)
    outcomes = []
    for place in (torch.device("cpu"), device):
        leaves = [t.detach().to(place).requires_grad_() for t in (x, weight)]
        result = convolve(*leaves, padding=1, groups=groups)
        gradients = torch.autograd.grad(result, leaves, grad.to(place))
        outcomes.append([result, *gradients])
    for expected, result in zip(*outcomes, strict=True):
        assert_same(result, expected, device, 0.0)
        assert result.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(4, 2048, 1000), (64, 4100, 64), (1, 30000, 3)])
def test_long_sums_of_few_results(device, rows, depth, columns, dtype):
    """Generated kernels share such a sum among groups. Sums of -1, 0 and 1 are exact in any order."""
    left, right = (torch.randint(-1, 2, size).to(dtype) for size in ((rows, depth), (depth, columns)))
    assert_same(left.to(device) @ right.to(device), left @ right, device)


def test_the_weight_of_a_convolution_of_large_images(device):
    image, weight, grad = (
        torch.randint(-1, 2, size).float() for size in ((4, 16, 56, 56), (16, 16, 3, 3), (4, 16, 56, 56))
    )

    def gradient(place):
        leaf = weight.to(place).requires_grad_()
        torch.nn.functional.conv2d(image.to(place), leaf, padding=1).backward(grad.to(place))
        return leaf.grad

    assert_same(gradient(device), gradient("cpu"), device)
