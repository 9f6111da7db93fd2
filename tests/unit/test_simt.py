# SPDX-License-Identifier: BSD-3-Clause
"""Kernels that the generator 'simt' makes in the host's C++ give what the CPU's operators give.

They are compiled so that undefined behaviour and a place outside an array of the kernel's own end the process.
"""

from __future__ import annotations

import pytest

from torch_outboard.testing.plugin import RunPython

# `check` compares a compiled function with the CPU's eager one.
BEGIN = """
import copy, os, re, sys, tempfile
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
import torch, torch_outboard
import torch.nn.functional as F
from torch._inductor import config
from torch._inductor.utils import run_and_get_code
from torch.utils._pytree import tree_leaves
from torch_outboard._discovery import find_driver
from torch_outboard.compile.simt import runtime

config.compile_threads = 1
runtime.FLAGS = (*runtime.FLAGS, "-fsanitize=undefined,float-cast-overflow", "-fsanitize-undefined-trap-on-error")

class Simt(find_driver("sim")):
    code_generator = "host_cpp"

torch_outboard.attach(Simt)
torch.manual_seed(5)
r = torch.randn

def check(function, *arguments, kernels=None, tolerance=1e-5, dynamic=None):
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    ours = [one.to("sim") if isinstance(one, torch.Tensor) else one for one in arguments]
    got, (code, *_) = run_and_get_code(compiled, *ours)
    want = function(*arguments)
    for left, right in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(left.cpu(), right, atol=tolerance, rtol=tolerance, equal_nan=True)
    for left, right in zip(ours, arguments, strict=True):
        if isinstance(right, torch.Tensor):
            torch.testing.assert_close(left.cpu(), right, atol=tolerance, rtol=tolerance, equal_nan=True)
    made = len(re.findall(r"^simt\\w* = simt_kernel", code, re.MULTILINE))
    assert made > 0 if kernels is None else made == kernels, (made, code)
    return code
"""


def test_pointwise(run_python: RunPython) -> None:
    run_python(
        BEGIN
        + """
check(lambda x, y: F.gelu(x) * y + 1, r(64, 100), r(64, 100), kernels=1)
check(lambda x, y: (x + y.t(), x[:, ::3] * 2, x.t().contiguous(), x.expand(3, 5, 7)), r(5, 7), r(7, 5))
check(lambda x, y: torch.where(x > y, x.exp(), y.sin()), r(5, 1, 6), r(4, 1))
check(lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.frac(), x.sign(), x.sigmoid(), x.erfinv()), r(99))
check(lambda x: torch.frexp(x), r(50))
check(lambda x: (x.isnan(), x.isinf(), x.signbit(), x.maximum(x.flip(0)), x.clamp(-1, 1), x.nan_to_num()),
      torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.0, -3.0]))
check(lambda x, y: x.copy_(y).add_(1), r(6), r(6))
edges = torch.tensor([-(2**63), 2**63 - 1, -1, 0, 1, 7])
check(lambda x, y: (x + y, x * y, -x, x.abs(), x << 3, x >> 2, x & y, ~x, x // 3, x % 5), edges, edges.flip(0))
for dtype in (torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float64):
    x, y = torch.randint(0, 2, (7, 9)).to(dtype), torch.randint(0, 2, (7, 9)).to(dtype)
    check(lambda x, y: (x + y, x * y, x == y, x.to(torch.float32) / 3, x.to(torch.int16), torch.maximum(x, y)), x, y)
for dtype in (torch.float16, torch.bfloat16):
    x, y = r(7, 9).to(dtype), r(9).to(dtype)
    check(lambda x, y: (x * 2 + y, x.exp(), x.float() + 1, x > y, x.to(torch.int32)), x, y, tolerance=1e-2)
check(lambda x: (x.view(torch.int32) + 1, x.double().view(torch.int64) ^ 3, x.half().view(torch.int16) + 1), r(4, 6))
check(lambda x: (F.pad(x, (1, 2)), torch.cat([x, x * 2], 1), torch.stack([x, x + 1]), x.roll(2, 1)), r(4, 5))
check(lambda x: (x * 2, torch.cat([x, x])), torch.empty(0, 4), kernels=0)
check(lambda x: x * 3, torch.tensor(2.0))
"""
    )


def test_reductions(run_python: RunPython) -> None:
    run_python(
        BEGIN
        + """
for shape in ((3, 5), (33, 70), (5, 16), (7, 129), (1, 20000)):
    x = r(shape)
    check(lambda x: (x.sum(1), x.amax(1), x.amin(0), x.argmax(1), x.argmin(0), x.any(1), x.all(0)), x, tolerance=1e-4)
    check(lambda x: (x.var(1), x.std(0, correction=0), torch.var_mean(x, 1)), x if shape[0] > 1 else r(2, 20000))
    check(lambda x: (x.softmax(-1), x.log_softmax(0), x.logsumexp(1)), x)
    check(lambda x: (x.sum(), x.mean(), x.double().sum(), x.max(), x.argmax()), x, tolerance=1e-3)
check(lambda x: (x * 1.01).prod(1), torch.rand(4, 50) + 0.5)
check(lambda x: (x.sum(1), x.prod(1), x.amax(1), x.any(1), x.argmin(1)), torch.randint(-5, 5, (9, 40)))
check(lambda x: (x.sum(), x.sum(0, dtype=torch.int32), x.amax(1), x.all()), torch.randint(0, 2, (9, 40)).bool())
check(lambda x: (x.half().sum(1), x.bfloat16().amax(1)), r(9, 40), tolerance=1e-2)
check(lambda x, w, b: F.layer_norm(x, (70,), w, b), r(33, 70), r(70), r(70))
check(lambda x, w: F.batch_norm(x, None, None, w, training=True), r(8, 3, 6, 6), r(3))
nan = float("nan")
x = torch.tensor([[1.0, nan, 3.0, nan], [2.0, 2.0, -1.0, 2.0], [-float("inf")] * 4])
x = x.repeat(1, 9)  # several lanes
check(lambda x: (x.argmax(1), x.argmin(1), x.amax(1), x.amin(1), x.max(1), x.min(1), x.sum(1)), x)
check(lambda x: (x.argmax(1), x.argmin(1)), torch.tensor([[3, 3, -2, -2] * 10, [2**63 - 1, -(2**63)] * 20]))
"""
    )


def test_scans_sorts_indices(run_python: RunPython) -> None:
    run_python(
        BEGIN
        + """
check(lambda x: (x.cumsum(1), x.cumprod(0), x.logcumsumexp(1), x.cummax(1), x.cummin(0)), r(9, 30))
check(lambda x: x.cumsum(0), torch.randint(-9, 9, (20000,)))
check(lambda x: x.sort(1), r(9, 70))
check(lambda x: torch.sort(x, stable=True, dim=0, descending=True), torch.randint(0, 4, (40, 3)))
nan = float("nan")
x = torch.tensor([[1, nan, -1, nan, 3, 0.0]])
check(lambda x: (x.sort(1)[1], torch.sort(x, stable=True, dim=1, descending=True)[1]), x)
check(lambda x, i: (x[i], x[:, i], x.index_select(0, i), F.embedding(i, x)), r(30, 20), torch.tensor([3, 1, 0]))
check(lambda x, i: x[i], r(30, 20), torch.tensor([3, -1, 0]))
check(lambda x, i, s: x.scatter_add(0, i, s), torch.zeros(5, 4), torch.tensor([[0, 1, 2, 0], [0, 0, 0, 0]]), r(2, 4))
check(lambda x, b: (torch.bucketize(x, b), torch.bucketize(x, b, right=True, out_int32=True), torch.searchsorted(b, x)),
      torch.tensor([nan, -5, -1.0, 0.3, 1.0, 5.0]), torch.linspace(-1, 1, 7))
check(lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 1, 1)), r(2, 3, 8, 8))
check(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), r(2, 3, 8, 8))
compiled = torch.compile(lambda x, i: x[i])
try:
    compiled(r(5).to("sim"), torch.tensor([7]).to("sim"))
    torch.sim.synchronize()
except RuntimeError as error:
    assert "index out of bounds" in str(error), error
else:
    raise AssertionError("an index was not checked")
"""
    )


def test_random_numbers(run_python: RunPython) -> None:
    run_python(
        BEGIN
        + """
n = 200_000
with torch.device("sim"):
    draw = torch.compile(
        lambda: (torch.rand(n), torch.randn(n), torch.randint(-3, 9, (n,)), F.dropout(torch.ones(n), 0.3))
    )
    torch.manual_seed(1)
    first = [one.cpu() for one in draw()]
    second = [one.cpu() for one in draw()]
    torch.manual_seed(1)
    again = [one.cpu() for one in draw()]
uniform, normal, drawn, dropped = first
assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
assert abs(uniform.mean() - 0.5) < 0.01 and abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
assert drawn.min() == -3 and drawn.max() == 8
assert abs((dropped == 0).float().mean() - 0.3) < 0.01 and torch.allclose(dropped.max(), torch.tensor(1 / 0.7))
"""
    )


def test_dynamic_shapes_share_their_kernels(run_python: RunPython) -> None:
    run_python(
        BEGIN
        + """
from torch._dynamo.utils import counters
def several(function, make):
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    for rows, columns in ((5, 7), (33, 70), (64, 129), (200, 3)):
        arguments = make(rows, columns)
        got = compiled(*[one.to("sim") for one in arguments])
        torch.testing.assert_close(got.cpu(), function(*arguments), atol=1e-4, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1, counters
several(lambda x, y: F.gelu(x) * y, lambda a, b: (r(a, b), r(a, b)))
several(lambda x, y: x + y.t(), lambda a, b: (r(a, b), r(b, a)))
several(lambda x: x.softmax(-1), lambda a, b: (r(a, b),))
several(lambda x, w: F.layer_norm(x, (x.shape[-1],), w), lambda a, b: (r(a, b), r(b)))
several(lambda x, y: torch.cat([x, y], 1).cumsum(1), lambda a, b: (r(a, b), r(a, b + 1)))
several(lambda x: x.mean(0) / x.shape[0] + 1 / (x.shape[0] + x.shape[1]), lambda a, b: (r(a, b),))
several(lambda x, i: x[i], lambda a, b: (r(a, b), torch.randint(0, a, (b,))))
several(lambda x: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"), lambda a, b: (r(a, b),))
"""
    )


def test_what_a_dialect_has_not_stays_an_operator(run_python: RunPython) -> None:
    run_python(
        BEGIN
        + """
code = check(lambda x: torch.special.airy_ai(x) + 1, r(9), kernels=1)
assert "torch.ops.aten.special_airy_ai.default(" in code, code
"""
    )


@pytest.mark.parametrize("training", [False, True])
def test_small_models(run_python: RunPython, training: bool) -> None:
    run_python(
        BEGIN
        + """
training = sys.argv[1] == "True"
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten())
for model, x in ((layer, r(2, 10, 32)), (conv, r(2, 3, 12, 12))):
    model.train(training)
    ours = copy.deepcopy(model).to("sim")
    want, got = model(x), torch.compile(ours, fullgraph=True)(x.to("sim"))
    torch.testing.assert_close(got.cpu(), want, atol=1e-4, rtol=1e-4)
    if training:
        want.square().mean().backward()
        got.square().mean().backward()
        for left, right in zip(ours.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(left.grad.cpu(), right.grad, atol=1e-3, rtol=1e-3)
""",
        str(training),
    )


OPENCL = """
import os, sys, tempfile
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
import torch, torch_outboard
import torch.nn.functional as F
from torch._inductor import config
from torch.utils._pytree import tree_leaves
from torch_outboard._discovery import find_driver

config.compile_threads = 1

class Simt(find_driver("opencl")):
    code_generator = "opencl_c"

if torch_outboard.attach(Simt).device_count() == 0:
    sys.exit(3)
"""


def test_in_opencl_c(run_python: RunPython) -> None:
    """The same text on a device of OpenCL; what checks indices is left to the operators, which say which is wrong."""
    answer = run_python(
        OPENCL
        + """
r = torch.randn
nan = float("nan")

def check(function, *arguments, dynamic=None):
    torch._dynamo.reset()
    got = torch.compile(function, fullgraph=True, dynamic=dynamic)(*(one.to("ocl") for one in arguments))
    want = function(*arguments)
    for left, right in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(left.cpu(), right, atol=1e-4, rtol=1e-4, equal_nan=True)

check(lambda x, y: (F.gelu(x) * y + 1, x.double().exp(), x > y), r(64, 100), r(100))
check(lambda x, y: (x * 2, y * 2, x.float() + 1, y.float() + 1), r(64, 100).half(), r(64, 100).bfloat16())
check(lambda x: (x.softmax(-1), x.var(0), x.argmax(1), x.sum(), x.cumsum(1), x.sort(1)), r(33, 70))
x = torch.tensor([[1, nan, -1, nan, 3, 0.0] * 8])
check(lambda x: (x.amax(1), x.argmin(1), torch.sort(x, stable=True, dim=1)[1]), x)
check(lambda x: (x.sum(), x.prod(1), x // 3, x % 5, x << 2), torch.randint(1, 9, (9, 40)))
check(lambda x, i: (x[i] * 2, x.index_add(0, i, x[:3])), r(9, 4), torch.tensor([1, 3, 1]))
check(lambda x, w: F.layer_norm(x, (x.shape[-1],), w), r(33, 70), r(70), dynamic=True)
try:
    torch.compile(lambda x, i: x[i] + 1)(r(5).to("ocl"), torch.tensor([7]).to("ocl")).cpu()
except IndexError as error:
    assert "index 7 is out of bounds" in str(error), error
else:
    raise AssertionError("an index was not checked")
""",
        status=None,
    )
    if answer.returncode == 3:
        pytest.skip("capability: a device of OpenCL")
    assert answer.returncode == 0, answer.stdout + answer.stderr
