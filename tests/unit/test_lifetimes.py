# SPDX-License-Identifier: BSD-3-Clause
"""Memory of queued work outlives the work, whatever call of the driver fails: graphs, parked and pinned blocks.

On sim in lazy order nothing runs before a wait, so a missing wait shows every time.
"""

from __future__ import annotations

import pytest

SIM = """
import ctypes, gc, pytest, torch, torch_outboard
from torch_outboard import DriverError
"""

# The first fill fails: that of the first replay, since a capture in software makes no call.
FAILING_REPLAY = (
    SIM
    + """
module = torch_outboard.attach("sim", devices=1, schedule="lazy:3", fault="fill_async:1:INTERNAL")
x, y = torch.ones(64).to("sim"), torch.ones(64).to("sim")
source, out = torch.ones(64).pin_memory(), torch.zeros(64).pin_memory()
module.synchronize()
side = module.Stream()
with module.stream(side):
    other = torch.ones(64).to("sim")
graph = module.Graph()
with module.graph(graph):
    x.copy_(source, non_blocking=True)
    x.add_(1)
    out.copy_(x, non_blocking=True)
    y.fill_(3)
del source

def pinned_blocks():
    return module.host_memory_stats()["active_requests.current"]

assert pinned_blocks() == 2
with pytest.raises(DriverError, match="fill_async"):
    graph.replay()
assert out.tolist() == [0] * 64, "it has run already: nothing is under way below"
"""
)


def test_reset_waits_for_what_a_failed_replay_has_queued(run_python):
    run_python(
        FAILING_REPLAY
        + """
graph.reset()
assert out.tolist() == [2] * 64
module.synchronize()
"""
    )


def test_a_graph_that_is_dropped_after_a_failed_replay_lives_until_that_is_done(run_python):
    run_python(
        FAILING_REPLAY
        + """
del graph
gc.collect()
while not side.query():  # another stream's work is done, the replay's is not waited for
    pass
torch.empty(1024, device="sim")
assert pinned_blocks() == 2 or out.tolist() == [2] * 64
module.synchronize()
assert out.tolist() == [2] * 64
module.synchronize()
assert pinned_blocks() == 1
"""
    )


def test_a_failed_replay_leaves_the_graph_usable(run_python):
    run_python(
        FAILING_REPLAY
        + """
graph.replay()
module.synchronize()
assert out.tolist() == [2] * 64 and y.tolist() == [3] * 64
with module.stream(side):
    graph.replay()
graph.reset()
module.synchronize()
assert pinned_blocks() == 1
"""
    )


def test_replay_leaves_an_earlier_error_to_the_next_wait(run_python):
    run_python(
        SIM
        + """
module = torch_outboard.attach("sim", devices=1, schedule="lazy:3")
table, index = torch.ones(4, 4).to("sim"), torch.tensor([99]).to("sim")
x = torch.zeros(8).to("sim")
module.synchronize()
graph = module.Graph()
with module.graph(graph):
    x.add_(1)
table.index_select(0, index)
while not module.current_stream().query():  # looks, and does not raise
    pass
graph.replay()
with pytest.raises(IndexError, match="index_select"):
    module.synchronize()
assert x.tolist() == [1] * 8
"""
    )


def test_a_dropped_graph_whose_event_fails_is_not_freed_early(run_python):
    run_python(
        SIM
        + """
module = torch_outboard.attach("sim", devices=1, schedule="lazy:3", fault="event_query:1+:INTERNAL")
x, out = torch.ones(64).to("sim"), torch.zeros(64).pin_memory()
side = module.Stream()
with module.stream(side):
    other = torch.ones(64).to("sim")
with pytest.raises(DriverError, match="event_query"):
    module.synchronize()  # of the pinned memory that the copies above went through
source = torch.ones(64).pin_memory()
graph = module.Graph()
with module.graph(graph):
    x.copy_(source, non_blocking=True)
    x.add_(1)
del source
active = module.host_memory_stats()["active_requests.current"]
graph.replay()
del graph
gc.collect()
with pytest.raises(DriverError, match="event_query"):
    side.synchronize()
for _ in range(3):  # told once
    side.synchronize()
assert module.host_memory_stats()["active_requests.current"] == active
module.empty_cache()  # waits for the stream, since its event can't be asked
assert module.host_memory_stats()["active_requests.current"] == active - 1
assert x.tolist() == [2] * 64
"""
    )


def test_a_graphs_memory_goes_back_when_no_stream_reads_it(run_python):
    run_python(
        SIM
        + """
module = torch_outboard.attach("sim", devices=1, schedule="lazy:3")
x = torch.ones(1 << 20).to("sim")
module.synchronize()
graph = module.Graph()
with module.graph(graph):
    y = x * 2
graph.replay()
module.synchronize()
reserved = module.memory_reserved()
out = y + 1  # reads the graph's memory on the current stream, not run yet
del y
graph.reset()
module.empty_cache()
assert module.memory_reserved() < reserved
assert out.unique().tolist() == [3]
"""
    )


def test_a_dropped_graphs_memory_is_there_when_memory_runs_out(run_python):
    run_python(
        SIM
        + """
module = torch_outboard.attach("sim", devices=1, memory="128MiB")
for _ in range(2):
    graph = module.Graph()
    with module.graph(graph):
        y = torch.empty(80 << 18, device="sim").fill_(1)
    graph.replay()
    del y, graph
    gc.collect()
    torch.empty(80 << 18, device="sim")
    graph = module.Graph()
    with module.graph(graph):
        y = torch.empty(80 << 18, device="sim").fill_(1)
    graph.replay()
    del y, graph
    gc.collect()
    module.empty_cache()
    assert module.memory_reserved() == 0
"""
    )


def test_the_memory_of_a_compiled_function_outlives_its_replays(run_compiler):
    run_compiler(
        SIM
        + """
module = torch_outboard.attach("sim", schedule="lazy:2")
count = 1 << 18
compiled = torch.compile(lambda x: (x.sin() + 1) * 2, mode="reduce-overhead")
x = torch.randn(count, device="sim")
want = (x.cpu().sin() + 1) * 2
for _ in range(3):
    y = compiled(x)
torch.accelerator.synchronize()
side = torch.Stream("sim")
side.wait_stream(torch.accelerator.current_stream())
with side:
    result = compiled(x)
del compiled, y
torch._dynamo.reset()
gc.collect()
others = [torch.full((count,), 1e9, device="sim") for _ in range(6)]
torch.accelerator.synchronize()
torch.testing.assert_close(result.cpu(), want)
assert all(bool((other == 1e9).all()) for other in others)
"""
    )


# A driver whose streams can be destroyed by somebody else: what names
# such a stream fails from then on.
TOY = """
import pytest, torch, torch_outboard
from torch_outboard import DriverError
from tests.unit.toys import Toy

class Failing(Toy):
    gone, fails, freed, queries = set(), (), 0, 0

    def use(self, entry, stream):
        if stream in self.gone and entry in self.fails:
            raise DriverError(f"stream {stream} was destroyed")

    def mem_free(self, device, address):
        self.freed += 1

    def event_record(self, device, stream, event):
        self.use("event_record", stream)

    def stream_synchronize(self, device, stream):
        self.use("stream_synchronize", stream)

driver = Failing()
module = torch_outboard.attach(driver)
handle = driver.stream_create(0, 0)
external, side = module.get_stream_from_external(handle), module.Stream()

def failures(*calls):
    count = 0
    for call in calls:
        try:
            call()
        except DriverError as error:
            assert "was destroyed" in str(error)
            count += 1
    return count
"""


def test_a_stream_that_fails_keeps_only_its_own_blocks(run_python):
    run_python(
        TOY
        + """
driver.fails = ("event_record",)
blocks = [torch.empty(8 << 20, device="toy") for _ in range(3)]
blocks[0].record_stream(external)
blocks[1].record_stream(side)
driver.gone.add(handle)
blocks.clear()
assert failures(*[module.synchronize] * 4) == 1
stats = module.memory_stats()
assert stats["active.all.current"] == 1, "the block of the failing stream alone is kept"
module.empty_cache()  # the stream can still be waited for
assert driver.freed == 3 and module.memory_reserved() == 0
"""
    )


def test_a_stream_that_cannot_be_waited_for_is_reported_once_and_its_memory_stays(run_python):
    run_python(
        TOY
        + """
driver.device_synchronize = None
driver.fails = ("event_record", "stream_synchronize")
with module.stream(external):
    kept = torch.empty(8 << 20, device="toy")
parked = torch.empty(8 << 20, device="toy")
parked.record_stream(external)
other = torch.empty(8 << 20, device="toy")
driver.gone.add(handle)
del kept, parked, other
assert failures(*[module.empty_cache] * 4) <= 2
assert failures(*[module.empty_cache] * 4) == 0
assert driver.freed == 1 and module.memory_stats()["segment.all.current"] == 2
"""
    )


def test_a_small_copy_asks_for_the_oldest_pinned_block_only(run_python):
    run_python(
        SIM
        + """
from examples.pure_python_driver import PythonDriver

class Slow(PythonDriver):
    queries, is_done = 0, False

    def host_alloc(self, bytes):
        buffer = (ctypes.c_char * (bytes + 64))()
        self.memory_of = getattr(self, "memory_of", [])
        self.memory_of.append(buffer)
        address = ctypes.addressof(buffer)
        return address + -address % 64

    def host_free(self, pointer):
        pass

    def event_query(self, device, event):
        self.queries += 1
        return self.is_done

driver = Slow()
module = torch_outboard.attach(driver)
x = torch.zeros(8, device="python")

def copy(count):
    before = driver.queries
    for _ in range(count):
        x.copy_(torch.ones(8).pin_memory(), non_blocking=True)
    return driver.queries - before

copy(10)
first = copy(100)
assert copy(100) <= first + 100, "each copy asks about what all the others use"
active = module.host_memory_stats()["active_requests.current"]
assert active >= 200, "nothing is given out again"
driver.is_done = True
module.synchronize()
assert module.host_memory_stats()["active_requests.current"] == 0
"""
    )


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_failure_of_the_profiler_fails_no_call(run_python, number):
    run_python(
        SIM
        + f"""
fault = "activity_correlate:{number}:INTERNAL"
module = torch_outboard.attach("sim", devices=1, schedule="lazy:3", fault=fault)
from torch.profiler import ProfilerActivity, profile
x = torch.ones(4).to("sim")
module.synchronize()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]):
    results = [x + value for value in range(3)]
    module.synchronize()
assert [result.tolist() for result in results] == [[1.0 + value] * 4 for value in range(3)]
"""
    )
