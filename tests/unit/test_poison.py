# SPDX-License-Identifier: BSD-3-Clause
"""Memory that changes hands, under a driver's option poison: what it holds, and when it is filled."""

from __future__ import annotations

import pytest

from torch_outboard.testing.observed import poison_number
from torch_outboard.testing.plugin import RunPython

HEAD = """
import torch, torch_outboard
from torch_outboard.testing.observed import poison_number
module = torch_outboard.attach("sim", poison=1, schedule={schedule!r})

def number(tensor):
    return poison_number(bytes(tensor.cpu().view(torch.uint8).numpy()))
"""

KEPT = """
fresh = torch.empty(64, device="sim")
assert number(fresh) == 0
fresh.fill_(1)
module.synchronize()
address = fresh.data_ptr()
del fresh
seen = []
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
    again = torch.empty(256 // dtype.itemsize, dtype=dtype, device="sim")
    assert again.data_ptr() == address
    assert again.cpu().isnan().all(), dtype
    seen.append(number(again))
    del again
assert all(seen) and len(set(seen)) == len(seen), seen
for dtype, least in ((torch.int64, 1 << 60), (torch.int32, 1 << 30), (torch.int16, 1 << 14)):
    again = torch.empty(256 // dtype.itemsize, dtype=dtype, device="sim")
    assert (again.cpu() > least).all(), dtype
    del again
byte = torch.empty(256, dtype=torch.uint8, device="sim").cpu()
assert not ((byte == 0) | (byte == 1)).any()
"""

SPLIT = """
whole = torch.ones(1 << 20, device="sim")
module.synchronize()
del whole
parts = [torch.empty(1 << 18, device="sim") for _ in range(3)]
assert all(part.cpu().isnan().all() for part in parts)
"""

# The work of the memory's stream is not done when the memory is freed: it is filled behind that
# work.
QUEUED = """
a = torch.ones(64, device="sim")
b = a + 1
del a
c = torch.empty(64, device="sim")
c.add_(b)
assert (b.cpu() == 2).all() and c.isnan().all().item()
"""

RECORDED = """
side = module.Stream()
x = torch.ones(64, device="sim")
module.synchronize()
with module.stream(side):
    y = x + 1
x.record_stream(side)
del x
for _ in range(8):
    z = torch.empty(64, device="sim")
    z.fill_(7)
assert (y.cpu() == 2).all()
"""

PINNED = """
x = torch.ones(64).pin_memory()
first = torch.empty(64, pin_memory=True)
assert first.isnan().all() and poison_number(bytes(first.view(torch.uint8).numpy())) == 0
device = x.to("sim", non_blocking=True)
address = x.data_ptr()
del x
module.synchronize()
again = torch.empty(64, pin_memory=True)
assert again.data_ptr() == address and again.isnan().all()
assert (device.cpu() == 1).all()
"""

# What a graph has written stays where it is, also after the capture's tensors were freed.
GRAPHS = """
x = torch.ones(64, device="sim")
graph = module.Graph()
with module.graph(graph):
    y = x * 2
    z = y + 1
    del y
for _ in range(3):
    graph.replay()
    assert (z.cpu() == 3).all()
    torch.empty(64, device="sim").fill_(5)
"""

TRAINING = """
torch.manual_seed(0)
losses = {}
for device in ("cpu", "sim"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.linspace(-1, 1, 128).reshape(8, 16).to(device)
    kept = losses[device] = []
    for _ in range(5):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(loss.item())
module.empty_cache()
assert torch.allclose(torch.tensor(losses["cpu"]), torch.tensor(losses["sim"]), rtol=1e-4), losses
"""

PROGRAMS = {name: text for name, text in globals().items() if name.isupper() and name not in ("HEAD", "PROGRAMS")}


@pytest.mark.parametrize("schedule", ["normal", "inline", "pct:4"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_memory_holds(run_python: RunPython, program: str, schedule: str) -> None:
    run_python(HEAD.format(schedule=schedule) + PROGRAMS[program])


def test_nothing_is_filled_unasked(run_python: RunPython) -> None:
    run_python("""
import torch, torch_outboard
module = torch_outboard.attach("sim")
x = torch.ones(64, device="sim")
module.synchronize()
del x
assert (torch.empty(64, device="sim").cpu() == 1).all()
""")


def test_numbers_are_read_from_patterns() -> None:
    words = [0x7FF0 | digit for digit in (3, 2, 1, 0, 0, 0, 0, 0)]
    pattern = b"".join(word.to_bytes(2, "little") for word in words)
    assert poison_number(bytes(16) + pattern * 2) == 0x123
    assert poison_number(bytes(64)) is None and poison_number(pattern[:8]) is None
