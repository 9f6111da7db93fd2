# SPDX-License-Identifier: BSD-3-Clause
"""No operator of torch ends the process on the device, whatever tensors it is called with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from .contract import ROOT

PROGRAM = """
import json
from tests.unit.every_operator import ended_by_signals, operators
schemas = operators()
print(json.dumps([len(schemas), [str(schema) for schema, *_ in ended_by_signals(schemas, "sim")]]))
"""


def test_no_operator_ends_the_process(tmp_path: Path) -> None:
    environment = {**os.environ, "OUTBOARD_FALLBACK": "silent", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    count, ended = json.loads(answer.stdout)
    assert count > 2500
    assert ended == []


CALLS = """
import pytest, torch, torch_outboard
torch_outboard.attach("sim")
ops, x = torch.ops.aten, torch.tensor([[1.0, 7e4, -9e4], [1.0, 2.0, 3.0]])
d = x.to("sim")
"""


def test_composites_that_read_memory_compute_on_copies(run_python) -> None:
    run_python(
        CALLS
        + """
assert torch.equal(ops._saturate_weight_to_fp16(d.clone()).cpu(), ops._saturate_weight_to_fp16(x.clone()))
wanted = ops.choose_qparams_optimized(x.flatten(), 6, 200, 0.16, 8)
found = ops.choose_qparams_optimized(d.flatten(), 6, 200, 0.16, 8)
assert all(torch.equal(result.cpu(), reference) for result, reference in zip(found, wanted))
shape = torch.tensor([3, 2])
for of in (shape, shape.to("sim")):
    given = d.clone().requires_grad_()
    reshaped = torch._reshape_from_tensor(given, of)
    reshaped.sum().backward()
    assert torch.equal(reshaped.detach().cpu(), x.reshape(3, 2)) and given.grad.tolist() == [[1.0] * 3] * 2
assert torch.equal(torch._reshape_from_tensor(x, shape.to("sim")), x.reshape(3, 2))
with pytest.raises(RuntimeError, match="expected scalar type Long"):
    torch._reshape_from_tensor(d, shape.to("sim").int())
with pytest.raises(RuntimeError, match="a shape of one dimension, got 2"):
    torch._reshape_from_tensor(d, shape.to("sim")[None])
state = torch.zeros(3, 30, dtype=torch.long)
on_device = state.to("sim")
ops._sobol_engine_initialize_state_(state, 3)
ops._sobol_engine_initialize_state_(on_device, 3)
assert torch.equal(on_device.cpu(), state)
image, grid = torch.rand(1, 1, 4, 4), torch.rand(1, 2, 3, 2)
sampled = ops._grid_sampler_2d_cpu_fallback(image.to("sim"), grid.to("sim"), 0, 0, False)
assert torch.equal(sampled.cpu(), ops._grid_sampler_2d_cpu_fallback(image, grid, 0, 0, False))
given = (torch.ones(1, 1, 2, 3), image, grid)
wanted = ops._grid_sampler_2d_cpu_fallback_backward(*given, 0, 0, False)
found = ops._grid_sampler_2d_cpu_fallback_backward(*(tensor.to("sim") for tensor in given), 0, 0, False)
assert all(torch.equal(result.cpu(), reference) for result, reference in zip(found, wanted))
out = torch.empty(0, device="sim")
assert torch.ops.aten.range.out_(0, 4, out=out).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
""",
        env={"OUTBOARD_FALLBACK": "silent"},
    )


def test_what_only_the_cpu_can_hold_is_refused(run_python) -> None:
    run_python(
        CALLS
        + """
for call in (lambda: ops.fbgemm_pack_gemm_matrix_fp16(d), lambda: ops.fbgemm_pack_quantized_matrix(d.char())):
    with pytest.raises(NotImplementedError, match="FBGEMM's packed weights exist only on the CPU"):
        call()
net = torch.nn.GRU(3, 4, device="sim")
packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(2, 2, 3, device="sim"), [2, 2])
with pytest.raises(ValueError, match="batch_sizes of packed sequences must be on the CPU"):
    torch.gru(packed.data, packed.batch_sizes.to("sim"), torch.zeros(1, 2, 4, device="sim"), net._flat_weights,
              True, 1, 0.0, True, False)
a, w = torch.ones(32, 64, device="sim").bfloat16(), torch.zeros(8, 4, 32, 4, dtype=torch.int32, device="sim")
for _ in range(2):
    with pytest.raises(NotImplementedError, match="_weight_int4pack_mm has no kernel for 'sim', and torch has no"):
        ops._weight_int4pack_mm(a, w, 32, torch.ones(2, 64, 2, device="sim").bfloat16())
torch.sim.synchronize()
with pytest.raises(RuntimeError, match="a cell's workspace must have"):
    ops._thnn_fused_gru_cell_backward(d, d, True)
"""
    )
