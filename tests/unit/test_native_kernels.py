# SPDX-License-Identifier: BSD-3-Clause
"""A driver's kernel for one form of an operator serves the others: in Python, and in C with the example."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import torch_outboard

ROOT = Path(__file__).resolve().parent.parent.parent

START = """
import pytest, torch, torch_outboard
from torch_outboard import register_kernel
torch_outboard.attach("sim")
seen = []
def providers(op):
    return {row.provider: row.calls for row in torch_outboard.coverage() if row.op == op}
x, y = torch.arange(6.0).view(2, 3), torch.ones(3) / 3
dx, dy = x.to("sim"), y.to("sim")
def check(result, want):
    assert result.dtype == want.dtype and torch.equal(result.cpu(), want), (result, want)
"""

FUNCTIONAL = """
def kernel(a, b, *, alpha=1):
    seen.append("functional")
    return a.sub(torch.as_tensor(b).neg(), alpha=alpha)
register_kernel("aten::add.Tensor", kernel)
"""
OUT = """
def kernel(a, b, *, alpha=1, out):
    seen.append("out")
    return torch.sub(a, torch.as_tensor(b).neg(), alpha=alpha, out=out)
register_kernel("aten::add.out", kernel)
"""
IN_PLACE = """
def kernel(a, b, *, alpha=1):
    seen.append("in place")
    a.sub_(torch.as_tensor(b).neg(), alpha=alpha)
register_kernel("aten::add_.Tensor", kernel)
"""


@pytest.mark.parametrize("kernel", [FUNCTIONAL, OUT, IN_PLACE], ids=["functional", "out", "in place"])
def test_a_kernel_for_one_form_serves_all_three(run_python, kernel):
    run_python(
        START
        + kernel
        + """
check(dx + dy, x + y)
check(torch.add(dx, 2, alpha=3), torch.add(x, 2, alpha=3))
strided = torch.empty(3, 2, device="sim").t()
assert torch.add(dx, dy, out=strided) is strided
check(strided, x + y)
check(torch.add(dx, dy, out=torch.empty(0, device="sim")), x + y)
check(dx.clone().add_(dy), x.clone().add_(y))
changed = dx.clone().t()
assert changed.add_(changed) is changed
check(changed, x.t() + x.t())
assert len(seen) == 6, seen
assert providers("aten::add.Tensor") == {"native": 2} and providers("aten::add_.Tensor") == {"native": 2}
assert providers("aten::add.out") == {"native": 2}
"""
    )


@pytest.mark.parametrize("kernel", [FUNCTIONAL, OUT, IN_PLACE], ids=["functional", "out", "in place"])
def test_other_shapes_and_types_are_converted_as_torch_does(run_python, kernel):
    run_python(
        START
        + kernel
        + """
integers, half = torch.arange(3), torch.arange(3.0).half()
check(integers.to("sim") + 0.5, integers + 0.5)
check(half.to("sim").add_(dy), half.clone().add_(y))
check(torch.add(dy, dy, out=torch.empty(3, dtype=torch.float64, device="sim")), (y + y).double())
check(dy + dx, y + x)
with pytest.raises(RuntimeError, match="can't be cast"):
    integers.to("sim").add_(0.5)
    torch.accelerator.synchronize()
with pytest.raises(RuntimeError, match="can't be cast"):
    torch.add(dx, dx, out=torch.empty(2, 3, dtype=torch.int64, device="sim"))
    torch.accelerator.synchronize()
with pytest.raises(RuntimeError):
    dy.clone().add_(dx)
    torch.accelerator.synchronize()
with pytest.raises(RuntimeError):
    torch.zeros(1, device="sim").expand(3).add_(1)
    torch.accelerator.synchronize()
"""
    )


def test_the_called_form_comes_first_then_out_then_functional(run_python):
    run_python(
        START
        + FUNCTIONAL
        + """
dx.clone().add_(dy)
assert seen == ["functional"]
"""
        + OUT
        + """
dx.clone().add_(dy), dx + dy
assert seen == ["functional", "out", "functional"]
"""
        + IN_PLACE
        + """
dx.clone().add_(dy), dx + dy, torch.add(dx, dy, out=dx.clone())
assert seen[3:] == ["in place", "functional", "out"]
"""
    )


def test_an_argument_in_the_memory_that_is_written_is_read_whole(run_python):
    """A product in place of one of its factors: the kernel writes memory that it still has to read."""
    run_python(
        START
        + """
def addmm(self, a, b, *, beta=1, alpha=1, out):
    seen.append(out.data_ptr())
    for i in range(len(a)):
        out[i] = beta * self[i] + alpha * (a[i][:, None] * b).sum(0)
register_kernel("aten::addmm.out", addmm)
m, n = torch.randn(3, 3), torch.randn(3, 3)
dm = m.to("sim")
dm.addmm_(n.to("sim"), dm)
torch.testing.assert_close(dm.cpu(), m + n @ m)
assert seen.pop() != dm.data_ptr()
dm.addmm_(n.to("sim"), n.to("sim"))
assert seen.pop() == dm.data_ptr()
"""
    )


def test_declined_sparse_and_failing_calls(run_python):
    run_python(
        START
        + """
def relu_(x):
    seen.append(x.layout)
    if x.dtype == torch.float64:
        return NotImplemented
    if x.numel() == 1:
        raise LookupError("one is too few")
    x.clamp_(min=0)
register_kernel("aten::relu_", relu_)
check((-dx).relu(), (-x).relu())
check(dx.double().neg().relu(), x.double().neg().relu())
assert len(seen) == 2 and providers("aten::relu") == {"native": 1, "host": 1}
with pytest.raises(LookupError, match="one is too few"):
    dx[:1, :1].relu()
torch.sparse.check_sparse_tensor_invariants.disable()
sparse = torch.sparse_coo_tensor([[0, 2]], [-1.0, 2.0], (3,)).to("sim")
assert sparse.relu().to_dense().tolist() == [0, 0, 2]
assert torch.sparse_coo not in seen
"""
    )


def test_an_unknown_operator_is_reported_with_the_overloads_that_there_are(run_python):
    run_python(
        START
        + """
with pytest.raises(ValueError, match="'aten::add': the overloads of aten::add are .*aten::add.Tensor, aten::add.out"):
    register_kernel("aten::add", print)
with pytest.raises(ValueError, match="write it as namespace::name.overload"):
    register_kernel("aten::no_such", print)
"""
    )


# ---- In C
# ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compile_c(tmp_path_factory):
    """Return a function that compiles a C source that exports kernel_register."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    include = Path(torch_outboard.__file__).parent / "include"
    if not include.is_dir():
        include = ROOT / "include"

    def compile_source(source: str) -> Path:
        folder = tmp_path_factory.mktemp("kernels")
        (folder / "kernels.c").write_text(source)
        command = [compiler, "-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{include}", "kernels.c"]
        subprocess.run([*command, "-o", "kernels.so"], cwd=folder, check=True)
        return folder / "kernels.so"

    return compile_source


ATTACH = """
import ctypes, pytest, torch, torch_outboard
from torch_outboard.drivers.{module} import {driver}
library = ctypes.CDLL({path!r})
class WithKernels({driver}):
    kernel_register = ctypes.cast(library.kernel_register, ctypes.c_void_p).value
def providers(op):
    return {{row.provider: row.calls for row in torch_outboard.coverage() if row.op == op}}
def check(result, want):
    torch.testing.assert_close(result.cpu(), want, equal_nan=True)
    assert result.dtype == want.dtype
"""


def attach(path: Path, driver: str = "null") -> str:
    """Return code that attaches a driver with the kernels of a library; the null driver's memory is the host's."""
    start = ATTACH.format(module=driver, driver={"null": "NullDriver", "sim": "SimDriver"}[driver], path=str(path))
    return start + f"device = '{driver}'\nmodule = torch_outboard.attach(WithKernels)\n"


def test_the_worked_example(run_python, compile_c):
    source = (ROOT / "examples" / "c_kernels" / "kernels.c").read_text(encoding="utf-8")
    run_python(
        attach(compile_c(source))
        + """
torch.manual_seed(0)
x, y = torch.randn(4, 1, 6), torch.randn(5, 6)
dx, dy = x.to(device), y.to(device)
check(dx + dy, x + y)
check(torch.add(dx, dy, alpha=0.5), torch.add(x, y, alpha=0.5))
check(dx + 2, x + 2)
check(2.5 + dx, x + 2.5)
check(torch.add(torch.tensor(3.0), dx), x + 3)
check(dy.t() + dy[:, :5].contiguous()[:1], y.t() + y[:1, :5])
check(torch.add(dx, dy, out=torch.empty(6, 5, 4, device=device).permute(2, 1, 0)), x + y)
check(dy.clone()[:, ::2].add_(dy[:, 1::2]), y[:, ::2] + y[:, 1::2])
check(dx.relu(), x.relu())
check(dy.clone().t().relu_(), y.t().relu())
check(torch.tensor([1.0, float("nan")]).to(device).relu(), torch.tensor([1.0, float("nan")]))
check(dy @ dy.t(), y @ y.t())
check(dy[::2].t().mm(dy[::2]), y[::2].t().mm(y[::2]))
check(torch.empty(0, 6, device=device) @ dy.t(), torch.empty(0, 5))
check(torch.empty(3, 0, device=device) @ torch.empty(0, 2, device=device), torch.zeros(3, 2))
for op in ("aten::add.Tensor", "aten::add_.Tensor", "aten::add.out", "aten::relu", "aten::relu_", "aten::mm"):
    assert list(providers(op)) == ["native"], (op, providers(op))

with pytest.warns(UserWarning):
    check(dx.double() + dy.double(), x.double() + y.double())
assert providers("aten::add.Tensor")["fallback"] == 1

model = torch.nn.Sequential(torch.nn.Linear(6, 8, bias=False), torch.nn.ReLU(), torch.nn.Linear(8, 2, bias=False))
model(y).sum().backward()
wanted = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
model.to(device)(dy).sum().backward()
for parameter, want in zip(model.parameters(), wanted):
    check(parameter.grad, want)
""",
    )


# Counts how often it is asked, and takes only float32.
COUNTING = """
#include <torch_outboard/driver.h>
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
int asked = 0;
static ob_status fill_with_seven(void* user, const ob_kernel_call* call) {
  ++asked;
  if (call->outputs[0].dtype != OB_FLOAT32) return OB_UNIMPLEMENTED;
  for (int64_t i = 0; i < call->outputs[0].sizes[0]; ++i) ((float*)call->outputs[0].data)[i] = 7;
  return OB_OK;
}
OB_EXPORT ob_status kernel_register(void* self, const ob_registrar* registrar) {
  return registrar->add(registrar->context, "aten::OPERATOR", fill_with_seven, 0);
}
"""


def test_a_declined_call_is_not_asked_about_again(run_python, compile_c):
    run_python(
        attach(compile_c(COUNTING.replace("OPERATOR", "cos")))
        + """
asked = ctypes.c_int.in_dll(library, "asked")
x = torch.zeros(3, device=device)
assert x.cos().tolist() == [7] * 3 and x.cos().tolist() == [7] * 3 and asked.value == 2
double = x.double()
for _ in range(4):
    assert double.cos().tolist() == [1] * 3
assert asked.value == 3
assert double[:2].cos().tolist() == [1] * 2 and asked.value == 4
for size in range(1100):  # more than it remembers
    torch.zeros(size, dtype=torch.float64, device=device).cos()
assert double.cos().tolist() == [1] * 3
assert providers("aten::cos")["native"] == 2
""",
        env={"OUTBOARD_FALLBACK": "silent"},
    )


def test_a_graph_takes_only_calls_that_the_kernel_is_known_to_take(run_python, compile_c):
    """Nothing may run while the core records a graph, so a kernel cannot be asked there."""
    run_python(
        attach(compile_c(COUNTING.replace("OPERATOR", "cos")))
        + """
from torch_outboard import CaptureError
asked = ctypes.c_int.in_dll(library, "asked")
x = torch.zeros(3, device=device)
x.cos()
graph = module.Graph()
with module.graph(graph):
    y = x.cos()
assert asked.value == 1
graph.replay()
assert y.tolist() == [7] * 3 and asked.value == 2
with pytest.raises(CaptureError, match="cos"), module.graph(module.Graph()):
    x[:2].cos()
assert asked.value == 2
""",
        env={"OUTBOARD_FALLBACK": "silent"},
    )


def test_sparse_tensors_pass_by_a_kernel_in_c(run_python, compile_c):
    run_python(
        attach(compile_c(COUNTING.replace("OPERATOR", "add.Tensor")))
        + """
torch.sparse.check_sparse_tensor_invariants.disable()
sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (3,)).to(device)
assert (sparse + sparse).cpu().to_dense().tolist() == [2, 0, 4]
assert (torch.zeros(3, device=device) + 1).tolist() == [7] * 3
""",
        env={"OUTBOARD_FALLBACK": "silent"},
    )


def test_a_registration_that_fails_says_which_operator_and_its_overloads(run_python, compile_c):
    code = attach(compile_c(COUNTING.replace("OPERATOR", "add"))).replace(
        "module = torch_outboard.attach", "refused = "
    )
    run_python(
        code
        + """
with pytest.raises(torch_outboard.RegistrationError, match="'aten::add': the overloads of aten::add are .*add.Tensor"):
    torch_outboard.attach(refused)
"""
    )


CELLS = (
    START
    + """
torch.manual_seed(0)
host = {kind: getattr(torch.nn, kind)(3, 4) for kind in ("LSTM", "GRU")}
ours = {kind: getattr(torch.nn, kind)(3, 4) for kind in ("LSTM", "GRU")}
for kind, model in ours.items():
    model.load_state_dict(host[kind].state_dict())
    model.to("sim")
x = torch.randn(5, 2, 3)
def agree(kind):
    torch_outboard.reset_coverage()
    gradients = []
    for model, values in ((host[kind], x), (ours[kind], x.to("sim"))):
        model.zero_grad()
        values = values.clone().requires_grad_()
        y, hidden = model(values)
        (y.square().sum() + sum(part.sum() for part in (hidden if kind == "LSTM" else [hidden]))).backward()
        gradients.append([y, values.grad, *(parameter.grad for parameter in model.parameters())])
    for got, want in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(got.cpu(), want)
    return {row.op for row in torch_outboard.coverage()}
"""
)


def test_a_recurrent_layer_is_one_call_where_the_driver_brings_no_operators_for_it(run_python):
    run_python(
        CELLS
        + """
elementwise = {"aten::mul.Tensor", "aten::sigmoid", "aten::sigmoid_", "aten::tanh", "aten::tanh_"}
for kind in host:
    names = {"outboard::recurrent", "outboard::recurrent_backward"}
    seen = agree(kind)
    assert names <= seen and not (elementwise - {"aten::mul.Tensor"}) & seen, seen
register_kernel("aten::mul.Tensor", lambda a, b: torch.addcmul(torch.zeros_like(a), a, torch.as_tensor(b)))
for kind in host:
    seen = agree(kind)
    assert "aten::mul.Tensor" in seen and not any(name.startswith("outboard::") for name in seen), seen
"""
    )


def test_a_drivers_own_recurrent_cell_is_used(run_python):
    run_python(
        CELLS
        + """
def cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    seen.append(input_gates.shape)
    i, f, g, o = (input_gates + hidden_gates + sum(b for b in (input_bias, hidden_bias) if b is not None)).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)
register_kernel("aten::_thnn_fused_lstm_cell", cell)
agree("LSTM")
assert len(seen) == 5
"""
    )


# cos that copies its argument by way of scratch memory: `sizes` says how many bytes it asks for, in
# order, -1 for as many as it needs; `addresses` is what it was given, `failed` counts what it
# wasn't: then it declines, if it may.
SCRATCH = """
#include <torch_outboard/driver.h>
#include <string.h>
#define SHOWN __attribute__((visibility("default")))
SHOWN long long sizes[4] = {-1, 0, -1, -2};
SHOWN uint64_t addresses[4];
SHOWN int failed = 0, may_decline = 0;
static ob_status copy_by_way(void* user, const ob_kernel_call* call) {
  const ob_tensor* out = call->outputs;
  const ob_tensor* in = call->args[0].tensors;
  const uint64_t bytes = (uint64_t)out->sizes[0] * 4;
  if (out->dtype != OB_FLOAT32) return OB_UNIMPLEMENTED;
  for (int i = 0; i < 4 && sizes[i] != -2; ++i) {
    const uint64_t wanted = sizes[i] < 0 ? bytes : (uint64_t)sizes[i];
    const ob_status status = call->scratch(call->scratch_context, wanted, addresses + i);
    if (status != OB_OK) {
      ++failed;
      return may_decline ? OB_UNIMPLEMENTED : status;
    }
  }
  memcpy((void*)addresses[0], (void*)in->data, bytes);
  memcpy((void*)addresses[2], (void*)addresses[0], bytes);
  memcpy((void*)out->data, (void*)addresses[2], bytes);
  return OB_OK;
}
OB_EXPORT ob_status kernel_register(void* self, const ob_registrar* registrar) {
  return registrar->add(registrar->context, "aten::cos", copy_by_way, 0);
}
"""

WITH_SCRATCH = """
sizes = (ctypes.c_longlong * 4).in_dll(library, "sizes")
addresses = (ctypes.c_uint64 * 4).in_dll(library, "addresses")
failed, may_decline = (ctypes.c_int.in_dll(library, name) for name in ("failed", "may_decline"))
x = torch.randn(1000).to(device)
"""


def test_scratch_memory(run_python, compile_c):
    run_python(
        attach(compile_c(SCRATCH))
        + WITH_SCRATCH
        + """
before = module.memory_allocated()
module.reset_peak_memory_stats()
y = x.cos()
assert torch.equal(x, y)
first, none, third = addresses[:3]
assert none == 0 and first and third and not (first % 512 or third % 512) and abs(first - third) >= 4000
assert module.memory_allocated() == before + 4096, "scratch is given back with the call"
assert module.max_memory_allocated() == before + 3 * 4096
# It is the stream's: a call on another stream gets other memory.
reserved = module.memory_reserved()
for _ in range(1000):
    x.cos()
assert module.memory_reserved() == reserved
with module.stream(module.Stream()):
    x.cos()
assert not {first, third} & {addresses[0], addresses[2]}
""",
    )


def test_scratch_memory_that_there_is_not(run_python, compile_c):
    run_python(
        attach(compile_c(SCRATCH))
        + WITH_SCRATCH
        + """
sizes[1] = 200 << 40  # more than there are addresses: an operating system may promise any less
before = module.memory_allocated()
with pytest.raises(torch.OutOfMemoryError, match=r"(?s)204800.00 GiB.*aten::cos requested scratch memory"):
    x.cos()
assert failed.value == 1 and module.memory_allocated() == before
# A kernel may decline for it, and is asked again by the next call.
may_decline.value = 1
torch.testing.assert_close(x.cos().cpu(), x.cpu().cos())
sizes[1] = 0
assert torch.equal(x.cos(), x) and failed.value == 2
""",
        env={"OUTBOARD_FALLBACK": "silent"},
    )


def test_scratch_memory_of_a_graph(run_python, compile_c):
    run_python(
        attach(compile_c(SCRATCH))
        + WITH_SCRATCH
        + """
x.cos()
graph = module.Graph()
with module.graph(graph):
    y = x.cos()
    z = x.cos()
# What the capture has given back is the graph's still.
others = [torch.full((1000,), 5.0, device=device) for _ in range(50)]
for _ in range(3):
    x.copy_(torch.randn(1000))
    graph.replay()
    assert torch.equal(x, y) and torch.equal(x, z)
    assert all((tensor == 5).all() for tensor in others)
sizes[1] = 4096
with pytest.raises(RuntimeError, match=r"(?s)requested 4096 bytes of scratch memory, .* requested 0 bytes.*aten::cos"):
    graph.replay()
sizes[1], sizes[3] = 0, -1
with pytest.raises(RuntimeError, match=r"(?s)4000 bytes.* memory 3 times.*aten::cos"):
    graph.replay()
sizes[3] = -2
graph.replay()
assert torch.equal(x, y)
""",
    )
