# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of the generator 'simt', in the host's C++ and in OpenCL C, return the results of the CPU's operators.

The kernels in C++ are compiled so that undefined behaviour, or an index outside one of the kernel's arrays, ends the
process. Each case is a process, forked from one that has imported torch, whose import takes as long as a case.
"""

from __future__ import annotations

import pytest

from torch_outboard.testing.plugin import RunPython

# `check` compares a compiled function with the CPU's eager one, and returns the generated code.
BEGIN = """
import copy, os, re, sys, tempfile
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
import torch, torch_outboard
import torch.nn.functional as F
from torch._inductor import config
from torch._inductor.utils import run_and_get_code
from torch.utils._pytree import tree_leaves
from torch_outboard._discovery import find_driver

config.compile_threads = 1
torch.manual_seed(5)
r = torch.randn
nan, inf = float("nan"), float("inf")

def check(function, *arguments, kernels=None, tolerance=1e-5, dynamic=None):
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    ours = [value.to(NAME) if isinstance(value, torch.Tensor) else value for value in arguments]
    got, (code, *_) = run_and_get_code(compiled, *ours)
    want = function(*arguments)
    for left, right in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(left.cpu(), right, atol=tolerance, rtol=tolerance, equal_nan=True)
    for left, right in zip(ours, arguments, strict=True):
        if isinstance(right, torch.Tensor):
            torch.testing.assert_close(left.cpu(), right, atol=tolerance, rtol=tolerance, equal_nan=True)
    made = len(re.findall(r"^simt\\w* = (?:simt|device)_kernel", code, re.MULTILINE))
    assert made > 0 if kernels is None else made == kernels, (made, code)
    return code

def raises(kind, message, function, *arguments):
    torch._dynamo.reset()
    try:
        torch.compile(function)(*[tensor.to(NAME) for tensor in arguments])
        torch.get_device_module(NAME).synchronize()
    except kind as error:
        assert re.search(message, str(error)), error
    else:
        raise AssertionError("no error")
    torch.get_device_module(NAME).synchronize()
"""

HOST = """
from torch_outboard.compile.runtime import simt_kernel
sanitized = "-fsanitize=undefined,float-cast-overflow", "-fsanitize-undefined-trap-on-error"
simt_kernel.FLAGS = (*simt_kernel.FLAGS, *sanitized)
class Simt(find_driver("sim")):
    code_generator = "host_cpp"
torch_outboard.attach(Simt)
NAME = "sim"
"""

# 3: there is no device.
OPENCL = """
class Simt(find_driver("opencl")):
    code_generator = "opencl_c"
if torch_outboard.attach(Simt).device_count() == 0:
    os._exit(3)
NAME = "ocl"
"""

# A device whose memory the host doesn't reach: the driver answers with the generator by itself.
OPENCL_APART = """
if torch_outboard.attach("opencl", host_access=False).device_count() == 0:
    os._exit(3)
NAME = "ocl"
"""

SPECIAL = """
s = torch.special
x, n = torch.cat([r(200) * 4, torch.rand(200) * 20]), torch.randint(0, 5, (400,)).float()
check(lambda x: [f(x) for f in (s.bessel_j0, s.bessel_j1, s.bessel_y0, s.bessel_y1, s.i0, s.i0e, s.i1, s.i1e,
      s.modified_bessel_k0, s.modified_bessel_k1, s.spherical_bessel_j0, s.airy_ai, s.digamma, s.erfcx, s.ndtr, s.ndtri,
      s.log_ndtr, s.erfinv, torch.lgamma)] + [torch.polygamma(2, x), torch.mvlgamma(x.abs() + 3, 2)], x,
      kernels=1, tolerance=1e-4)
check(lambda x, n: [f(x, n) for f in (s.chebyshev_polynomial_t, s.shifted_chebyshev_polynomial_w,
      s.legendre_polynomial_p, s.hermite_polynomial_h, s.laguerre_polynomial_l)]
      + [f(n + 1.5, x.abs()) for f in (s.gammainc, s.gammaincc, s.zeta)],
      x.clamp(-3, 3), n, kernels=1, tolerance=1e-3)
check(lambda x: (s.bessel_j0(x), s.digamma(x), s.erfcx(x), s.gammainc(x.abs(), x.abs() + 1)), x.double())
"""

CASES = {
    "pointwise": """
x, y = r(64, 100), r(64, 100)
check(lambda x, y: F.gelu(x) * y + 1, x, y, kernels=1)
def several(x, y, z, column, line):
    return (x + y.t(), x[:, ::3] * 2, x.t().contiguous(), x.expand(3, 5, 7), torch.where(column > line, column.exp(),
            line.sin()), z.floor(), z.ceil(), z.round(), z.trunc(), z.frac(), z.sign(), z.sigmoid(), z.erfinv(),
            torch.frexp(z), F.pad(x, (1, 2)), torch.cat([x, x * 2], 1), torch.stack([x, x + 1]), x.roll(2, 1))
check(several, r(5, 7), r(7, 5), r(99), r(5, 1, 6), r(4, 1))
check(lambda x: (x.isnan(), x.isinf(), x.signbit(), x.maximum(x.flip(0)), x.clamp(-1, 1), x.nan_to_num()),
      torch.tensor([0.0, -0.0, nan, inf, -inf, 1.0, -3.0]))
check(lambda x, y: x.copy_(y).add_(1), r(6), r(6))
edges = torch.tensor([-(2**63), 2**63 - 1, -1, 0, 1, 7])
check(lambda x, y: (x + y, x * y, -x, x.abs(), x << 3, x >> 2, x & y, ~x, x // 3, x % 5), edges, edges.flip(0))
dtypes = (torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float64)
check(lambda *all: [(x + y, x * y, x == y, x.to(torch.float32) / 3, x.to(torch.int16), torch.maximum(x, y))
                    for x, y in zip(all[::2], all[1::2])],
      *(torch.randint(0, 2, (7, 9)).to(dtype) for dtype in dtypes for _ in range(2)))
check(lambda *all: [(x * 2 + y, x.exp(), x.float() + 1, x > y, x.to(torch.int32)) for x, y in zip(all[::2], all[1::2])],
      r(7, 9).half(), r(9).half(), r(7, 9).bfloat16(), r(9).bfloat16(), tolerance=1e-2)
check(lambda x: (x.view(torch.int32) + 1, x.double().view(torch.int64) ^ 3, x.half().view(torch.int16) + 1), r(4, 6))
check(lambda x: (x * 2, torch.cat([x, x])), torch.empty(0, 4), kernels=0)
check(lambda x: x * 3, torch.tensor(2.0))
""",
    "reductions": """
def several(x):
    return (x.sum(1), x.amax(1), x.amin(0), x.argmax(1), x.argmin(0), x.any(1), x.all(0), x.std(0, correction=0),
            torch.var_mean(x, 1), x.softmax(-1), x.log_softmax(0), x.logsumexp(1))
def whole(x):
    return x.sum(), x.mean(), x.double().sum(), x.max(), x.argmax()
shapes = ((3, 5), (33, 70), (5, 16), (7, 129))
check(lambda *all: [several(x) for x in all], *(r(shape) for shape in shapes), tolerance=1e-4)
check(lambda x, y: (whole(x), whole(y), y.var(1), y.softmax(-1)), r(7, 129), r(1, 20000), tolerance=1e-3)
check(lambda x: (x * 1.01).prod(1), torch.rand(4, 50) + 0.5)
check(lambda x, y: (x.sum(1), x.prod(1), x.amax(1), x.any(1), x.argmin(1), y.sum(), y.sum(0, dtype=torch.int32),
                    y.amax(1), y.all()), torch.randint(-5, 5, (9, 40)), torch.randint(0, 2, (9, 40)).bool())
check(lambda x: (x.half().sum(1), x.bfloat16().amax(1)), r(9, 40), tolerance=1e-2)
check(lambda x, w, b, y, v: (F.layer_norm(x, (70,), w, b), F.batch_norm(y, None, None, v, training=True)),
      r(33, 70), r(70), r(70), r(8, 3, 6, 6), r(3))
x = torch.tensor([[1.0, nan, 3.0, nan], [2.0, 2.0, -1.0, 2.0], [-inf] * 4])
x = x.repeat(1, 9)  # several lanes
check(lambda x, y: (x.argmax(1), x.argmin(1), x.amax(1), x.amin(1), x.max(1), x.min(1), x.sum(1), y.argmax(1),
                    y.argmin(1)), x, torch.tensor([[3, 3, -2, -2] * 10, [2**63 - 1, -(2**63)] * 20]))
""",
    "columns": """
def columns(x):
    scaled = x * 1.5
    return (scaled.sum(0), x.amax(0), x.argmin(0), torch.var_mean(x, 0), x.softmax(0), x.logsumexp(0) + x.sum(0),
            (x > 0).any(0), (x - x.mean(0)) / x.std(0, correction=0))
for width in (1, 5, 16, 63, 1100):
    code = check(columns, r(37, width), tolerance=1e-4)
    assert "ob_columns" in code or width == 1
check(columns, r(37, 70), tolerance=1e-4, dynamic=True)
check(lambda x: columns(x.t()), r(70, 37), tolerance=1e-4)
check(lambda x, y: (x.add_(1).sum(0), y.sum((0, 1)), y.amax(1), y.sum(0, keepdim=True) + y), r(20, 70), r(9, 8, 70))
check(lambda g, x, w: torch.ops.aten.native_layer_norm_backward(g, x, [70], x.mean(1, True), x.std(1, keepdim=True), w,
      w, [True] * 3), r(40, 70), r(40, 70), r(70), tolerance=1e-3)
check(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
      r(6, 20, 5, 5).to(memory_format=torch.channels_last), r(20), r(20), tolerance=1e-4)
check(lambda x: (x.half().sum(0), x.bfloat16().amax(0)), r(40, 130), tolerance=1e-2)
check(lambda x: (x.sum(0), x.prod(0), x.amin(0), x.argmax(0)), torch.randint(-5, 5, (9, 40)))
check(lambda x: x.sum(0), torch.full((40, 70), nan))
""",
    "scans_and_sorts": """
check(lambda x, y: (x.cumsum(1), x.cumprod(0), x.logcumsumexp(1), x.cummax(1), x.cummin(0), y.cumsum(0)),
      r(9, 30), torch.randint(-9, 9, (20000,)))
x = torch.tensor([[1, nan, -1, nan, 3, 0.0]])
check(lambda x, y, z: (x.sort(1), torch.sort(y, stable=True, dim=0, descending=True), z.sort(1)[1],
                       torch.sort(z, stable=True, dim=1, descending=True)[1]),
      r(9, 70), torch.randint(0, 4, (40, 3)), x)
check(lambda x, b: (torch.bucketize(x, b), torch.bucketize(x, b, right=True, out_int32=True), torch.searchsorted(b, x)),
      torch.tensor([nan, -5, -1.0, 0.3, 1.0, 5.0]), torch.linspace(-1, 1, 7))
""",
    "indices": """
INDICES
raises(IndexError, "aten::index: index -9 is out of bounds for .* size 5", lambda x, i: x[i] + 1, r(5), -2 - bad)
raises(IndexError, "aten::gather: index 7 is out of bounds for .* size 5", lambda x, i: x.gather(0, i), r(5), bad)
raises(IndexError, "aten::embedding: index -1 is out", lambda x, i: F.embedding(i, x) * 2, r(5, 3), bad - 2)
raises(IndexError, "aten::scatter_add: index 7 is out", lambda x, i: x.scatter_add(0, i, x), r(2), bad)
""",
    "random_numbers": """
n = 200_000
with torch.device(NAME):
    draw = torch.compile(
        lambda: (torch.rand(n), torch.randn(n), torch.randint(-3, 9, (n,)), F.dropout(torch.ones(n), 0.3))
    )
    torch.manual_seed(1)
    first = [tensor.cpu() for tensor in draw()]
    second = [tensor.cpu() for tensor in draw()]
    torch.manual_seed(1)
    again = [tensor.cpu() for tensor in draw()]
uniform, normal, drawn, dropped = first
assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
assert abs(uniform.mean() - 0.5) < 0.01 and abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
assert drawn.min() == -3 and drawn.max() == 8
assert abs((dropped == 0).float().mean() - 0.3) < 0.01 and torch.allclose(dropped.max(), torch.tensor(1 / 0.7))
""",
    "dynamic_shapes_share_their_kernels": """
from torch._dynamo.utils import counters
def several(function, make):
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    for rows, columns in ((5, 7), (33, 70), (64, 129), (200, 3)):
        arguments = make(rows, columns)
        got = compiled(*[tensor.to(NAME) for tensor in arguments])
        for left, right in zip(tree_leaves(got), tree_leaves(function(*arguments)), strict=True):
            torch.testing.assert_close(left.cpu(), right, atol=1e-4, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1, counters
several(lambda x, y, z, w: (F.gelu(x) * y, x + z.t(), x.softmax(-1), F.layer_norm(x, (x.shape[-1],), w),
                            x.mean(0) / x.shape[0] + 1 / (x.shape[0] + x.shape[1])),
        lambda a, b: (r(a, b), r(a, b), r(b, a), r(b)))
several(lambda x, y, i: (torch.cat([x, y], 1).cumsum(1), x[i]),
        lambda a, b: (r(a, b), r(a, b + 1), torch.randint(0, a, (b,))))
several(lambda x: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"), lambda a, b: (r(a, b),))
""",
    "small_models": """
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
conv = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten())
for model, x, training in ((layer, r(2, 10, 32), True), (conv, r(2, 3, 12, 12), True), (conv, r(2, 3, 12, 12), False)):
    model.train(training)
    ours = copy.deepcopy(model).to(NAME)
    want, got = model(x), torch.compile(ours, fullgraph=True)(x.to(NAME))
    torch.testing.assert_close(got.cpu(), want, atol=1e-4, rtol=1e-4)
    if training:
        want.square().mean().backward()
        got.square().mean().backward()
        for left, right in zip(ours.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(left.grad.cpu(), right.grad, atol=1e-3, rtol=1e-3)
        model.zero_grad()
""",
    "what_a_dialect_has_not_stays_an_operator": """
code = check(lambda x: x.to(torch.float8_e8m0fnu).to(torch.float32) * 2, r(9))
assert "torch.ops.prims.convert_element_type.default(" in code, code
""",
    "special_functions": SPECIAL,
}

# The same text on a device of OpenCL.
CASES_IN_OPENCL = {
    "values": """
check(lambda x, y: (F.gelu(x) * y + 1, x.double().exp(), x > y), r(64, 100), r(100))
check(lambda x, y: (x * 2, y * 2, x.float() + 1, y.float() + 1), r(64, 100).half(), r(64, 100).bfloat16())
x = torch.tensor([[1, nan, -1, nan, 3, 0.0] * 8])
check(lambda x, y, z: (x.softmax(-1), x.var(0), x.argmax(1), x.sum(), x.cumsum(1), x.sort(1), y.amax(1), y.argmin(1),
                       torch.sort(y, stable=True, dim=1)[1], z.sum(), z.prod(1), z // 3, z % 5, z << 2),
      r(33, 70), x, torch.randint(1, 9, (9, 40)), tolerance=1e-4)
check(lambda x, w: F.layer_norm(x, (x.shape[-1],), w), r(33, 70), r(70), dynamic=True)
raises(IndexError, "aten::gather: index 5 is out", lambda x, i: x.gather(0, i) + 1, r(5), torch.tensor([0, 5]))
""",
}

CASES_APART = {
    "indices": """
INDICES
module = torch.get_device_module(NAME)
device = torch.device(NAME, 0)
x, good, bad = (tensor.to(NAME) for tensor in (r(5), torch.tensor([4, 0, -5]), torch.tensor([4, 7, 5])))
def gathered(x, i):
    return x[i] * 2
torch._dynamo.reset()
compiled = torch.compile(gathered)
side, other = torch.Stream(device), torch.Stream(device)
compiled(x, bad)  # compiles
raises(IndexError, "index [75] is", lambda x: x + 1, torch.ones(1))
for index in (good, bad):
    with module.stream(side):
        first = compiled(x, index)
    other.synchronize()
    try:
        side.synchronize()
    except IndexError as error:
        assert index is bad and re.search("aten::index: index [75] is out of .* of size 5", str(error)), error
        assert first.cpu()[0] == x.cpu()[4] * 2, "the others go on"
    else:
        assert index is good
        torch.testing.assert_close(first.cpu(), gathered(x.cpu(), index.cpu()))
# A million wrong ones: one of them is told.
raises(IndexError, "index [567] is out of bounds", lambda x, i: x[i], x.cpu(), torch.arange(1 << 20) % 10 - 2)
# A graph that is replayed.
graph, index = module.Graph(), good.clone()
with module.graph(graph):
    out = compiled(x, index)
for given, stream in ((good, side), (bad, side), (bad, other), (good, other)):
    index.copy_(given)
    module.synchronize()
    with module.stream(stream):
        graph.replay()
    try:
        stream.synchronize()
    except IndexError as error:
        assert given is bad and "index 7 is" in str(error) or "index 5 is" in str(error), error
    else:
        assert given is good
module.synchronize()
# As the C++ wrapper launches it.
with config.patch(cpp_wrapper=True):
    raises(IndexError, "aten::embedding: index 30 is out of bounds for a dimension of size 30",
           lambda w, i: F.embedding(i, w) + 1, r(30, 4), torch.tensor([2, 30]))
""",
}

# In both languages.
INDICES = """
x, y = r(30, 20), r(2, 3, 8, 8)
pooled, places = F.max_pool2d(y, 2, return_indices=True)
row, rows, many = torch.tensor([3, 1, 0]), torch.tensor([[0, 1, 2, 0], [3, 4, 0, 1]]), torch.randint(0, 5, (300,))
def several(x, i, z, j, s, y, pooled, places):
    return (x[i], x[:, i], x.index_select(0, i), F.embedding(i, x), x[i[1:] - 4] * 2, x.index_add(0, i, x[:3]),
            z.scatter_add(0, j, s), z.scatter(0, j, s), z.gather(0, j), z.take(j), F.max_pool2d(y, 2),
            torch.ops.aten.embedding_dense_backward(x[:3], i // 2, 7, -1, False), F.avg_pool2d(y, 3, 1, 1),
            torch.ops.aten.max_pool2d_with_indices_backward(pooled, y, [2, 2], [2, 2], [0, 0], [1, 1], False, places),
            F.interpolate(y, scale_factor=2.0, mode="bilinear"))
check(several, x, row, torch.zeros(5, 4), rows, r(2, 4), y, pooled, places)
# Small integers, whose sums halves hold exactly.
check(lambda i, *all: [x.index_put((i,), s, accumulate=True) for x, s in zip(all[::2], all[1::2])], many,
      *(tensor.to(dtype) for dtype in (torch.float16, torch.bfloat16)
        for tensor in (torch.zeros(5, 3), torch.randint(0, 2, (300, 3)))))
check(lambda x, i: x[i].cos(), r(6, 5), torch.tensor([2, -1, 0]), dynamic=True)
bad = torch.tensor([1, 7])
raises(IndexError, "aten::index: index 7 is out of bounds for a dimension of size 5", lambda x, i: x[i] + 1, r(5), bad)
raises(RuntimeError, "all is (well|true)", lambda x: (torch._assert_async(x.sum() > 9, "all is well"), x + 1), r(3))
"""


def _programs() -> dict[str, str]:
    host = {name: HOST + text for name, text in CASES.items()}
    opencl = {f"opencl-{name}": OPENCL + text for name, text in CASES_IN_OPENCL.items()}
    apart = {f"opencl-apart-{name}": OPENCL_APART + text for name, text in CASES_APART.items()}
    return {name: BEGIN + text.replace("INDICES\n", INDICES) for name, text in {**host, **opencl, **apart}.items()}


@pytest.mark.database
@pytest.mark.parametrize("case", _programs())
def test_values(run_compiler: RunPython, case: str) -> None:
    answer = run_compiler(_programs()[case], status=None)
    if answer.returncode == 3:
        pytest.skip("capability: a device of OpenCL")
    assert answer.returncode == 0, f"status {answer.returncode}\n{answer.stdout}\n{answer.stderr}"
