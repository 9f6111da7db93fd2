# SPDX-License-Identifier: BSD-3-Clause
"""Compare nv's convolutions with cuDNN to the CPU's: python vendor_convolutions.py [LIBCUDA [LIBCUDNN]]

With fake_cuda.cpp and fake_cudnn.cpp the test needs no GPU; on a GPU, without arguments, it tests the real library. The
fake runs no kernels, so that copies and biases are left to the GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

os.environ["OUTBOARD_PROVIDERS"] = "native,host"
os.environ["OUTBOARD_FALLBACK"] = "silent"

import torch_outboard

HAS_KERNELS = len(sys.argv) < 2
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Case:
    """A convolution: the sizes of its input and its weight, and what differs from the defaults."""

    input: tuple[int, ...]
    weight: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    is_transposed: bool = False

    def arguments(self) -> tuple[object, ...]:
        rank = len(self.input) - 2
        settings: dict[str, Any] = {
            "stride": 1,
            "padding": 0,
            "dilation": 1,
            "output_padding": 0,
            "groups": 1,
        } | self.options
        lists = [
            [settings[name]] * rank if isinstance(settings[name], int) else settings[name]
            for name in ("stride", "padding", "dilation", "output_padding")
        ]
        return (*lists[:3], self.is_transposed, lists[3], settings["groups"])


CASES = {
    "1-d": Case((2, 6, 20), (8, 6, 5), {"stride": 2, "padding": 2}),
    "2-d": Case((2, 8, 9, 11), (16, 8, 3, 3), {"padding": 1}),
    "2-d, odd": Case((3, 5, 7, 6), (7, 5, 2, 3), {"stride": (1, 2), "padding": (0, 1), "dilation": (2, 1)}),
    "3-d": Case((2, 4, 5, 6, 4), (8, 4, 3, 2, 2), {"stride": (1, 2, 1), "padding": 1}),
    "groups": Case((2, 16, 8, 8), (32, 4, 3, 3), {"groups": 4, "padding": 1}),
    "depthwise": Case((2, 16, 9, 9), (16, 1, 3, 3), {"groups": 16, "stride": 2, "padding": 1}),
    "1x1": Case((2, 16, 5, 5), (8, 16, 1, 1)),
    "transposed 1-d": Case((2, 4, 7), (4, 6, 3), {"stride": 2, "output_padding": 1}, is_transposed=True),
    "transposed 2-d": Case(
        (2, 8, 5, 6), (8, 8, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}, is_transposed=True
    ),
    "transposed 3-d": Case((1, 4, 3, 4, 3), (4, 4, 2, 2, 2), {"stride": 2}, is_transposed=True),
}


def native_calls() -> int:
    calls = torch_outboard.coverage().calls(provider="native")
    return sum(calls.values()) if isinstance(calls, dict) else int(calls)


def layouts(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensor in several layouts: the library's, and others, for which the library gets a copy."""
    yield "contiguous", x
    if x.dim() in FORMATS and HAS_KERNELS:
        yield "channels last", x.contiguous(memory_format=FORMATS[x.dim()])
    if HAS_KERNELS:
        yield "cropped", torch.cat([x, x + 1], -1)[..., : x.shape[-1]]
    yield "unaligned", torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)


def check(ours: torch.Tensor, expected: torch.Tensor, label: object) -> None:
    # The numbers are small integers, so that float32 sums are exact; the expected results use
    # float32 too.
    half = ours.dtype in (torch.float16, torch.bfloat16)
    bounds = {"rtol": 1e-2, "atol": 1e-2} if half else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(ours.cpu(), expected.to(ours.dtype), **bounds, msg=lambda text: f"{label}: {text}")


def whole(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-2, 3, sizes).to(dtype)


def copied(x: torch.Tensor) -> torch.Tensor:
    """Copy to the device with the same strides and the same distance from an aligned address."""
    base = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return base.to("nv").as_strided(x.shape, x.stride(), x.storage_offset())


def forward(name: str, case: Case, dtype: torch.dtype) -> None:
    weight = whole(*case.weight, dtype=dtype)
    channels = case.weight[1] * case.options.get("groups", 1) if case.is_transposed else case.weight[0]
    for layout, x in layouts(whole(*case.input, dtype=dtype)):
        for bias in (None, whole(channels, dtype=dtype))[: 2 if HAS_KERNELS else 1]:
            before = native_calls()
            ours = torch.convolution(
                copied(x), weight.to("nv"), None if bias is None else bias.to("nv"), *case.arguments()
            )
            label = (name, dtype, layout, "bias" if bias is not None else "no bias")
            expected = torch.convolution(
                x.float(), weight.float(), None if bias is None else bias.float(), *case.arguments()
            )
            check(ours, expected, label)
            assert dtype != torch.float32 or ours.stride() == expected.stride(), label
            assert native_calls() > before, (label, "was not taken")


def backward(name: str, case: Case, dtype: torch.dtype) -> None:
    weight, image = whole(*case.weight, dtype=dtype), whole(*case.input, dtype=dtype)
    out = torch.convolution(image.float(), weight.float(), None, *case.arguments())
    gradient = whole(*out.shape, dtype=dtype)
    aten = torch.ops.aten
    masks = ([True, True, False], [True, False, False], [False, True, False], [False, True, True], [True, True, True])
    for mask in masks if HAS_KERNELS else masks[:3]:
        for layout, x in layouts(image):
            before = native_calls()
            arguments = ([out.shape[1]], *case.arguments(), mask)
            ours = aten.convolution_backward(gradient.to("nv"), copied(x), weight.to("nv"), *arguments)
            expected = aten.convolution_backward(gradient.float(), x.float(), weight.float(), *arguments)
            for place, result, wanted in zip(("input", "weight", "bias"), ours, expected, strict=True):
                assert (result is None) == (wanted is None), (name, mask, place)
                if result is not None:
                    check(result, wanted, (name, dtype, layout, mask, place))
            assert native_calls() > before, (name, dtype, layout, mask, "was not taken")
    if not HAS_KERNELS:
        return
    # The gradient of a sum, whose strides are 0.
    flat = gradient.flatten()[0].expand(gradient.shape)
    ours = aten.convolution_backward(copied(flat), image.to("nv"), weight.to("nv"), *arguments)
    expected = aten.convolution_backward(flat.float(), image.float(), weight.float(), *arguments)
    check(ours[1], expected[1], (name, dtype, "expanded"))


def refusals() -> None:
    """Run calls that cuDNN declines, and check their values."""
    cases: list[tuple[Case, torch.dtype]] = [
        (Case((0, 8, 9, 11), (16, 8, 3, 3)), torch.float32),
    ]
    for case, dtype in cases:
        x, weight = whole(*case.input, dtype=dtype), whole(*case.weight, dtype=dtype)
        before = native_calls()
        ours = torch.convolution(x.to("nv"), weight.to("nv"), None, *case.arguments())
        torch.testing.assert_close(ours.cpu(), torch.convolution(x, weight, None, *case.arguments()))
        assert native_calls() == before, (case, "was taken")


def in_channels_last() -> None:
    """Convolve channels-last tensors without a copy, and a grid and an image that the fake refuses."""
    case = CASES["2-d"]
    x, weight = (
        whole(*sizes, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
        for sizes in (case.input, case.weight)
    )
    before = native_calls()
    ours = torch.convolution(copied(x), copied(weight), None, *case.arguments())
    check(ours, torch.convolution(x, weight, None, *case.arguments()), "channels last")
    assert native_calls() > before
    assert ours.is_contiguous(memory_format=torch.channels_last)
    refused = Case((2, 7, 6, 6), (7, 1, 3, 3), {"groups": 7})
    x, weight = whole(*refused.input, dtype=torch.float32), whole(*refused.weight, dtype=torch.float32)
    before = native_calls()
    ours = torch.convolution(x.to("nv"), weight.to("nv"), None, *refused.arguments())
    check(ours, torch.convolution(x, weight, None, *refused.arguments()), "refused")
    assert HAS_KERNELS or native_calls() == before


def engine() -> int | None:
    """Return which of the fake's engines ran last."""
    return None if HAS_KERNELS else int(ctypes.CDLL(sys.argv[2]).fakeCudnnEngine())


@contextlib.contextmanager
def switched(deterministic: bool, allow_tf32: bool, everywhere: bool) -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.allow_tf32
    cudnn.deterministic, cudnn.allow_tf32 = deterministic, allow_tf32
    torch.use_deterministic_algorithms(everywhere)
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.allow_tf32 = before
        torch.use_deterministic_algorithms(False)


# (cudnn.deterministic, cudnn.allow_tf32, use_deterministic_algorithms) -> the fake's first engine
# that may run.
SWITCHES = {
    (False, True, False): 0,
    (False, False, False): 0,
    (True, True, False): 2,
    (True, False, False): 3,
    (False, True, True): 2,
}


def switches() -> None:
    """Check that engines are chosen according to torch's switches."""
    for setting, expected_engine in SWITCHES.items():
        for dtype in (torch.float32, torch.float64):
            x, weight = torch.full((2, 8, 9, 11), 1 + 2**-12, dtype=dtype), torch.ones(16, 8, 3, 3, dtype=dtype)
            with switched(*setting):
                ours = torch.convolution(x.to("nv"), weight.to("nv"), None, *CASES["1x1"].arguments())
            exact = torch.full_like(ours.cpu(), 72 + 72 * 2**-12)
            rounded = torch.full_like(exact, 72)
            if not setting[1] or dtype == torch.float64:
                assert torch.equal(ours.cpu(), exact), (setting, dtype)
            if not HAS_KERNELS:
                # An engine that rounds float32 does not round other types.
                first = expected_engine if dtype == torch.float32 else min(expected_engine, 2)
                assert engine() == first, (setting, dtype, engine())
                assert torch.equal(ours.cpu(), rounded if (engine(), dtype) == (2, torch.float32) else exact)


def in_a_graph() -> None:
    """Replay a graph of a convolution with a bias, and of its gradients, with other inputs than the captured ones."""
    case, module = CASES["2-d"], torch.nv
    x, weight, bias = (whole(*sizes, dtype=torch.float32) for sizes in (case.input, case.weight, (16,)))
    ours, kernel, added = x.to("nv"), weight.to("nv"), bias.to("nv")

    def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
        out = torch.convolution(x, weight, bias, *case.arguments())
        arguments = ([16], *case.arguments(), [True, True, True])
        return [out, *torch.ops.aten.convolution_backward(out, x, weight, *arguments)]

    run(ours, kernel, added)
    graph = module.Graph()
    with module.graph(graph):
        results = run(ours, kernel, added)
    for _ in range(2):
        x = whole(*case.input, dtype=torch.float32)
        ours.copy_(x)
        graph.replay()
        for result, expected in zip(results, run(x, weight, bias), strict=True):
            check(result, expected, "graph")


def in_two_streams() -> None:
    x, weight = whole(2, 8, 9, 11, dtype=torch.float32), whole(16, 8, 3, 3, dtype=torch.float32)
    expected = torch.convolution(x, weight, None, *CASES["2-d"].arguments())
    ours, kernel = x.to("nv"), weight.to("nv")
    torch.accelerator.synchronize()
    results = []
    for _ in range(2):
        with torch.Stream("nv"):
            results += [torch.convolution(ours, kernel, None, *CASES["2-d"].arguments()) for _ in range(5)]
    torch.accelerator.synchronize()
    for result in results:
        check(result, expected, "streams")


if __name__ == "__main__":
    libraries = dict(zip(("library", "cudnn"), sys.argv[1:], strict=False))
    torch_outboard.attach("nv", **libraries)
    for dtype in DTYPES:
        for name, case in CASES.items():
            forward(name, case, dtype)
            backward(name, case, dtype)
    refusals()
    in_channels_last()
    switches()
    in_two_streams()
    if HAS_KERNELS:
        in_a_graph()
    print("all convolutions agree")
