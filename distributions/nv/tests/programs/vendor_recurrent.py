# SPDX-License-Identifier: BSD-3-Clause
"""Compare nv's recurrent nets with cuDNN to float64 on the CPU: python vendor_recurrent.py [LIBCUDA LIBCUDNN]

With fake_cuda.cpp and fake_cudnn.cpp the test needs no GPU; on a GPU, without arguments, it tests the real library. The
fake runs no kernels, so that copies are left to the GPU.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

os.environ["OUTBOARD_PROVIDERS"] = "native,generated" if len(sys.argv) < 2 else "native,host"
os.environ["OUTBOARD_FALLBACK"] = "silent"

import torch_outboard

HAS_KERNELS = len(sys.argv) < 2
HAS_BFLOAT16 = "OB_TEST_NO_BFLOAT16" not in os.environ  # otherwise the library or the chip has no bfloat16
WHOLE, PARTS = "outboard::recurrent_net", "outboard::recurrent"
BOUNDS = {torch.float32: 2e-6, torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LENGTHS = [7, 7, 4, 3, 1]
MODES = {
    "LSTM": (torch.nn.LSTM, {}),
    "GRU": (torch.nn.GRU, {}),
    "tanh": (torch.nn.RNN, {}),
    "relu": (torch.nn.RNN, {"nonlinearity": "relu"}),
}


@dataclass(frozen=True)
class Case:
    """A net and its input: one sequence per length, padded or packed."""

    width: int = 6
    cells: int = 9
    layers: int = 1
    projection: int = 0
    batch: int = 5
    steps: int = 7
    has_biases: bool = True
    is_bidirectional: bool = False
    is_packed: bool = False
    is_batch_first: bool = False

    def net(self, mode: str, dtype: torch.dtype) -> torch.nn.RNNBase:
        kind, more = MODES[mode]
        net: torch.nn.RNNBase = kind(
            *(self.width, self.cells, self.layers),
            bias=self.has_biases,
            batch_first=self.is_batch_first,
            bidirectional=self.is_bidirectional,
            **({"proj_size": self.projection} if self.projection else {}),
            **more,
        )
        return net.to(dtype)

    def given(self, mode: str, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return an input, or the rows of a packed input, and the initial states."""
        rows = self.layers * (2 if self.is_bidirectional else 1)
        if self.is_packed:
            x = torch.randn(sum(LENGTHS), self.width)
        else:
            order = (self.batch, self.steps) if self.is_batch_first else (self.steps, self.batch)
            x = torch.randn(*order, self.width)
        states = [torch.randn(rows, self.batch, self.projection or self.cells)]
        if mode == "LSTM":
            states.append(torch.randn(rows, self.batch, self.cells))
        return [tensor.to(dtype) for tensor in (x, *states)]

    def call(self, net: torch.nn.RNNBase, x: torch.Tensor, states: list[torch.Tensor]) -> list[torch.Tensor]:
        hx = tuple(states) if len(states) > 1 else states[0]
        if self.is_packed:
            sizes = torch.tensor([sum(length > step for length in LENGTHS) for step in range(LENGTHS[0])])
            output, last = net(PackedSequence(x, sizes), hx)
            output = output.data
        else:
            output, last = net(x, hx)
        return [output, *(last if isinstance(last, tuple) else (last,))]


ANY = {
    "plain": Case(),
    "two layers": Case(layers=2),
    "both directions": Case(layers=2, is_bidirectional=True),
    "packed": Case(is_packed=True),
    "packed, both directions": Case(layers=2, is_packed=True, is_bidirectional=True),
    "without biases": Case(layers=2, has_biases=False),
    "one step": Case(steps=1),
    "one sequence": Case(batch=1),
    "refused, if persistent": Case(cells=14),
}
PROJECTED = {
    "projected": Case(projection=4),
    "projected, both directions": Case(projection=4, layers=2, is_bidirectional=True),
    "projected, packed": Case(projection=4, layers=2, is_packed=True),
}
# Sizes for which the real library has special kernels.
LARGE = {
    "large": Case(width=128, cells=256, layers=2, batch=32, steps=20),
    "persistent": Case(width=128, cells=256, batch=32, steps=20),
    "between the bounds": Case(width=64, cells=160, batch=32, steps=20, is_bidirectional=True),
    "many small": Case(width=32, cells=64, layers=3, batch=64, steps=20, is_bidirectional=True),
    "odd": Case(width=33, cells=77, layers=2, batch=13, steps=19, is_bidirectional=True),
    "batches first": Case(width=64, cells=96, layers=2, batch=16, steps=12, is_batch_first=True),
}


def native_calls(op: str = WHOLE, provider: str = "native") -> int:
    return sum(row.calls for row in torch_outboard.coverage() if row.op == op and row.provider == provider)


def check(ours: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, label: object) -> None:
    assert ours.dtype == dtype and ours.shape == expected.shape, (label, ours.dtype, ours.shape)
    scale = float(expected.abs().max().clamp_min(1))
    difference = float((ours.cpu().double() - expected).abs().max()) / scale
    # The real library's tanh is an approximation, whose errors propagate through layers: 6 bounds
    # on an H100.
    assert difference < BOUNDS[dtype] * (10 if HAS_KERNELS else 1), (label, dtype, difference)


def run(case: Case, mode: str, dtype: torch.dtype, label: object, is_taken: bool = True) -> None:
    """Compare the results, with and without gradients, and the gradients."""
    net, inputs_of_case = case.net(mode, dtype), case.given(mode, dtype)
    exact = copy.deepcopy(net).double()
    inputs = [tensor.double().requires_grad_() for tensor in inputs_of_case]
    expected = case.call(exact, inputs[0], inputs[1:])
    signals = [torch.randn(output.shape).to(dtype) for output in expected]
    wanted = [*inputs, *exact.parameters()]
    expected_grads = torch.autograd.grad(expected, wanted, [signal.double() for signal in signals])
    ours, moved = net.to("nv"), [tensor.to("nv").requires_grad_() for tensor in inputs_of_case]
    before = native_calls(), native_calls(WHOLE + "_backward")
    with torch.no_grad():
        for result, reference in zip(case.call(ours, moved[0], moved[1:]), expected, strict=True):
            check(result, reference.detach(), dtype, (label, mode, "inference"))
    results = case.call(ours, moved[0], moved[1:])
    for result, reference in zip(results, expected, strict=True):
        check(result.detach(), reference.detach(), dtype, (label, mode, "forward"))
    grads = torch.autograd.grad(results, [*moved, *ours.parameters()], [signal.to("nv") for signal in signals])
    names = ["input", "h0", "c0"][: len(moved)] + [name for name, _ in ours.named_parameters()]
    for name, result, reference in zip(names, grads, expected_grads, strict=True):
        check(result, reference, dtype, (label, mode, name))
    after = native_calls(), native_calls(WHOLE + "_backward")
    assert after == ((before[0] + 2, before[1] + 1) if is_taken else before), (label, mode, dtype, before, after)


def output_alone() -> None:
    """Test gradients of only the states of all steps, of only the last states, and with frozen weights."""
    case = Case(layers=2, is_bidirectional=True)
    net, (x, *states) = case.net("LSTM", torch.float32), case.given("LSTM", torch.float32)
    ours = copy.deepcopy(net).to("nv")
    for place in range(3):
        grads = []
        for module, device in ((net, "cpu"), (ours, "nv")):
            rows = x.detach().to(device).requires_grad_()
            result = case.call(module, rows, [state.to(device) for state in states])[place]
            wanted = [rows, *module.parameters()]
            signal = torch.linspace(-1, 1, result.numel()).view(result.shape).to(device)
            grads.append(torch.autograd.grad(result, wanted, signal, allow_unused=True))
        for one_grad, reference in zip(grads[1], grads[0], strict=True):
            expected = torch.zeros_like(one_grad, device="cpu") if reference is None else reference
            check(one_grad, expected.double(), torch.float32, ("the gradients of a result", place))
    before = native_calls(WHOLE + "_backward")
    ours.requires_grad_(False)
    rows = x.detach().to("nv").requires_grad_()
    result = ours(rows)[0]
    (grad,) = torch.autograd.grad(result, rows, torch.ones(result.shape).to("nv"))
    host = x.detach().clone().requires_grad_()
    net(host)[0].sum().backward()
    assert host.grad is not None
    check(grad, host.grad.double(), torch.float32, "frozen weights")
    assert native_calls(WHOLE + "_backward") == before + 1


@dataclass
class Trained:
    """A net on the CPU and on the device, and its inputs."""

    host: torch.nn.RNNBase
    ours: torch.nn.RNNBase
    x: torch.Tensor

    @staticmethod
    def of(mode: str, case: Case) -> Trained:
        net = case.net(mode, torch.float32)
        return Trained(net, copy.deepcopy(net).to("nv"), case.given(mode, torch.float32)[0])


def twice() -> None:
    """Test two passes through one graph, and second derivatives."""
    for mode in MODES:
        pair = Trained.of(mode, Case(layers=2, is_bidirectional=True))
        seconds = []
        for net, x in ((pair.host, pair.x), (pair.ours, pair.x.to("nv"))):
            rows = x.clone().requires_grad_()
            output, wanted = net(rows)[0], [rows, *net.parameters()]
            signal = torch.linspace(-1, 1, output.numel()).view(output.shape).to(x.device)
            first = torch.autograd.grad(output, wanted, signal, retain_graph=True)
            again = torch.autograd.grad(output, wanted, signal, retain_graph=True)
            assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, again, strict=True)) or HAS_KERNELS
            if not HAS_KERNELS:  # second derivatives run layer by layer, and need copies of tensors
                continue
            once_more = torch.autograd.grad(output, wanted, signal, create_graph=True)
            for result, reference in zip(once_more, first, strict=True):
                check(result.detach(), reference.cpu().double(), torch.float32, (mode, "gradients that have gradients"))
            seconds.append(torch.autograd.grad([once_more[0]], wanted, [torch.ones(rows.shape).to(x.device)]))
        for result, reference in zip(*seconds[::-1], strict=True):
            check(result, reference.double(), torch.float32, (mode, "second derivatives"))


def rounded() -> None:
    """Check that float32 is rounded to TF32 only if torch allows it."""
    case = Case(width=64, cells=208, batch=32)
    pair = Trained.of("LSTM", case)
    exact = copy.deepcopy(pair.host).double()(pair.x.double())[0]
    differences = []
    for precision in ("ieee", "tf32"):
        torch.backends.cudnn.rnn.fp32_precision = precision  # type: ignore[attr-defined]
        with torch.no_grad():
            differences.append(float((pair.ours(pair.x.to("nv"))[0].cpu().double() - exact).abs().max()))
    torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]
    assert differences[0] < 1e-5 and differences[1] < 5e-3, differences
    assert HAS_KERNELS or differences[1] > 2e-5, differences  # the library may choose not to round


def autocast() -> None:
    pair = Trained.of("LSTM", Case(layers=2))
    before = native_calls(), native_calls(WHOLE + "_backward")
    with torch.autocast("nv", dtype=torch.float16):
        output, (h, c) = pair.ours(pair.x.to("nv"))
    assert output.dtype == h.dtype == c.dtype == torch.float16
    signal = torch.ones(output.shape, dtype=torch.float16).to("nv")
    grads = torch.autograd.grad(output, list(pair.ours.parameters()), signal)
    assert all(grad.dtype == torch.float32 for grad in grads)
    expected = pair.host(pair.x)[0]
    check(output.detach(), expected.detach().double(), torch.float16, "autocast")
    assert (native_calls(), native_calls(WHOLE + "_backward")) == (before[0] + 1, before[1] + 1)


def dropped() -> None:
    """Check that with dropout each layer is a separate call, and that an evaluation is a single call."""
    net = torch.nn.GRU(6, 9, 3, dropout=0.5, bidirectional=True)
    ours, x = copy.deepcopy(net).to("nv"), torch.randn(7, 5, 6)
    before = native_calls()
    torch.manual_seed(3)
    first = ours(x.to("nv"))
    assert native_calls() == before + 3 and first[1].shape == (6, 5, 9)
    torch.manual_seed(3)
    again = ours(x.to("nv"))
    assert torch.equal(first[0].cpu(), again[0].cpu()) and torch.equal(first[1].cpu(), again[1].cpu())
    assert not torch.equal(ours(x.to("nv"))[0].cpu(), again[0].cpu())
    before = native_calls()
    for result, reference in zip(ours.eval()(x.to("nv")), net.eval()(x), strict=True):
        check(result.detach(), reference.detach().double(), torch.float32, "evaluation")
    assert native_calls() == before + 1


def refused() -> None:
    """Run calls that cuDNN declines, and check their values."""
    if not HAS_KERNELS:
        run(Case(cells=13), "LSTM", torch.float32, "not supported", is_taken=False)
        run(Case(cells=15, layers=2), "GRU", torch.float32, "weights with gaps", is_taken=False)
    torch.use_deterministic_algorithms(True)
    run(Case(), "GRU", torch.float32, "results that repeat", is_taken=False)
    torch.use_deterministic_algorithms(False)
    before = native_calls()
    net = torch.nn.LSTM(6, 9).to("nv")
    assert net(torch.randn(7, 0, 6).to("nv"))[0].shape == (7, 0, 9)
    for call in (lambda: net(torch.randn(7, 5, 4).to("nv")), lambda: net(torch.randn(7, 5, 6).to("nv").half())):
        try:
            call()
        except (RuntimeError, ValueError):
            continue
        raise AssertionError("a wrong input was taken")
    assert native_calls() == before, "a call was taken"


def refuse(error: type[Exception], message: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except error as raised:
        assert message in str(raised), raised
    else:
        raise AssertionError(f"no {error.__name__}: {message}")


def direct() -> None:
    """Call the operators with tensors whose shapes do not match."""
    ops = torch.ops.outboard
    x, hx = torch.randn(7, 5, 6).to("nv"), torch.zeros(1, 5, 9).to("nv")
    weights = torch.randn(3 * 9 * (6 + 9 + 2)).to("nv")

    def forward(x: Any = x, weights: Any = weights, hx: Any = hx, cx: Any = None, sizes: Any = (), **more: Any) -> Any:
        options = {"kind": 1, "bidirectional": False, "biases": True, "kept": None} | more
        return ops.recurrent_net(x, weights, hx, cx, sizes, *options.values())

    output, hy, cy, kept = forward()
    assert output.shape == (7, 5, 9) and hy.shape == (1, 5, 9) and cy is None and kept is None
    for call in (
        lambda: forward(kind=4),
        lambda: forward(kind=0),
        lambda: forward(cx=hx),
        lambda: forward(weights=weights[:-1]),
        lambda: forward(biases=False),
        lambda: forward(bidirectional=True),
        lambda: forward(hx=hx[0]),
        lambda: forward(x=x[:, :4]),
        lambda: forward(x=x.flatten(0, 1), sizes=[5] * 6),
        lambda: forward(x=x.flatten(0, 1), sizes=[5, 0, 5, 5, 5, 5, 5, 5]),
        lambda: forward(x=x.flatten(0, 1)[:9], sizes=[4, 5]),
    ):
        refuse(ValueError, "recurrent_net: ", call)
    refuse(ValueError, "bytes for its gradients, not 8", lambda: forward(kept=8))
    refuse(NotImplementedError, "recurrent_net", lambda: forward(x=torch.randn(5, 7, 6).to("nv").transpose(0, 1)))
    refuse(NotImplementedError, "recurrent_net", lambda: forward(hx=torch.zeros(1, 9, 5).to("nv").transpose(1, 2)))

    def backward(grad: Any, kept: Any) -> Any:
        return ops.recurrent_net_backward(
            *(grad, None, None, x, weights, hx, None, output, kept, (), 1, False, True, True),
        )

    memory = torch.zeros(8, dtype=torch.uint8).to("nv")
    refuse(ValueError, "gradients do not fit", lambda: backward(output[:6], memory))
    refuse(ValueError, "bytes for its gradients, not 8", lambda: backward(output, memory))


def in_a_graph() -> None:
    """Replay a graph of a net and its gradients with other inputs."""
    case = Case(width=16, cells=24, layers=2, is_bidirectional=True)
    pair, module = Trained.of("LSTM", case), torch.nv
    x = pair.x.to("nv").requires_grad_()

    def call() -> tuple[torch.Tensor, ...]:
        output = pair.ours(x)[0]
        return output.detach(), *torch.autograd.grad(output, [x, *pair.ours.parameters()], torch.ones_like(output))

    call()
    graph = module.Graph()
    with module.graph(graph):
        results = call()
    for _ in range(3):
        images = torch.randn(pair.x.shape)
        with torch.no_grad():
            x.copy_(images)
        graph.replay()
        host = images.clone().requires_grad_()
        output = pair.host(host)[0]
        wanted = [host, *pair.host.parameters()]
        expected = [output.detach(), *torch.autograd.grad(output, wanted, torch.ones_like(output))]
        for result, reference in zip(results, expected, strict=True):
            check(result, reference.double(), torch.float32, "a replay")


def in_two_streams() -> None:
    pair = Trained.of("GRU", Case(layers=2))
    x = pair.x.to("nv")
    torch.accelerator.synchronize()
    results = []
    for _ in range(2):
        with torch.Stream("nv"):
            results += [pair.ours(x)[0] for _ in range(5)]
    torch.accelerator.synchronize()
    for result in results:
        check(result.detach(), pair.host(pair.x)[0].detach().double(), torch.float32, "streams")


def of_other_lengths() -> None:
    """Test sequences that must be sorted first, with other lengths at each call."""
    pair = Trained.of("GRU", Case(layers=2, is_bidirectional=True))
    for lengths in ([3, 7, 1, 7, 2], [7, 6, 5, 4, 3], [1, 1, 7, 1, 1]):
        results = []
        packed = pack_padded_sequence(pair.x, torch.tensor(lengths), enforce_sorted=False)
        for net, sequence in ((pair.host, packed), (pair.ours, packed.to("nv"))):
            output, last = net(sequence)
            results.append([output.data.detach(), last.detach()])
        for result, reference in zip(results[1], results[0], strict=True):
            check(result, reference.double(), torch.float32, ("lengths", lengths))


if __name__ == "__main__":
    libraries = dict(zip(("library", "cudnn"), sys.argv[1:], strict=False))
    torch_outboard.attach("nv", **libraries)
    torch.manual_seed(1)
    torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    if not HAS_BFLOAT16:
        run(Case(), "GRU", torch.bfloat16, "no bfloat16", is_taken=False)
        run(Case(), "GRU", torch.float16, "no bfloat16")
        sys.exit()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for mode in MODES:
            for name, case in (ANY | (PROJECTED if mode == "LSTM" else {}) | (LARGE if HAS_KERNELS else {})).items():
                run(case, mode, dtype, name)
    output_alone()
    twice()
    rounded()
    autocast()
    dropped()
    refused()
    direct()
    of_other_lengths()
    in_two_streams()
    if HAS_KERNELS:
        in_a_graph()
    print("all recurrent nets agree")
