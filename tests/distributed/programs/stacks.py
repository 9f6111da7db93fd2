# SPDX-License-Identifier: BSD-3-Clause
"""FSDP1, pipelines, checkpoints, compiled collectives and context parallel, against one process on the CPU."""

from __future__ import annotations

import copy
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing import assert_close

import torch_outboard
from distributed.programs.start import RANK, raises, start

device = start()
torch.manual_seed(0)
FIRST, SECOND = nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 4)
INPUTS, TARGETS = torch.randn(8, 16), torch.randn(8, 4)


def distance(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


WHOLE = nn.Sequential(FIRST, SECOND)
distance(WHOLE(INPUTS), TARGETS).backward()
GRADIENTS = [parameter.grad.clone() for parameter in WHOLE.parameters()]
WHOLE.zero_grad()


def copy_of(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).to(device)


def fsdp1() -> None:
    model = FullyShardedDataParallel(copy_of(WHOLE), device_id=device, use_orig_params=False)
    half = slice(4 * RANK, 4 * RANK + 4)
    distance(model(INPUTS[half].to(device)), TARGETS[half].to(device)).backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    with FullyShardedDataParallel.summon_full_params(model):
        flat = torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])
    wanted = [(old.detach() - gradient).flatten() for old, gradient in zip(WHOLE.parameters(), GRADIENTS, strict=True)]
    assert_close(flat, torch.cat(wanted), atol=1e-5, rtol=1e-5)


def pipeline(schedule_class: type) -> None:
    part = copy_of((FIRST, SECOND)[RANK])
    stage = PipelineStage(part, RANK, 2, device)
    schedule = schedule_class(stage, n_microbatches=4, loss_fn=distance)
    if RANK == 0:
        schedule.step(INPUTS.to(device))
        wanted = GRADIENTS[:2]
    else:
        losses: list[torch.Tensor] = []
        schedule.step(target=TARGETS.to(device), losses=losses)
        assert_close(torch.stack(losses).mean().item(), distance(WHOLE(INPUTS), TARGETS).item(), atol=1e-5, rtol=1e-5)
        wanted = GRADIENTS[2:]
    for parameter, gradient in zip(part.parameters(), wanted, strict=True):
        assert_close(parameter.grad.cpu(), gradient, atol=1e-5, rtol=1e-5)


def gpipe() -> None:
    pipeline(ScheduleGPipe)


def one_f_one_b() -> None:
    pipeline(Schedule1F1B)


def resharded() -> None:
    """Save what two ranks share, load it with another sharding; then asynchronously."""
    folder = os.environ["TEST_STORE"] + "-checkpoint"
    whole = torch.arange(24.0).view(4, 6)
    mesh = init_device_mesh(device.type, (2,))
    checkpoint.save({"weight": distribute_tensor(whole.to(device), mesh, [Shard(0)])}, checkpoint_id=folder)
    columns = {"weight": distribute_tensor(torch.zeros(4, 6, device=device), mesh, [Shard(1)])}
    checkpoint.load(columns, checkpoint_id=folder)
    assert columns["weight"].full_tensor().cpu().equal(whole)
    alone = {"weight": torch.zeros(4, 6, device=device)}
    checkpoint.load(alone, checkpoint_id=folder, no_dist=True)  # as one process does
    assert alone["weight"].cpu().equal(whole)
    later = checkpoint.async_save(columns, checkpoint_id=folder + "-later")
    later.result()
    alone["weight"].zero_()
    checkpoint.load(alone, checkpoint_id=folder + "-later", no_dist=True)
    assert alone["weight"].cpu().equal(whole)


def compiled() -> None:
    world = dist.group.WORLD

    def all_three(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * 2, "sum", world)
        gathered = functional.all_gather_tensor(total + 1, 0, world)
        return functional.reduce_scatter_tensor(gathered, "avg", 0, world) + 1

    x = torch.full((4,), RANK + 1.0)
    for is_cpp in (False, True):
        torch._dynamo.reset()
        with torch._inductor.config.patch(cpp_wrapper=is_cpp):
            assert torch.compile(all_three, fullgraph=True)(x.to(device)).tolist() == [8.0] * 4


def context() -> None:
    """Attention of shared sequences: torch's ring of keys and values, its gradients, and what it refuses."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    attend = torch.nn.functional.scaled_dot_product_attention
    mesh = init_device_mesh(device.type, (2,))
    inputs = [torch.randn(2, 4, 16, 8) for _ in range(4)]
    *leaves, gradient = [tensor.clone().requires_grad_() for tensor in inputs]
    result = attend(*leaves, is_causal=True)
    wanted = [result.detach(), *torch.autograd.grad(result, leaves, gradient.detach())]
    for method in ("allgather", "alltoall"):
        ring.set_rotate_method(method)
        *parts, gradient = [tensor.to(device) for tensor in inputs]
        shared = [*parts, gradient]
        with context_parallel(mesh, buffers=shared, buffer_seq_dims=[2] * 4, no_restore_buffers=set(shared)):
            for part in parts:
                part.requires_grad_()
            local = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            assert local.shape == (2, 4, 8, 8)
            results = [local.detach(), *torch.autograd.grad(local, parts, gradient)]
            for unsharded, theirs in zip(ring.context_parallel_unshard(mesh, results, [2] * 4), wanted, strict=True):
                assert_close(unsharded.cpu(), theirs, atol=1e-5, rtol=1e-5)
            mask = torch.zeros(2, 4, 8, 16, device=device)
            with (
                torch.no_grad(),
                raises(torch_outboard.NotSupportedError, "supports no attention mask except is_causal"),
            ):
                torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)


for name in sys.argv[1].split(","):
    globals()[name]()
providers = {row.provider for row in torch_outboard.coverage() if row.op.startswith("c10d::")}
assert providers == {sys.argv[2]}, providers
dist.destroy_process_group()
