# SPDX-License-Identifier: BSD-3-Clause
"""The end of a process that has graphs."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import torch, torch_outboard
torch_outboard.attach("sim")
x = torch.ones(1 << 16, device="sim")
graph = torch.sim.Graph()
"""
ENDS = {
    "unfinished capture": "stream = torch.sim.Stream(); stream.__enter__(); graph.capture_begin(); y = x + 1",
    "failed capture": """
stream = torch.sim.Stream(); stream.__enter__(); graph.capture_begin()
try:
    x.sum().item()
except torch_outboard.CaptureError:
    pass
""",
    "running replays": """
with torch.sim.graph(graph):
    y = torch.rand_like(x) + x
for _ in range(50):
    graph.replay()
""",
    "dropped while it runs": """
with torch.sim.graph(graph):
    y = x * 2
for _ in range(50):
    graph.replay()
del graph
""",
    "dropped unfinished": """
stream = torch.sim.Stream()
stream.wait_stream(torch.sim.current_stream())  # which fills x
with torch.sim.stream(stream):
    graph.capture_begin()
    y = x + 1
    del graph
    assert not torch.sim.is_current_stream_capturing()
    assert (x + 1).sum().item() == 2 << 16
""",
    "fork": """
import os, warnings
with torch.sim.graph(graph):
    y = x * 2
graph.replay()
torch.sim.synchronize()
warnings.filterwarnings("ignore", "This process.*is multi-threaded", DeprecationWarning)  # of Python 3.12 on
child = os.fork()
if child == 0:
    del graph, y
    os._exit(0 if torch.ones(2).sum().item() == 2 else 1)
assert os.waitpid(child, 0)[1] == 0
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_process_ends_cleanly(end: str) -> None:
    run = subprocess.run([sys.executable, "-c", START + ENDS[end]], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
