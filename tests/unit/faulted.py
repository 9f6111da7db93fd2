# SPDX-License-Identifier: BSD-3-Clause
"""A small program that calls most entries of a driver, and an account of what it does if one of the calls fails."""

from __future__ import annotations

import gc
import importlib
import json

import torch
from torch.nn.functional import cross_entropy

import torch_outboard

# Attaching a driver and an optimizer's first step import these: once, not in each forked process.
for name in (
    *("torch._dynamo", "torch.distributed.tensor.experimental._attention"),
    *("torch_outboard._C", "torch_outboard.compile.register", "torch_outboard.device"),
):
    importlib.import_module(name)

__all__ = ["account", "results"]

_NAME = "sim"


def _batch(source: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pinned batch on the device, copied in a stream of its own between two timed events."""
    side = torch.Stream(_NAME)
    begin, end = torch.Event(_NAME, enable_timing=True), torch.Event(_NAME, enable_timing=True)
    with side:
        begin.record()
        batch = source.to(_NAME, non_blocking=True), target.to(_NAME, non_blocking=True)
        end.record()
    current = torch.accelerator.current_stream()
    current.wait_event(end)
    for tensor in batch:
        tensor.record_stream(current)
    end.synchronize()
    assert begin.elapsed_time(end) >= 0 and end.query()
    return batch


def _train(device: str) -> list[object]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    source, target = torch.randn(8, 16), torch.randint(4, (8,))
    is_cpu = device == "cpu"
    if not is_cpu:
        net, source, target = net.to(device), source.pin_memory(), target.pin_memory()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses: list[object] = []
    for _ in range(2):
        x, y = (source, target) if is_cpu else _batch(source, target)
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, net(x).t()[1:, ::2].detach().cpu().flatten().tolist()]


def _replay(device: str) -> list[object]:
    """Return what a graph computes, a copy to the other device, and what the host's registered memory held."""
    module = torch.get_device_module(device)
    graph, a, b = module.Graph(), torch.ones(64, device=device), torch.zeros(64, device=device)
    torch.accelerator.synchronize()
    with module.graph(graph):
        b.copy_(a * 2 + 1)
        c = b.sum()
    a.fill_(3)
    graph.replay()
    torch.accelerator.synchronize()
    results = [c.item()]
    graph.reset()
    copy = torch.ones(5, device=f"{device}:1")
    copy.copy_(a[:5])
    memory = torch.full((4096,), 2.0)
    module.host_register(memory)
    there = memory.to(device, non_blocking=True)
    module.synchronize()
    module.host_unregister(memory)
    return [*results, copy.sum().item(), there.sum().item()]


def results(device: str) -> list[object]:
    """Return the values that the program computes, on the CPU or the device."""
    trained = _train(device)
    if device == "cpu":
        return [*trained, 64 * 7.0, 15.0, 8192.0]
    replayed = _replay(device)
    module = torch.get_device_module(device)
    module.empty_cache()
    module.mem_get_info()
    return [*trained, *replayed]


def _outcome(expected: list[object]) -> str:
    """Run the program and return "right", "wrong", or the type of the error."""
    try:
        return "right" if results(_NAME) == expected else "wrong"
    except Exception as error:
        return type(error).__name__


def _settle() -> list[str]:
    """Wait for the devices until the waits succeed, and return the types of the errors before that."""
    module = torch.get_device_module(_NAME)
    failed: list[str] = []
    for _ in range(6):
        try:
            for index in range(module.device_count()):
                module.synchronize(index)
            return failed
        except Exception as error:
            failed.append(type(error).__name__)
            if type(error) is torch.AcceleratorError:  # a lost device stays lost
                return failed
    return [*failed, "never"]


def account(rule: str, schedule: str, expected: str) -> None:
    """Attach a driver some call of which fails, run the program some times, and print what came of each as JSON."""
    torch.set_num_threads(1)
    try:
        module = torch_outboard.attach(_NAME, fault=rule, schedule=schedule, memory="256MiB", spin=0)
    except Exception as error:
        print(json.dumps({"attached": type(error).__name__, "outcomes": [], "waits": [], "left": 0}))
        return
    outcomes: list[str] = []
    waits: list[list[str]] = []
    # One run after the failure is undisturbed.
    while len(outcomes) < 2 or (len(outcomes) == 2 and outcomes[1] != "right"):
        outcomes.append(_outcome(json.loads(expected)))
        gc.collect()
        waits.append(_settle())
    gc.collect()
    remaining = sum(module.memory_allocated(index) for index in range(module.device_count()))
    print(json.dumps({"attached": "right", "outcomes": outcomes, "waits": waits, "left": remaining}))
