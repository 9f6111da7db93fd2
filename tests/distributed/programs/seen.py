# SPDX-License-Identifier: BSD-3-Clause
"""Collectives as the profiler, the stream sanitizer and graphs see them. argv[1] is the provider."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import torch_outboard
from distributed.programs.start import RANK, raises, start
from torch_outboard import sanitizer

provider = sys.argv[1]
device = start()
module = torch.get_device_module(device)
x = torch.ones(1 << 10, device=device)
gathered = torch.empty(2 << 10, device=device)


def exchange() -> None:
    """Run an all_reduce on the current stream and an all_gather beside it, and a batch with the peer."""
    received = torch.empty(8, dtype=torch.int32, device=device)
    sent = torch.ones(8, dtype=torch.int32, device=device)
    dist.all_reduce(x)
    dist.all_gather_into_tensor(gathered, x, async_op=True).wait()
    swap = [dist.P2POp(dist.isend, sent, 1 - RANK), dist.P2POp(dist.irecv, received, 1 - RANK)]
    for work in dist.batch_isend_irecv(swap):
        work.wait()
    torch.accelerator.synchronize()
    assert received.sum().item() == 8


# ---- The profiler ----

exchange()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as result:
    exchange()
path = f"{os.environ['TEST_STORE']}-trace-{RANK}"
result.export_chrome_trace(path)
with open(path) as file:
    events: list[dict[str, Any]] = json.load(file)["traceEvents"]
calls = {event["args"]["Collective name"]: event for event in events if event.get("name") == "record_param_comms"}
assert set(calls) == {"allreduce", "_allgather_base", "send", "recv"}, set(calls)
wanted = {
    "allreduce": (1 << 10, 1 << 10, "Float"),
    "_allgather_base": (1 << 10, 2 << 10, "Float"),
    "send": (8, 8, "Int"),
    "recv": (8, 8, "Int"),
}
for name, (sent, got, dtype) in wanted.items():
    args = calls[name]["args"]
    assert (args["In msg nelems"], args["Out msg nelems"], args["dtype"]) == (sent, got, dtype), args
    assert args["Process Group Name"] == "0" and args["Process Group Ranks"] == "[0, 1]", args
    assert args["Group size"] == 2, args
assert calls["send"]["args"]["Dst Rank"] == 1 - RANK, calls["send"]
works = [event for event in events if event.get("cat") == "kernel"]
if provider == "native":
    names = {"sim_all_reduce": 4 << 10, "sim_all_gather": 4 << 10, "sim_send": 32, "sim_recv": 32}
else:
    titles = ("all_reduce", "all_gather_into_tensor", "send", "recv")
    names = dict(zip((f"outboard:{title}" for title in titles), (4 << 10, 4 << 10, 32, 32), strict=True))
lanes = {}
for name, size in names.items():
    (work,) = [event for event in works if event["name"] == name]
    assert work["args"]["bytes"] == size and work["dur"] > 0, work
    lanes[name] = work["args"]["stream"]
reduced, beside, sent, got = lanes.values()
assert reduced == 0 and len({reduced, beside, sent, got}) == 4, lanes
(reduction,) = [event for event in works if event["name"] == next(iter(names))]
assert reduction["args"]["Collective name"] == "allreduce", reduction
table = {row.key: row for row in result.key_averages()}
assert table["record_param_comms"].count == 4
assert table[next(iter(names))].self_device_time_total > 0
rows = {row.op: row for row in torch_outboard.coverage() if row.op.startswith("c10d::")}
assert {row.provider for row in rows.values()} == {provider}, rows
assert rows["c10d::allreduce_"].calls == 2 and rows["c10d::send"].calls == 2, rows

# ---- A wait for earlier results ----


def waits(halves: int) -> int:
    """Return how often streams wait in a call that reads halves of a tensor, which an earlier call writes."""
    whole = torch.empty(16, device=device)
    works = [dist.all_gather(list(whole.chunk(2)), x[:8], async_op=True)]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as result:
        works.append(dist.all_reduce(whole[: 8 * halves], async_op=True))
    for work in works:
        work.wait()
    torch.accelerator.synchronize()
    return sum(event.name == "stream_wait_event" for event in result.events())


assert waits(1) == waits(2) > 0

# ---- The stream sanitizer ----

side = torch.Stream(device)


def races() -> set[tuple[str, str]]:
    return {(race.first.op, race.second.op) for race in sanitizer.races()}


torch.accelerator.synchronize()
sanitizer.enable()
work = dist.all_reduce(x, async_op=True)
work.wait()
y = x + 1
assert y.sum().item() >= 0
dist.all_reduce(x)
x.mul_(0.5)
future = dist.all_reduce(x, async_op=True).get_future()
future.wait()
z = x + 1
work = dist.all_gather_into_tensor(gathered, x, async_op=True)
side.wait_stream(torch.accelerator.current_stream())
with module.stream(side):
    work.wait()
    y = gathered + 1
torch.accelerator.current_stream().wait_stream(side)
gathered.zero_()
dist.barrier()
assert races() == set(), "each result was waited for"
torch.accelerator.synchronize()
first, second = x.chunk(2)
work = dist.all_reduce(first, async_op=True)
y = second + 1
assert races() == set(), "the other half of the storage is not in use"
work.wait()
for use, op in ((lambda: x + 1, "aten::add.Tensor"), (lambda: x.mul_(0.5), "aten::mul_.Tensor")):
    work = dist.all_reduce(first, async_op=True)
    # The group's threads wait for the exchange, the program does not: nothing really races.
    dist.barrier()
    y = use()
    assert ("c10d::allreduce_", op) in races(), races()
    work.wait()
torch.accelerator.synchronize()
sanitizer.enable(is_raising=True)
dist.all_gather_into_tensor(gathered, x)
with module.stream(side), raises(sanitizer.StreamRaceError, "c10d::_allgather_base_", "aten::add.Tensor"):
    gathered + 1
sanitizer.disable()
torch.accelerator.synchronize()

# ---- Torch's hooks, from torch 2.15 on ----

c10d = torch._C._distributed_c10d
if hasattr(c10d, "NanCheckHook"):
    hook = c10d.NanCheckHook.attach(dist.group.WORLD)
    with raises(RuntimeError, "NaN found in input tensor"):
        dist.all_reduce(torch.full((2,), float("nan"), device=device))
    hook.remove()
    # Torch attaches its flight recorder to each group.
    entry = json.loads(c10d._dump_fr_trace_json(backend="outboard"))["entries"][0]
    assert (entry["profiling_name"], entry["input_sizes"]) == ("outboard:all_reduce", [[1 << 10]]), entry

# ---- Graphs ----


def refused(*words: str) -> Any:
    return raises(torch_outboard.CaptureError, *words)


if provider != "native":
    for collective in (lambda: dist.all_reduce(x), lambda: dist.all_reduce(x, async_op=True), dist.barrier):
        with refused(", which Gloo exchanges through the host, cannot be captured"), module.graph(module.Graph()):
            collective()
    x.fill_(1)
    dist.all_reduce(x)
    assert x[0].item() == 2
    dist.destroy_process_group()
    sys.exit()

with refused("all_reduce, which has not run in its group before with this dtype"), module.graph(module.Graph()):
    dist.all_reduce(x, dist.ReduceOp.PRODUCT)
with refused("send cannot be captured"), module.graph(module.Graph()):
    dist.isend(x, 1 - RANK)
with refused("wait() with a timeout cannot be captured"), module.graph(module.Graph()):
    dist.all_reduce(x, async_op=True).wait(timedelta(seconds=1))
with refused("barrier, which Gloo exchanges"), module.graph(module.Graph()):
    dist.barrier()

source = torch.empty(4, device=device)
exchanged = torch.empty(8, device=device)
dist.all_to_all_single(exchanged, torch.ones(8, device=device))  # runs once before
graph = module.Graph()
with module.graph(graph):
    reduced = source * 2
    dist.all_reduce(reduced)
    pair = torch.empty(8, device=device)
    work = dist.all_gather_into_tensor(pair, source + reduced, async_op=True)
    apart = source + 1
    work.wait()
    dist.all_to_all_single(exchanged, pair)
    lists = [torch.empty(4, device=device) for _ in range(2)]
    dist.all_gather(lists, exchanged[:4])
calls = {row.op: row.calls for row in torch_outboard.coverage()}
for step in range(3):
    source.fill_(step + RANK)
    graph.replay()
    total = 2.0 * (step + step + 1)
    halves = [step + total, step + 1 + total]
    assert reduced.tolist() == [total] * 4 and apart.tolist() == [step + RANK + 1.0] * 4
    assert pair.tolist() == [halves[0]] * 4 + [halves[1]] * 4, pair
    assert exchanged.tolist() == [halves[RANK]] * 8, exchanged
    assert [each.tolist() for each in lists] == [[halves[rank]] * 4 for rank in range(2)]
    dist.all_reduce(x)  # between replays, in the same order on each rank
assert {row.op: row.calls for row in torch_outboard.coverage()}["c10d::_allgather_base_"] == calls[
    "c10d::_allgather_base_"
]

# A rank that has gone is noticed in a replay.
dist.barrier()
if RANK == 1:
    os._exit(0)
graph.replay()
with raises(dist.DistBackendError, "rank 0 of group '0'", "sequence number"):
    pair[0].item()
dist.destroy_process_group()
with raises(dist.DistBackendError, "all_reduce was not started"):
    graph.replay()
