# SPDX-License-Identifier: BSD-3-Clause
"""Convolve while cuDNN compiles a kernel: python interim_engines.py LIBCUDA LIBCUDNN CASE [NVRTC]

Runs without a GPU, with fake_cuda.cpp and fake_cudnn.cpp. The fake's engine OB_FAKE_CUDNN_COMPILES compiles as often as
fakeCudnnCompile() allows. Engine 0 is cuDNN's first choice, engine 2 its second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time

import torch

os.environ["OUTBOARD_PROVIDERS"] = "native,generated" if sys.argv[4:] else "native,host"

import torch_outboard

options = {"nvrtc": sys.argv[4]} if sys.argv[4:] else {}
module = torch_outboard.attach("nv", library=sys.argv[1], cudnn=sys.argv[2], **options)
library = ctypes.CDLL(sys.argv[2])
library.fakeCudnnEngine.restype = ctypes.c_int64
library.fakeCudnnCompile.argtypes = [ctypes.c_int64]


def engine_of_convolution(size: int = 9) -> int:
    """Return the engine that ran a convolution, after comparing its result with the CPU's."""
    x, weight = torch.randn(2, 4, size, size), torch.randn(4, 4, 3, 3)
    result = torch.conv2d(x.to("nv:0"), weight.to("nv:0")).cpu()
    torch.testing.assert_close(result, torch.conv2d(x, weight), atol=2e-2, rtol=2e-2)
    return int(library.fakeCudnnEngine())


def until(engine: int, size: int = 9) -> None:
    end = time.monotonic() + 60
    while engine_of_convolution(size) != engine:
        assert time.monotonic() < end, f"engine {engine} does not run"


def allow_soon(count: int) -> None:
    def allow() -> None:
        time.sleep(0.3)
        library.fakeCudnnCompile(count)

    threading.Thread(target=allow, daemon=True).start()


def swaps() -> None:
    """Run another engine until the kernel is compiled, for each size."""
    for size in (9, 10):
        assert [engine_of_convolution(size) for _ in range(3)] == [2, 2, 2]
    library.fakeCudnnCompile(2)
    until(0, 9)
    until(0, 10)
    assert [engine_of_convolution(size) for size in (9, 10)] == [0, 0]


def captures() -> None:
    """Capture graphs, which wait for the engine that they keep, whether its plan exists or not."""
    x, weight = torch.randn(2, 4, 9, 9, device="nv:0"), torch.randn(4, 4, 3, 3, device="nv:0")
    wide = torch.randn(2, 4, 12, 12, device="nv:0")
    assert engine_of_convolution(9) == 2
    for value in (x, wide):
        allow_soon(1)
        # The fake CUDA records graphs, but does not instantiate them.
        with contextlib.suppress(torch_outboard.NotSupportedError), module.graph(module.Graph()):
            torch.conv2d(value, weight)
        assert library.fakeCudnnEngine() == 0


def waits() -> None:
    """Wait for the engine if results must repeat or no thread builds."""
    torch.backends.cudnn.deterministic = os.environ["OB_FAKE_CUDNN_COMPILES"] == "2"
    allow_soon(1)
    assert engine_of_convolution() == int(os.environ["OB_FAKE_CUDNN_COMPILES"])


def builds_go_on() -> None:
    """Build a generated kernel's program while more engines compile than there are threads."""
    weight = torch.randn(4, 4, 3, 3).to("nv:0")
    for size in (9, 10, 11, 12):
        torch.conv2d(torch.randn(2, 4, size, size).to("nv:0"), weight)
    try:
        weight.exp().sin()
        module.synchronize()
        assert sum(torch_outboard._C.count_builds()[:3]) > 0, "no thread of the pool built the program"
    finally:
        library.fakeCudnnCompile(8)


def ends() -> None:
    """End the process while one kernel is being compiled and two others are queued."""
    assert [engine_of_convolution(size) for size in (9, 10, 11)] == [2, 2, 2]
    allow_soon(1)


{case.__name__: case for case in (swaps, captures, waits, builds_go_on, ends)}[sys.argv[3]]()
