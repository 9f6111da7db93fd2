# SPDX-License-Identifier: BSD-3-Clause
"""Recurrent cells and sequences as generated kernels: launches, values and gradients."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_outboard
from tests.kernels.test_lists import kernels

LENGTHS = [5, 4, 4, 1]
KINDS = {
    "LSTM": (torch.nn.LSTM, {}),
    "GRU": (torch.nn.GRU, {}),
    "tanh": (torch.nn.RNN, {}),
    "relu": (torch.nn.RNN, {"nonlinearity": "relu"}),
}
# Relative to the largest element.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def net_of(kind: str, *sizes: int, **settings: Any) -> torch.nn.RNNBase:
    layer, more = KINDS[kind]
    net: torch.nn.RNNBase = layer(*sizes, **more, **settings)
    return net


def inputs_of(net: torch.nn.RNNBase, batch: int = 4) -> list[torch.Tensor]:
    """Return an input and the initial states."""
    layers = net.num_layers * (2 if net.bidirectional else 1)
    x = torch.randn(5, batch, net.input_size)
    states = [torch.randn(layers, batch, net.proj_size or net.hidden_size)]
    if net.mode == "LSTM":
        states.append(torch.randn(layers, batch, net.hidden_size))
    return [x.transpose(0, 1).contiguous() if net.batch_first else x, *states]


def results_of(net: torch.nn.RNNBase, inputs: list[torch.Tensor], is_packed: bool) -> list[torch.Tensor]:
    """Return the states, and the gradients of a sum that weighs each differently."""
    x, *states = (tensor.detach().requires_grad_() for tensor in inputs)
    sequence = pack_padded_sequence(x, LENGTHS, batch_first=net.batch_first) if is_packed else x
    output, last = net(sequence, tuple(states) if net.mode == "LSTM" else states[0])
    if is_packed:
        output = pad_packed_sequence(output, batch_first=net.batch_first)[0]
    results = [output, *(last if net.mode == "LSTM" else [last])]
    weights = torch.Generator().manual_seed(3)
    loss = sum((result * torch.randn(result.shape, generator=weights).to(result)).sum() for result in results)
    wanted = [leaf for leaf in (x, *states, *net.parameters()) if leaf.requires_grad]
    return [*(result.detach() for result in results), *torch.autograd.grad(loss, wanted)]


def _ran_whole(calls: torch_outboard.Coverage) -> bool:
    """Return True if the driver's library ran all steps of all layers in one call."""
    return calls.calls("outboard::recurrent_net", "native") > 0


def check(
    net: torch.nn.RNNBase, device: torch.device, dtype: torch.dtype = torch.float32, is_packed: bool = False
) -> None:
    """Compare with float64 on the CPU. Nothing may run there."""
    net = net.to(dtype)
    inputs = [tensor.to(dtype) for tensor in inputs_of(net)]
    expected = results_of(copy.deepcopy(net).double(), [tensor.double() for tensor in inputs], is_packed)
    ours, moved = copy.deepcopy(net).to(device), [tensor.to(device) for tensor in inputs]
    torch_outboard.reset_coverage()
    results = results_of(ours, moved, is_packed)
    calls = torch_outboard.coverage()
    assert calls.calls("outboard::recurrent", "generated") or _ran_whole(calls), calls
    assert not calls.calls(provider="fallback"), calls
    # Gradients carry the rounding of each step to those before it. cuDNN reached 1.2e-5 in float32.
    bound = TOLERANCES[dtype] * (2 if _ran_whole(calls) else 1)
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == dtype and result.shape == wanted.shape
        scale = wanted.abs().max().clamp(min=1)
        torch.testing.assert_close(result.cpu().double() / scale, wanted / scale, atol=bound, rtol=0)


@pytest.mark.parametrize("is_packed", [False, True], ids=["equal", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_and_their_gradients(kind: str, is_packed: bool, device: torch.device) -> None:
    check(net_of(kind, 6, 19, num_layers=2 if kind == "LSTM" else 1, bidirectional=True), device, is_packed=is_packed)


@pytest.mark.parametrize("is_packed", [False, True], ids=["equal", "packed"])
def test_states_with_a_projection(is_packed: bool, device: torch.device) -> None:
    check(net_of("LSTM", 6, 19, proj_size=3, bidirectional=True), device, is_packed=is_packed)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("LSTM", torch.float64), ("LSTM", torch.float16), ("GRU", torch.bfloat16)], ids=str
)
def test_other_types(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    check(net_of(kind, 6, 5, batch_first=True), device, dtype)


def test_layers_without_biases_and_frozen_weights(device: torch.device) -> None:
    net = net_of("LSTM", 6, 5, bias=False)
    net.weight_hh_l0.requires_grad_(False)
    check(net, device)


def test_dense_and_other_strides(device: torch.device) -> None:
    """The initial states, the weights and the gradient of the result are not contiguous."""
    host = torch.nn.GRU(6, 5)
    ours = copy.deepcopy(host).to(device)
    seen = []
    for net, place in ((host, torch.device("cpu")), (ours, device)):
        torch.manual_seed(1)
        x = torch.randn(6, 4, 5).to(place).permute(2, 1, 0).requires_grad_()
        h = torch.randn(5, 1, 4).to(place).permute(1, 2, 0)
        weights = [w.detach().t().contiguous().t().requires_grad_() for w in net.parameters() if w.dim() == 2]
        biases = [b for b in net.parameters() if b.dim() == 1]
        output, last = torch.gru(x, h, [*weights, *biases], True, 1, 0.0, True, False, False)
        loss = (output * torch.arange(0, 1, 0.01).view(4, 5, 5).to(place).transpose(0, 1)).sum() + last.sum()
        seen.append([output, *torch.autograd.grad(loss, [x, *weights, *biases])])
    for reference, result in zip(*seen, strict=True):
        torch.testing.assert_close(result.cpu(), reference, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_second_derivatives(device: torch.device) -> None:
    host = net_of("GRU", 3, 4)
    grads = []
    for net, place in ((host, torch.device("cpu")), (copy.deepcopy(host).to(device), device)):
        x = torch.linspace(-1, 1, 12).view(2, 2, 3).to(place).requires_grad_()
        wanted = [x, *net.parameters()]
        first = torch.autograd.grad(net(x)[0].pow(3).sum(), wanted, create_graph=True)
        grads.append(torch.autograd.grad(sum(grad.square().sum() for grad in first), wanted))
    for reference, result in zip(*grads, strict=True):
        torch.testing.assert_close(result.cpu(), reference, atol=1e-4, rtol=1e-4)


def test_autocast_rounds_and_gradients_stay_float(device: torch.device) -> None:
    net = net_of("LSTM", 6, 5).to(device)
    x = torch.randn(5, 4, 6, device=device)
    torch_outboard.reset_coverage()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        output, (h, c) = net(x)
    assert output.dtype == h.dtype == c.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.dtype == torch.float32 for parameter in net.parameters())
    calls = torch_outboard.coverage()
    assert calls.calls("outboard::recurrent_backward", "generated") == 1 or _ran_whole(calls)
    exact = copy.deepcopy(net).cpu().double()(x.cpu().double())[0]
    torch.testing.assert_close(output.cpu().double(), exact, atol=3e-2, rtol=3e-2)


def test_wrong_arguments_are_torchs_errors(device: torch.device) -> None:
    net = net_of("LSTM", 6, 5).to(device)
    weights, x = list(net.parameters()), torch.randn(3, 2, 6, device=device)
    states = [torch.zeros(1, 2, 5, device=device)] * 2
    sizes = torch.tensor([2, 2, 1])

    def packed(rows: torch.Tensor, sizes: torch.Tensor) -> Any:
        return torch.lstm(rows, sizes, states, weights, True, 1, 0.0, False, False)

    refused: list[tuple[str, Any]] = [
        ("Expected sequence length", lambda: net(x[:0])),
        (
            "input_size|size mismatch|shapes cannot be multiplied",
            lambda: torch.lstm(x[..., :5], states, weights, True, 1, 0.0, False, False, False),
        ),
        (
            "hx.0.|h_0|Dimension out of range",
            lambda: torch.lstm(x, [states[0][:, 0]] * 2, weights, True, 1, 0.0, False, False, False),
        ),
        ("two hidden states", lambda: torch.lstm(x, states[:1], weights, True, 1, 0.0, False, False, False)),
        ("more hidden states|h_0", lambda: torch.lstm(x, states, weights, True, 2, 0.0, False, False, False)),
        (
            "same dtype|is not at the same|dtype",
            lambda: torch.lstm(x.half(), states, weights, True, 1, 0.0, False, False, False),
        ),
        ("device", lambda: torch.lstm(x, [h.cpu() for h in states], weights, True, 1, 0.0, False, False, False)),
        ("exceeds|start|length|narrow", lambda: packed(x.flatten(0, 1)[:4], sizes)),
    ]
    for message, call in refused:
        with pytest.raises((RuntimeError, IndexError, ValueError), match=message):
            call()


def test_the_operator_refuses_what_does_not_fit(device: torch.device) -> None:
    gates, h, c, weight = (torch.zeros(shape, device=device) for shape in ((3, 2, 20), (2, 5), (2, 5), (20, 5)))

    def run(*inputs: Any, kind: int = 0, offsets: Any = None) -> None:
        torch.ops.outboard.recurrent(*inputs, None, None, None, offsets, kind, False, False)

    run(gates, h, c, weight)
    for call in (
        lambda: run(gates[0], h, c, weight),
        lambda: run(gates, h, None, weight),
        lambda: run(gates, h, c, weight[:, :4]),
        lambda: run(gates, h[:1], c, weight),
        lambda: run(gates, h, c, weight, kind=7),
        lambda: run(gates[0], h, c, weight, offsets=h),
    ):
        with pytest.raises(ValueError, match="recurrent: "):
            call()


@pytest.mark.parametrize("shape", [(3, 0, 6), (1, 1, 6)], ids=["no sequences", "one step"])
def test_few_rows(shape: tuple[int, ...], device: torch.device) -> None:
    host = net_of("GRU", 6, 5)
    x = torch.randn(shape)
    output, last = copy.deepcopy(host).to(device)(x.to(device))
    expected, at_last = host(x)
    torch.testing.assert_close(output.cpu(), expected)
    torch.testing.assert_close(last.cpu(), at_last)


@pytest.mark.parametrize("bound", ["tanh", "relu"])
def test_plain_cells(bound: str, device: torch.device) -> None:
    host = torch.nn.RNNCell(6, 5, nonlinearity=bound)
    results = []
    for cell, place in ((host, torch.device("cpu")), (copy.deepcopy(host).to(device), device)):
        x = torch.linspace(-1, 1, 24).view(4, 6).to(place).requires_grad_()
        wanted = [x, *cell.parameters()]
        torch_outboard.reset_coverage()
        result = cell(x)
        first = torch.autograd.grad(result.square().sum(), wanted, create_graph=True)
        results.append([result, *first, *torch.autograd.grad(first[0].square().sum(), wanted)])
    assert torch_outboard.coverage().calls("outboard::bound_sum", "generated") == 1
    for reference, got in zip(*results, strict=True):
        torch.testing.assert_close(got.cpu(), reference, atol=1e-5, rtol=1e-5)


def launched(work: Any, device: torch.device, folder: Path) -> Counter[str]:
    return Counter(kernels(work, device, folder))


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_one_launch(kind: str, device: torch.device, tmp_path: Path) -> None:
    """The rest is the same for every number of steps."""
    net = net_of(kind, 6, 5).to(device)
    torch_outboard.reset_coverage()
    net(torch.randn(2, 2, 6, device=device))
    if _ran_whole(torch_outboard.coverage()):
        pytest.skip("capability: nets by steps. The driver's library runs whole nets")
    launches = []
    for steps in (4, 24):
        x = torch.randn(steps, 2, 6, device=device)

        def train(x: torch.Tensor = x) -> None:
            net(x)[0].sum().backward()

        train()
        launches.append(launched(train, device, tmp_path))
    if not launches[0]:
        pytest.skip("capability: times of work, without which profiles show no kernels")
    more = launches[1] - launches[0]
    # A library chooses its products' kernels by the sizes, so their numbers say nothing.
    ours = {name: count for name, count in more.items() if name.startswith("outboard::recurrent")}
    assert sum(ours.values()) <= 2 * 20, more
    assert {name.partition("/")[0] for name in ours} == {"outboard::recurrent", "outboard::recurrent_backward"}, more
    assert all(abs(count) <= 1 for name, count in more.items() if name not in ours), more


def test_a_graph_replays_the_steps(device: torch.device) -> None:
    module = torch.get_device_module(device.type)
    net = net_of("LSTM", 6, 5, bidirectional=True).to(device)
    x = torch.randn(5, 4, 6, device=device)
    with torch.no_grad():
        net(x)
        graph = module.Graph()
        with module.graph(graph):
            output = net(x)[0]
        for _ in range(2):
            fresh = torch.randn(5, 4, 6)
            x.copy_(fresh)
            graph.replay()
            torch.testing.assert_close(output.cpu(), copy.deepcopy(net).cpu()(fresh)[0], atol=1e-5, rtol=1e-5)


def test_dropout_draws_between_layers(device: torch.device) -> None:
    net = net_of("GRU", 6, 5, num_layers=2, dropout=0.5).to(device)
    x = torch.randn(5, 4, 6, device=device)
    torch.manual_seed(5)
    first = net(x)[0]
    torch.manual_seed(5)
    assert torch.equal(first, net(x)[0])
    assert not torch.equal(first, net(x)[0])
    assert torch.equal(net.eval()(x)[0], net(x)[0])
