# SPDX-License-Identifier: BSD-3-Clause
"""The allocator against a simple model of it, with random steps. `OUTBOARD_MODEL_STEPS` makes the run longer."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from .support import maps_memory, module_of

STEPS = int(os.environ.get("OUTBOARD_MODEL_STEPS", "600"))
STEPS_A_RUN = 100
STREAMS = 3
MIB = 1 << 20
SIZES = st.one_of(st.integers(1, 5000), st.integers(1, 3 * MIB), st.sampled_from([512, 513, MIB, MIB + 1, 12 * MIB]))


class Model(RuleBasedStateMachine):
    """What is live: an address range, a value that it is filled with, and the stream and pool that it came from."""

    device: torch.device
    streams: list[torch.Stream]
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.module = module_of(self.device)
        self.live: list[tuple[torch.Tensor, int, int]] = []  # tensor, bytes of its block, value
        self.before = self.module.memory_allocated(self.device)
        self.active_before = self.module.memory_stats(self.device)["active_bytes.all.current"]
        self.parked = 0
        self.stream = 0
        self.pool = self.module.MemPool()
        self.is_in_pool = False
        self.count = 0

    def teardown(self) -> None:
        self.live.clear()
        torch.accelerator.synchronize(self.device)
        del self.pool
        assert self.module.memory_allocated(self.device) == self.before

    @rule(size=SIZES)
    def allocate(self, size: int) -> None:
        self.count += 1
        value = self.count % 251
        with self.module.stream(self.streams[self.stream]):
            if self.is_in_pool:
                with self.module.use_mem_pool(self.pool, self.device):
                    tensor = torch.empty(size, dtype=torch.uint8, device=self.device)
            else:
                tensor = torch.empty(size, dtype=torch.uint8, device=self.device)
            tensor.fill_(value)
        self.live.append((tensor, (size + 511) // 512 * 512, value))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.live) - 1))
        tensor, _, value = self.live[place]
        if data.draw(st.booleans()):
            self.module.synchronize(self.device)
            assert tensor[0].item() == value == tensor[-1].item()
        del self.live[place]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def use_on_another_stream(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.live) - 1))
        other = self.streams[data.draw(st.integers(0, STREAMS - 1))]
        tensor, _, value = self.live[place]
        for stream in self.streams:
            if stream != other:
                other.wait_stream(stream)
        with self.module.stream(other):
            copy = tensor.clone()
        tensor.record_stream(other)
        if data.draw(st.booleans()):
            del self.live[place]
            del tensor
        other.synchronize()
        assert copy[0].item() == value == copy[-1].item()

    @rule(stream=st.integers(0, STREAMS - 1))
    def switch_stream(self, stream: int) -> None:
        self.stream = stream

    @rule()
    def switch_pool(self) -> None:
        self.is_in_pool = not self.is_in_pool

    @rule()
    def empty_cache(self) -> None:
        self.module.empty_cache()

    @rule(room=st.sampled_from([0, 8 * MIB, 64 * MIB]))
    def run_short_of_memory(self, room: int) -> None:
        total = self.module.get_device_properties(self.device).total_memory
        if total == 0:
            return
        fraction = (self.module.memory_reserved(self.device) + room + 0.5) / total
        self.module.set_per_process_memory_fraction(min(fraction, 1.0), self.device)
        try:
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(total, dtype=torch.uint8, device=self.device)
        finally:
            self.module.set_per_process_memory_fraction(1.0, self.device)

    @invariant()
    def statistics_are_the_models(self) -> None:
        Model.steps += 1
        stats = self.module.memory_stats(self.device)
        least = sum(size for _, size, _ in self.live)
        # A large block is not split for a rest of up to 1 MiB.
        most = sum(size + (MIB if size > MIB else 0) for _, size, _ in self.live)
        assert least <= stats["allocated_bytes.all.current"] - self.before <= most
        assert stats["reserved_bytes.all.current"] >= stats["active_bytes.all.current"]
        assert stats["active_bytes.all.current"] >= stats["allocated_bytes.all.current"]

    @invariant()
    def live_blocks_do_not_overlap(self) -> None:
        ranges = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.numel()) for tensor, _, _ in self.live)
        assert all(end <= start for (_, end), (start, _) in zip(ranges, ranges[1:], strict=False))

    @invariant()
    def every_byte_is_accounted_for(self) -> None:
        segments = [segment for segment in self.module.memory_snapshot() if segment["device"] == self.device.index]
        stats = self.module.memory_stats(self.device)
        assert sum(segment["total_size"] for segment in segments) == stats["reserved_bytes.all.current"]
        assert sum(segment["active_size"] for segment in segments) == stats["active_bytes.all.current"]
        blocks = {}
        for segment in segments:
            assert sum(entry["size"] for entry in segment["blocks"]) == segment["total_size"]
            states = [entry["state"] for entry in segment["blocks"]]
            assert ("inactive", "inactive") not in set(zip(states, states[1:], strict=False))
            blocks.update({entry["address"]: entry for entry in segment["blocks"]})
        for tensor, size, _ in self.live:
            entry = blocks[tensor.data_ptr()]
            assert entry["state"] == "active_allocated" and entry["requested_size"] == tensor.numel()
            assert entry["size"] == size or size < entry["size"] <= size + MIB and size > MIB
        ours = sum(blocks[tensor.data_ptr()]["size"] for tensor, _, _ in self.live)
        assert stats["allocated_bytes.all.current"] - self.before == ours


def run(device):
    gc.collect()
    torch.accelerator.synchronize(device)
    module_of(device).empty_cache()
    Model.device = device
    Model.streams = [torch.Stream(device) for _ in range(STREAMS)]
    Model.steps = 0
    # Many of Hypothesis's runs are short, so there are as many of them as it takes.
    while Model.steps < STEPS:
        run_state_machine_as_test(
            Model,
            settings=settings(
                max_examples=max(1, STEPS // STEPS_A_RUN),
                stateful_step_count=STEPS_A_RUN,
                deadline=None,
                print_blob=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    print(f"{Model.steps} steps")
    gc.collect()


def test_the_allocator_is_what_the_model_says(device):
    run(device)


def test_expandable_segments_are_too(device):
    if not maps_memory(device):
        pytest.skip("the driver maps no memory")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    try:
        run(device)
    finally:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
