# SPDX-License-Identifier: BSD-3-Clause
"""The allocator against a simple model of it, with random operations.

`OUTBOARD_MODEL_OPERATIONS` sets the number of operations, `OUTBOARD_MODEL_SEED` repeats a run: each prints its seed.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import os
import random

import pytest
import torch
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import torch_outboard

from .support import maps_memory, module_of

SEED = int(os.environ.get("OUTBOARD_MODEL_SEED") or random.randrange(1 << 32))
STEPS_A_RUN = 100
OPERATIONS_A_RUN = 1500  # about, with bursts
MAX_LIVE_TENSORS = 300
STREAMS = 3
MIB = 1 << 20
SIZES = st.one_of(st.integers(1, 5000), st.integers(1, 3 * MIB), st.sampled_from([512, 513, MIB, MIB + 1, 12 * MIB]))


class Model(RuleBasedStateMachine):
    """The live blocks: for each an address range, a fill value, and the stream and the pool that it came from."""

    device: torch.device
    streams: list[torch.Stream]
    operations = 0

    def __init__(self) -> None:
        super().__init__()
        self.module = module_of(self.device)
        self.live: list[tuple[torch.Tensor, int, int | None]] = []  # tensor, bytes of its block, value
        self.before = self.module.memory_allocated(self.device)
        self.count_before = self.module.memory_stats(self.device)["allocation.all.current"]
        self.ranges: list[tuple[int, int]] = []  # of live blocks, by address
        # What was dropped while another stream used it: its range, and an event behind that work.
        self.parked: list[tuple[int, int, torch.Event]] = []
        self.owners: dict[int, torch.Stream] = {}  # by address: the stream that a block was allocated on
        self.stream = 0
        self.pool = self.module.MemPool()
        self.is_in_pool = False
        self.count = 0

    def teardown(self) -> None:
        self.live.clear()
        self.parked.clear()
        torch.accelerator.synchronize(self.device)
        del self.pool
        assert self.module.memory_allocated(self.device) == self.before

    def take(self, size: int, value: int | None) -> None:
        """Allocate, and check at once that the block overlaps no block in use. Without a value nothing is written."""
        with self.module.stream(self.streams[self.stream]):
            if self.is_in_pool:
                with self.module.use_mem_pool(self.pool, self.device):
                    tensor = torch.empty(size, dtype=torch.uint8, device=self.device)
            else:
                tensor = torch.empty(size, dtype=torch.uint8, device=self.device)
            if value is not None:
                tensor.fill_(value)
        start = tensor.data_ptr()
        end = start + size
        place = bisect.bisect_left(self.ranges, (start, end))
        assert place == 0 or self.ranges[place - 1][1] <= start, "it overlaps a live block"
        assert place == len(self.ranges) or end <= self.ranges[place][0], "it overlaps a live block"
        self.ranges.insert(place, (start, end))
        for parked in [parked for parked in self.parked if parked[0] < end and start < parked[1]]:
            assert parked[2].query(), "it was handed out while another stream uses it"
            self.parked.remove(parked)
        self.owners[start] = self.streams[self.stream]
        self.live.append((tensor, (size + 511) // 512 * 512, value))

    def give(self, place: int) -> None:
        tensor, _, _ = self.live[place]
        self.ranges.remove((tensor.data_ptr(), tensor.data_ptr() + tensor.numel()))
        self.live[place] = self.live[-1]
        self.live.pop()

    def drop_while_read(self, place: int, reader: torch.Stream) -> None:
        """Drop a block that another stream has just begun to read."""
        tensor, _, _ = self.live[place]
        for stream in self.streams:
            if stream != reader:
                reader.wait_stream(stream)
        with self.module.stream(reader):
            tensor.clone()
        tensor.record_stream(reader)
        start = tensor.data_ptr()
        if self.owners[start] != reader:  # its own stream's work is in order with the reuse
            self.parked.append((start, start + tensor.numel(), reader.record_event()))
        del tensor
        self.give(place)

    @rule(size=SIZES)
    def allocate(self, size: int) -> None:
        Model.operations += 1
        self.count += 1
        self.take(size, self.count % 251)

    @rule(number=st.integers(0, 2**32 - 1), count=st.integers(50, 400))
    def burst(self, number: int, count: int) -> None:
        """Run many operations of one random number, with cheap checks for each. Nothing is written."""
        draw = random.Random(number)
        for _ in range(count):
            Model.operations += 1
            choice = draw.random()
            if choice < 0.5 and len(self.live) < MAX_LIVE_TENSORS:
                self.take(int(2 ** draw.uniform(0, 15 if draw.random() < 0.9 else 21.5)), None)
            elif choice < 0.93:
                if self.live:
                    self.give(draw.randrange(len(self.live)))
            elif choice < 0.96:
                if self.live:
                    self.drop_while_read(draw.randrange(len(self.live)), draw.choice(self.streams))
            elif choice < 0.99:
                self.stream = draw.randrange(STREAMS)
            else:
                self.is_in_pool = not self.is_in_pool
            stats = torch._C._accelerator_getDeviceStats(self.device.index)
            assert stats["allocation"]["all"]["current"] - self.count_before == len(self.live)
            assert stats["active"]["all"]["current"] >= stats["allocation"]["all"]["current"]
            assert stats["reserved_bytes"]["all"]["current"] >= stats["active_bytes"]["all"]["current"]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.live) - 1))
        Model.operations += 1
        tensor, _, value = self.live[place]
        if value is not None and data.draw(st.booleans()):
            self.module.synchronize(self.device)
            assert tensor[0].item() == value == tensor[-1].item()
        self.give(place)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def use_on_another_stream(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.live) - 1))
        reader = self.streams[data.draw(st.integers(0, STREAMS - 1))]
        Model.operations += 1
        tensor, _, value = self.live[place]
        if value is None:
            self.drop_while_read(place, reader)
            return
        for stream in self.streams:
            if stream != reader:
                reader.wait_stream(stream)
        with self.module.stream(reader):
            copy = tensor.clone()
        tensor.record_stream(reader)
        if data.draw(st.booleans()):
            self.give(place)
            del tensor
        reader.synchronize()
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


def operations() -> int:
    """Return the number of operations of each of the two runs: 100,000 on drivers made for tests."""
    driver = torch_outboard.attached_driver()
    assert driver is not None
    return int(os.environ.get("OUTBOARD_MODEL_OPERATIONS", "100000" if "schedule" in driver.options else "4000"))


def run(device):
    wanted = operations()
    gc.collect()
    torch.accelerator.synchronize(device)
    module_of(device).empty_cache()
    Model.device = device
    Model.streams = [torch.Stream(device) for _ in range(STREAMS)]
    Model.operations = 0
    print(f"OUTBOARD_MODEL_SEED={SEED}")
    # Many of Hypothesis's runs are short, so there are as many of them as it takes.
    for number in itertools.count(SEED):
        if Model.operations >= wanted:
            break
        run_state_machine_as_test(
            seed(number)(Model),
            settings=settings(
                max_examples=max(1, wanted // OPERATIONS_A_RUN),
                stateful_step_count=STEPS_A_RUN,
                deadline=None,
                print_blob=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    print(f"{Model.operations} operations")
    gc.collect()


def test_the_allocator_is_what_the_model_says(device):
    run(device)


def test_expandable_segments_are_too(device):
    if not maps_memory(device):
        pytest.skip("capability: mem_reserve and mem_map. The driver maps no memory")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    try:
        run(device)
    finally:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
