# SPDX-License-Identifier: BSD-3-Clause
"""Random captures, replays, resets, drops and frees in adversarial order, against a model of the values.

Nothing runs before a wait. Memory or commands that are freed too early are therefore used afterwards, which ends the
process or shows in the values. `OUTBOARD_STRESS_SEEDS` sets the number of seeds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stress.test_memory import FORKS, drivers_with

SEEDS = int(os.environ.get("OUTBOARD_STRESS_SEEDS", "100"))

PROGRAM = (
    FORKS
    + """
import gc, random

name, seeds, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SIZE, PRIME = 1 << 14, 1_000_003

class Captured:
    def __init__(self, graph, pool, plan, output):
        self.graph, self.pool, self.plan, self.output, self.value = graph, pool, plan, output, None

class Program:
    def __init__(self, seed):
        self.module = torch_outboard.attach(name, devices=1, schedule=f"lazy:{seed}", memory="64MiB")
        self.draw = random.Random(seed)
        self.streams = [self.module.Stream() for _ in range(4)]
        self.last = self.streams[0]
        with self.module.stream(self.last):
            self.cells = [self.full(value) for value in range(4)]
        self.values = [0, 1, 2, 3]
        self.captured, self.kept, self.results = [], [], []

    def full(self, value):
        return torch.full((SIZE,), value, dtype=torch.int64, device=name)

    def stream(self):
        # Behind all that went before, on whatever stream.
        stream = self.draw.choice(self.streams)
        if stream != self.last:
            stream.wait_stream(self.last)
            self.last = stream
        return self.module.stream(stream)

    def capture(self):
        plan = self.draw.randrange(4), self.draw.randrange(4), self.draw.randrange(2, 9)
        shared = [captured.pool for captured in self.captured if self.draw.random() < 0.3]
        graph = self.module.Graph()
        pool = shared[0] if shared else self.module.graph_pool_handle()
        with self.stream():
            graph.capture_begin(pool)
            try:
                source, target, factor = plan
                between = self.cells[source] * factor + self.cells[target]
                self.cells[target].copy_(between % PRIME)
                output = between + 1
            except torch.OutOfMemoryError:
                graph.reset()
                return
            graph.capture_end()
        self.captured.append(Captured(graph, pool, plan, output))

    def replay(self):
        if self.captured:
            captured = self.draw.choice(self.captured)
            with self.stream():
                captured.graph.replay()
            for other in self.captured + self.kept:
                other.value = None if other.pool == captured.pool else other.value
            source, target, factor = captured.plan
            between = self.values[source] * factor + self.values[target]
            self.values[target] = between % PRIME
            captured.value = between + 1

    def read(self):
        known = [captured for captured in self.captured + self.kept if captured.value is not None]
        if known:
            captured = self.draw.choice(known)
            with self.stream():
                result = captured.output + 1
            self.results.append((result, captured.value + 1))

    def give_up(self):
        if self.captured:
            captured = self.captured.pop(self.draw.randrange(len(self.captured)))
            if self.draw.random() < 0.5:
                captured.graph.reset()
            captured.graph = None
            if self.draw.random() < 0.5:
                self.kept.append(captured)

    def drop(self):
        if self.kept:
            self.kept.pop(self.draw.randrange(len(self.kept)))
        if self.results:
            self.check(*self.results.pop(0))

    def write(self):
        index, value = self.draw.randrange(4), self.draw.randrange(PRIME)
        source = torch.full((SIZE,), value).pin_memory()
        with self.stream():
            self.cells[index].copy_(source, non_blocking=True)
        self.values[index] = value

    def allocate(self):
        with self.stream():
            tensor = self.full(7)
        tensor.record_stream(self.draw.choice(self.streams))

    def empty(self):
        gc.collect()
        self.module.empty_cache()

    def check(self, tensor, value):
        with self.stream():
            found = tensor.unique().tolist()
        assert found == [value], (found, value)

    def run(self):
        actions = [self.capture, *[self.replay] * 4, *[self.read] * 3, self.give_up, self.drop, self.write,
                   *[self.allocate] * 2, self.empty, self.module.synchronize]
        for _ in range(steps):
            action = self.draw.choice(actions)
            try:
                action()
            except torch.OutOfMemoryError:
                assert action not in (self.replay, self.empty), "these need no memory"
                self.results.clear()
                self.kept.clear()
        self.module.synchronize()
        for pair in [*self.results, *zip(self.cells, self.values, strict=True)]:
            self.check(*pair)

def run(seed):
    Program(seed).run()
    return 0

print(json.dumps(children(range(seeds), run)))
"""
)


@pytest.mark.parametrize("driver", drivers_with("schedule"))
def test_random_lives_of_graphs(driver):
    command = [sys.executable, "-c", PROGRAM, driver, str(SEEDS), "150"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    print(done.stderr[-20_000:])
    assert done.returncode == 0
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts == {"0": list(range(SEEDS))}, "by the status of the process, negative for a signal: the seeds"
