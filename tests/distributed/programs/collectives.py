# SPDX-License-Identifier: BSD-3-Clause
"""Every collective, for every dtype, on fresh random tensors: against Gloo on the CPU, and against its definition."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

import torch_outboard
from distributed.programs.start import RANK, start

Op = dist.ReduceOp
PEER = 1 - RANK
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
# What Gloo neither reduces nor moves on the CPU.
MOVED_ONLY = (torch.int16, torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2)
MOVED = (*FLOATS, *INTEGERS, *COMPLEX, torch.bool, *MOVED_ONLY)

device = start()
checks = 0
draws = torch.Generator().manual_seed(int(sys.argv[1]))


def draw(dtype: torch.dtype, *sizes: int) -> list[torch.Tensor]:
    """Return a CPU tensor for each rank; both ranks draw the same tensors."""
    if dtype.is_complex:
        return [torch.randn(sizes, generator=draws, dtype=dtype) for _ in range(2)]
    return [torch.randint(-9 if dtype.is_signed else 0, 9, sizes, generator=draws).to(dtype) for _ in range(2)]


def check(label: str, got: torch.Tensor, want: torch.Tensor) -> None:
    global checks
    checks += 1
    got = got.cpu()
    assert got.dtype == want.dtype and got.shape == want.shape, (label, got, want)
    same = torch.equal(got.contiguous().view(-1).view(torch.uint8), want.contiguous().view(-1).view(torch.uint8))
    assert same, f"{label}: got {got}, want {want}"


def empty(like: torch.Tensor, *sizes: int) -> torch.Tensor:
    return torch.empty(sizes or like.shape, dtype=like.dtype, device=device)


def on(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[RANK].to(device)


def reduced(op: Op, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return a reduction over two ranks by its definition."""
    a, b = tensors
    if a.dtype == torch.bool:
        return {Op.SUM: a | b, Op.PRODUCT: a & b, Op.MIN: a & b, Op.MAX: a | b, Op.BXOR: a ^ b}[op]
    functions: dict[Op, Callable[[], torch.Tensor]] = {
        Op.SUM: lambda: a + b,
        Op.AVG: lambda: (
            (a + b) / 2 if a.is_floating_point() or a.is_complex() else (a + b).div(2, rounding_mode="trunc")
        ),
        Op.PRODUCT: lambda: a * b,
        Op.MIN: lambda: torch.minimum(a, b),
        Op.MAX: lambda: torch.maximum(a, b),
        Op.BAND: lambda: a & b,
        Op.BOR: lambda: a | b,
        Op.BXOR: lambda: a ^ b,
    }
    return functions[op]()


def reductions(dtype: torch.dtype) -> list[Op]:
    if dtype == torch.bool:
        return [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, Op.BXOR]
    if dtype.is_complex:
        return [Op.SUM, Op.AVG]
    ordered = [Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX]
    return ordered if dtype.is_floating_point else [*ordered, Op.BAND, Op.BOR, Op.BXOR]


def check_reductions(dtype: torch.dtype, op: Op) -> None:
    whole = draw(dtype, 4, 3)
    want = reduced(op, whole)
    name = f"{op} of {dtype}"
    x = on(whole)
    dist.all_reduce(x, op)
    check(f"all_reduce {name}", x, want)
    x = on(whole)
    work = dist.all_reduce(x, op, async_op=True)
    work.wait()
    work.wait()
    check(f"all_reduce, twice waited for, {name}", x, want)
    torch.accelerator.synchronize()
    assert work.is_completed()
    x = on(whole)
    dist.reduce(x, 1, op)
    check(f"reduce {name}", x, want if RANK == 1 else whole[0])
    y = empty(whole[0], 2, 3)
    dist.reduce_scatter(y, list(on(whole).chunk(2)), op)
    check(f"reduce_scatter {name}", y, want.chunk(2)[RANK])
    y = empty(whole[0], 2, 3)
    dist.reduce_scatter_tensor(y, on(whole), op)
    check(f"reduce_scatter_tensor {name}", y, want.chunk(2)[RANK])
    if op != Op.AVG and dtype != torch.bool and not dtype.is_complex:
        host = whole[RANK].clone()
        dist.all_reduce(host, op, group=gloo)
        check(f"Gloo's {name}", host, want)


def check_moves(dtype: torch.dtype) -> None:
    whole = draw(dtype, 4, 3)
    x = on(whole)
    dist.broadcast(x, 1)
    check(f"broadcast {dtype}", x, whole[1])
    outs = [empty(whole[0]) for _ in range(2)]
    dist.all_gather(outs, on(whole))
    check(f"all_gather {dtype}", torch.cat(outs), torch.cat(whole))
    out = empty(whole[0], 8, 3)
    dist.all_gather_into_tensor(out, on(whole))
    check(f"all_gather_into_tensor {dtype}", out, torch.cat(whole))
    outs = [empty(whole[0]) for _ in range(2)] if RANK == 0 else None
    dist.gather(on(whole), outs, 0)
    if outs:
        check(f"gather {dtype}", torch.cat(outs), torch.cat(whole))
    if hasattr(dist, "gather_single"):  # from torch 2.15 on
        out = empty(whole[0], 8, 3) if RANK == 1 else None
        dist.gather_single(on(whole), out, 1)
        if out is not None:
            check(f"gather_single {dtype}", out, torch.cat(whole))
    out = empty(whole[0])
    dist.scatter(out, [tensor.to(device) for tensor in whole] if RANK == 1 else None, 1)
    check(f"scatter {dtype}", out, whole[RANK])
    rows = torch.stack([tensor.unflatten(0, (2, 2)) for tensor in whole])  # [from, to, …]
    out = empty(whole[0])
    dist.all_to_all_single(out, on(whole))
    check(f"all_to_all_single {dtype}", out, rows[:, RANK].flatten(0, 1))
    outs = [empty(whole[0], 2, 3) for _ in range(2)]
    dist.all_to_all(outs, list(on(whole).chunk(2)))
    check(f"all_to_all {dtype}", torch.cat(outs), rows[:, RANK].flatten(0, 1))
    out = empty(whole[0])
    works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, out, PEER), dist.P2POp(dist.isend, on(whole), PEER)])
    for work in works:
        work.wait()
    check(f"batch_isend_irecv {dtype}", out, whole[PEER])


def check_uneven() -> None:
    """Check splits of different sizes, also empty ones."""
    rows = draw(torch.float32, 5, 2)
    sent = [[1, 4], [2, 3]][RANK]
    received = [[1, 2], [4, 3]][RANK]
    out = empty(rows[0], sum(received), 2)
    dist.all_to_all_single(out, on(rows), received, sent)
    parts = [rows[0].split([1, 4]), rows[1].split([2, 3])]
    check("all_to_all_single with splits", out, torch.cat([parts[0][RANK], parts[1][RANK]]))
    sent, received = [[0, 5], [5, 0]][RANK], [[0, 5], [5, 0]][RANK]
    out = empty(rows[0])
    dist.all_to_all_single(out, on(rows), received, sent)
    check("all_to_all_single with empty splits", out, rows[PEER])


def check_layouts() -> None:
    """Check tensors that are not contiguous in memory."""
    whole = draw(torch.float32, 4, 6)
    for layout, view in {
        "transposed": lambda x: x.t(),
        "strided": lambda x: x[:, ::2],
        "shifted": lambda x: x.flatten()[1:],
        "0-d": lambda x: x[1, 1],
        "empty": lambda x: x[:0],
        "4-d, channels last": lambda x: x.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "that requires grad": lambda x: x.clone().requires_grad_().detach(),
    }.items():
        x = view(on(whole).clone())
        dist.all_reduce(x)
        check(f"all_reduce of a tensor {layout}", x, view(whole[0]) + view(whole[1]))
        x = view(on(whole).clone())
        dist.broadcast(x, 0)
        check(f"broadcast of a tensor {layout}", x, view(whole[0]).clone())
        x = view(on(whole))
        out = empty(x, 2 * x.numel())
        dist.all_gather_into_tensor(out, x)
        check(f"all_gather of a tensor {layout}", out, torch.cat([view(tensor).flatten() for tensor in whole]))
    x = on(draw(torch.complex64, 3)).conj()


def check_coalesced() -> None:
    a, b = draw(torch.float32, 3), draw(torch.float32, 2, 2)
    for keywords in ({}, {"device": device}):
        x, y = on(a), on(b)
        with _coalescing_manager(async_ops=True, **keywords) as manager:
            dist.all_reduce(x)
            dist.all_reduce(y)
        manager.wait()
        check(f"all_reduce, coalesced {keywords}", x, a[0] + a[1])
        check(f"all_reduce, coalesced {keywords}", y, b[0] + b[1])
    outs = [empty(a[0], 6), empty(b[0], 4, 2)]
    with _coalescing_manager(async_ops=True) as manager:
        dist.all_gather_into_tensor(outs[0], on(a))
        dist.all_gather_into_tensor(outs[1], on(b))
    manager.wait()
    check("all_gather_into_tensor, coalesced", outs[0], torch.cat(a))
    check("all_gather_into_tensor, coalesced", outs[1], torch.cat(b))
    c, d = draw(torch.float32, 4), draw(torch.float32, 2, 2)
    outs = [empty(c[0], 2), empty(d[0], 1, 2)]
    with _coalescing_manager(async_ops=True) as manager:
        dist.reduce_scatter_tensor(outs[0], on(c))
        dist.reduce_scatter_tensor(outs[1], on(d))
    manager.wait()
    check("reduce_scatter_tensor, coalesced", outs[0], (c[0] + c[1]).chunk(2)[RANK])
    check("reduce_scatter_tensor, coalesced", outs[1], (d[0] + d[1]).chunk(2)[RANK])


def check_premultiplied() -> None:
    a = draw(torch.float32, 3)
    for factor in (0.5, torch.tensor(0.5), torch.tensor([0.5], device=device)):
        x = on(a)
        dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
        check("all_reduce with PREMUL_SUM", x, (a[0] + a[1]) * 0.5)
    x, y = on(draw(torch.float32, 4)), torch.empty(2, device=device)
    gathered = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(gathered, x)
    dist.reduce_scatter_tensor(y, x, dist._make_nccl_premul_sum(2.0))
    check("reduce_scatter_tensor with PREMUL_SUM", y, ((gathered[0] + gathered[1]) * 2).cpu().chunk(2)[RANK])


def check_functional() -> None:
    import torch.distributed._functional_collectives as functional

    a = draw(torch.float32, 4)
    world = dist.group.WORLD
    check("functional all_reduce", functional.all_reduce(on(a), "sum", world) + 0, a[0] + a[1])
    check("functional all_reduce", functional.all_reduce(on(a), "avg", world) + 0, (a[0] + a[1]) / 2)
    check("functional all_gather", functional.all_gather_tensor(on(a), 0, world) + 0, torch.cat(a))
    scattered = functional.reduce_scatter_tensor(on(a), "sum", 0, world)
    check("functional reduce_scatter", scattered + 0, (a[0] + a[1]).chunk(2)[RANK])
    exchanged = functional.all_to_all_single(on(a), None, None, world)
    check("functional all_to_all", exchanged + 0, torch.cat([tensor.chunk(2)[RANK] for tensor in a]))


def check_order() -> None:
    """Check that collectives and the device's own work keep their order, whoever waits and when."""
    a = draw(torch.float32, 1 << 12)
    x = on(a)
    y = x * 2
    works = [dist.all_reduce(x, async_op=True), dist.all_reduce(y, async_op=True)]
    z = x if not works else y
    for work in reversed(works):
        work.wait()
    check("the second of two", z, (a[0] + a[1]) * 2)
    check("the first of two", x + 1, a[0] + a[1] + 1)
    future = dist.all_reduce(on(a), async_op=True).get_future().then(lambda future: future.value()[0] * 3)
    check("a future's callback", future.wait(), (a[0] + a[1]) * 3)
    stream = torch.Stream(device=device)
    with stream:
        x = on(a) + 1
        dist.all_reduce(x)
        x += 1
    stream.synchronize()
    check("on another stream", x, a[0] + a[1] + 3)


gloo = dist.new_group(backend="gloo")
torch_outboard.reset_coverage()
for dtype in (*FLOATS, *INTEGERS, *COMPLEX, torch.bool):
    for op in reductions(dtype):
        check_reductions(dtype, op)
for dtype in MOVED:
    check_moves(dtype)
for part in (check_uneven, check_layouts, check_coalesced, check_premultiplied, check_functional, check_order):
    part()
provider = sys.argv[2]
rows = [row for row in torch_outboard.coverage() if row.op.startswith("c10d::")]
if provider == "native":  # drivers have no bitwise reductions
    own = {row.op for row in rows if row.provider == provider}
    assert own == {row.op for row in rows} and len(own) > 15, rows
    others = [row for row in rows if row.provider != provider]
    assert all("reduce" in row.op and row.provider in ("host", "staged") for row in others), others
    assert sum(row.calls for row in others) < sum(row.calls for row in rows) / 4, rows
else:
    assert rows and all(row.provider == provider for row in rows), rows
assert functools.reduce(lambda sum, row: sum + row.calls, rows, 0) > 200
assert provider != "host" or not [row for row in torch_outboard.coverage() if row.provider == "staged"]
dist.destroy_process_group()
print(f"{checks} checks")
