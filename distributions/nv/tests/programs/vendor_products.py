# SPDX-License-Identifier: BSD-3-Clause
"""Compare nv's products with cuBLASLt to the CPU's: python vendor_products.py [LIBCUDA [LIBCUBLASLT]]

The test covers many layouts. With fake_cuda.cpp and fake_cublaslt.cpp it needs no GPU; on a GPU, without arguments, it
tests the real library.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator

import torch

os.environ["OUTBOARD_PROVIDERS"] = "native,host"
os.environ["OUTBOARD_FALLBACK"] = "silent"

import torch_outboard

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "by rows": lambda x: x,
    "by columns": lambda x: x.mT.contiguous().mT,
    "cropped": lambda x: torch.cat([x, x + 1], -1)[..., : x.shape[-1]],
    "unaligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "expanded": lambda x: x[..., :1, :].expand(x.shape),
    "with gaps": lambda x: torch.stack([x, x], -1)[..., 0],
}
# Layouts that the library's matrices cannot have.
REFUSED = ("expanded", "with gaps")


def native_calls() -> int:
    calls = torch_outboard.coverage().calls(provider="native")
    return sum(calls.values()) if isinstance(calls, dict) else int(calls)


def check(ours: torch.Tensor, expected: torch.Tensor, label: object) -> None:
    half = expected.dtype in (torch.float16, torch.bfloat16)
    bounds = {"rtol": 2e-2, "atol": 2e-2 * math.sqrt(20)} if half else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(ours.cpu(), expected, **bounds, msg=lambda text: f"{label}: {text}")


def on_device(x: torch.Tensor, layout: str) -> torch.Tensor:
    """Copy the tensor to the device in a layout, into memory that held other values."""
    return LAYOUTS[layout](x.to("nv"))


def operands(dtype: torch.dtype, batch: tuple[int, ...]) -> Iterator[tuple[str, str, torch.Tensor, torch.Tensor]]:
    for left, right in itertools.product(LAYOUTS, LAYOUTS):
        yield left, right, torch.randn(*batch, 9, 20).to(dtype), torch.randn(*batch, 20, 12).to(dtype)


def products(dtype: torch.dtype) -> None:
    for name, batch in (("mm", ()), ("bmm", (3,))):
        operator = getattr(torch, name)
        for left, right, a, b in operands(dtype, batch):
            before = native_calls()
            ours = operator(on_device(a, left), on_device(b, right))
            check(ours, operator(LAYOUTS[left](a), LAYOUTS[right](b)), (name, dtype, left, right))
            is_taken = left not in REFUSED and right not in REFUSED
            assert (native_calls() > before) == is_taken, (name, dtype, left, right)


def sums(dtype: torch.dtype) -> None:
    for name, batch in (("addmm", ()), ("baddbmm", (3,))):
        operator = getattr(torch, name)
        a, b = torch.randn(*batch, 9, 20).to(dtype), torch.randn(*batch, 20, 12).to(dtype)
        c, row = torch.randn(*batch, 9, 12).to(dtype), torch.randn(12).to(dtype)
        for layout, numbers in itertools.product(("by rows", "by columns", "cropped"), ({}, {"beta": 2, "alpha": 0.5})):
            ours = operator(on_device(c, layout), a.to("nv"), b.to("nv"), **numbers)
            check(ours, operator(c, a, b, **numbers), (name, dtype, layout, numbers))
        for numbers in ({}, {"alpha": -1.5}, {"beta": 0.5}):
            check(operator(row.to("nv"), a.to("nv"), b.to("nv"), **numbers), operator(row, a, b, **numbers), numbers)
        nothing = torch.full_like(c, math.nan)
        check(operator(nothing.to("nv"), a.to("nv"), b.to("nv"), beta=0), operator(nothing, a, b, beta=0), "NaN")
        kept = c.to("nv")
        getattr(kept, f"{name}_")(a.to("nv"), b.to("nv"), alpha=2)
        check(kept, operator(c, a, b, alpha=2), f"{name}_")


def outputs(dtype: torch.dtype) -> None:
    a, b = torch.randn(9, 20).to(dtype), torch.randn(20, 12).to(dtype)
    for layout in LAYOUTS:
        if layout == "expanded":
            continue
        out = on_device(torch.full((9, 12), math.nan).to(dtype), layout)
        torch.mm(a.to("nv"), b.to("nv"), out=out)
        check(out, a @ b, ("out=", dtype, layout))


def edges() -> None:
    for m, k, n in ((1, 1, 1), (1, 20, 5), (5, 20, 1), (4, 1, 6), (0, 3, 2), (3, 0, 2), (5, 6, 7)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        check(a.to("nv") @ b.to("nv"), a @ b, (m, k, n))
    whole = torch.randint(-5, 5, (4, 6))
    assert torch.equal((whole.to("nv") @ whole.to("nv").t()).cpu(), whole @ whole.t())
    model = torch.nn.Linear(20, 12)
    x, before = torch.randn(16, 20), native_calls()
    expected = model(x)
    check(model.to("nv")(x.to("nv")).detach(), expected.detach(), "Linear")
    assert native_calls() > before


def precision() -> None:
    """Check that only factors of float32 are rounded, and only if torch's switch allows it."""
    switch = torch.backends.cuda.matmul
    before = switch.allow_tf32
    try:
        for allowed, dtype in itertools.product((False, True), (torch.float32, torch.float64)):
            switch.allow_tf32 = allowed
            x, ones = torch.full((64, 64), 1 + 2**-12, dtype=dtype), torch.ones(64, 64, dtype=dtype)
            rounds = allowed and dtype == torch.float32
            for left, right in ((x, ones), (ones, x)):
                expected = torch.full_like(x, 64 if rounds else 64 + 2**-6)
                ours = left.to("nv") @ right.to("nv")
                assert torch.equal(ours.cpu(), expected), (allowed, dtype, ours[0, 0])
    finally:
        switch.allow_tf32 = before


def in_two_streams() -> None:
    a, b = torch.randn(40, 30), torch.randn(30, 50)
    ours, right_operand = a.to("nv"), b.to("nv")
    torch.accelerator.synchronize()
    results = []
    for _ in range(2):
        with torch.Stream("nv"):
            results += [ours @ right_operand for _ in range(5)]
    torch.accelerator.synchronize()
    for result in results:
        check(result, a @ b, "streams")


if __name__ == "__main__":
    libraries = dict(zip(("library", "cublaslt"), sys.argv[1:], strict=False))
    torch_outboard.attach("nv", **libraries)
    for dtype in DTYPES:
        products(dtype)
        sums(dtype)
        outputs(dtype)
    edges()
    precision()
    in_two_streams()
    print("all products agree")
