# SPDX-License-Identifier: BSD-3-Clause
"""Two ranks train to the parameters of one process that trains with both halves of each batch."""

from __future__ import annotations

import sys
import warnings
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing import assert_close

import torch_outboard
from distributed.programs.start import RANK, raises, start

device = start()
# Torch 2.11 cannot flatten a dimension that is sharded, unless it is the
# first of those that become one.
FLATTENS = tuple(map(int, torch.__version__.split(".")[:2])) > (2, 11)


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))


draws = torch.Generator().manual_seed(7)
BATCHES = [(torch.randn(8, 16, generator=draws), torch.randn(8, 8, generator=draws)) for _ in range(4)]


def train(model: nn.Module, is_split: bool) -> list[float]:
    """Return the loss of each step, over the whole batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for inputs, targets in BATCHES:
        if is_split:
            inputs, targets = inputs.chunk(2)[RANK].to(device), targets.chunk(2)[RANK].to(device)
        loss = ((model(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        if is_split:
            dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses


REFERENCE = make_model()
WANTED = train(REFERENCE, False)


def compare(model: nn.Module, losses: list[float], tolerance: float = 1e-5) -> None:
    assert_close(losses, WANTED, atol=tolerance, rtol=tolerance)
    for parameter, wanted in zip(model.parameters(), REFERENCE.parameters(), strict=True):
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        assert_close(whole.detach().cpu(), wanted.detach(), atol=tolerance, rtol=tolerance)


def ddp() -> None:
    model = nn.parallel.DistributedDataParallel(make_model().to(device))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as where there is no timer for the device
        compare(model, train(model, True))
    times = model._get_ddp_logging_data()
    assert times["forward_compute_time"] > 0 and times["backward_compute_time"] > 0, times


def sync_batch_norm() -> None:
    """Normalize by the statistics of the whole batch, with the gradients through them."""

    def make() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8))

    alone = make()
    wanted = train(alone, False)
    model = nn.parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(make().to(device)))
    assert_close(train(model, True), wanted, atol=1e-5, rtol=1e-5)
    for tensor, theirs in zip(model.module.state_dict().values(), alone.state_dict().values(), strict=True):
        assert_close(tensor.cpu(), theirs, atol=1e-5, rtol=1e-5)


def fsdp2() -> None:
    model = make_model().to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    compare(model, train(model, True))


def fsdp2_mixed() -> None:
    model = make_model().to(device)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    losses = train(model, True)
    assert_close(losses, WANTED, atol=0.05, rtol=0.05)


def dtensor() -> None:
    mesh = init_device_mesh(device.type, (2,))
    whole = torch.randn(8, 6, generator=draws)
    rows = distribute_tensor(whole.to(device), mesh, [Shard(0)])
    assert torch.equal(rows.full_tensor().cpu(), whole)
    columns = rows.redistribute(mesh, [Shard(1)])
    assert torch.equal(columns.full_tensor().cpu(), whole)
    rows_again = rows @ distribute_tensor(torch.eye(6, device=device), mesh, [Replicate()])
    assert_close(rows_again.full_tensor().cpu(), whole)
    assert_close(rows.sum().full_tensor().cpu(), whole.sum())
    model = make_model().to(device)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    # Some parameters are no DTensors, which lists of tensors don't mix with.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    losses = []
    for inputs, targets in BATCHES:
        loss = ((model(inputs.to(device)) - targets.to(device)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    compare(model, losses)


def attention() -> None:
    """Attention of tensors that are sharded along batches or heads, with its gradients."""
    mesh = init_device_mesh(device.type, (2,))
    inputs = [torch.randn(2, 4, 6, 8, generator=draws) for _ in range(4)]
    of_batches = torch.randn(2, 1, 6, 6, generator=draws)

    def run(query: Any, key: Any, value: Any, gradient: Any, **named: Any) -> tuple[Any, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
        result = nn.functional.scaled_dot_product_attention(*leaves, **named)
        leaves += [value for value in named.values() if isinstance(value, torch.Tensor) and value.requires_grad]
        return result, *torch.autograd.grad(result, leaves, gradient)

    for dim, is_causal, mask in product((0, 1), (False, True), (None, of_batches)):
        if is_causal and mask is not None:
            continue
        wanted = run(*inputs, is_causal=is_causal, attn_mask=mask)
        place = [Shard(dim)]
        sharded = [distribute_tensor(tensor.to(device), mesh, place) for tensor in inputs]
        if mask is not None:
            mask = distribute_tensor(mask.to(device), mesh, place if dim == 0 else [Replicate()])
        results = run(*sharded, is_causal=is_causal, attn_mask=mask)
        assert [result.placements for result in results] == [tuple(place)] * 4
        for sharded_result, theirs in zip(results, wanted, strict=True):
            assert_close(sharded_result.full_tensor().cpu(), theirs, atol=1e-5, rtol=1e-5)

    # The gradient of a mask that the ranks share is the sum of theirs.
    if not FLATTENS:
        query = distribute_tensor(inputs[0].to(device), mesh, [Shard(1)])
        bias = distribute_tensor(torch.randn(6, 6).to(device), mesh, [Replicate()]).requires_grad_()
        with raises(RuntimeError, "Attempted to flatten multiple dimensions"):
            run(query, query, query, query, attn_mask=bias)
    for dim, shape in product((0, 1) if FLATTENS else (0,), ((6, 6), (2, 1, 6, 6), (2, 4, 6, 6))):
        bias = torch.randn(*shape, generator=draws).requires_grad_()
        wanted = run(*inputs, attn_mask=bias)
        sharded = [distribute_tensor(tensor.to(device), mesh, [Shard(dim)]) for tensor in inputs]
        shared = distribute_tensor(bias.detach().to(device), mesh, [Replicate()]).requires_grad_()
        results = run(*sharded, attn_mask=shared)
        assert len(results) == 5
        for sharded_result, theirs in zip(results, wanted, strict=True):
            assert_close(sharded_result.full_tensor().cpu(), theirs, atol=1e-5, rtol=1e-5)


for part in sys.argv[1].split(","):
    globals()[part]()
providers = {row.provider for row in torch_outboard.coverage() if row.op.startswith("c10d::")}
assert providers == {sys.argv[2]}, providers
dist.destroy_process_group()
