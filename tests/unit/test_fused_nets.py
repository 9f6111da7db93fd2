# SPDX-License-Identifier: BSD-3-Clause
"""Recurrent nets that a driver runs with a fused kernel: queries and calls, gradients, and what goes another way."""

from __future__ import annotations

from unit.test_native_kernels import attach, compile_c

__all__ = ["compile_c"]

# Takes one layer of a plain net of float32, in one direction, bounded by relu. What it keeps is the
# output, and its gradients spoil that. `asked` and `ran` count.
KERNELS = """
#include <string.h>
#include <torch_outboard/driver.h>
#define SHOWN __attribute__((visibility("default")))
SHOWN int asked = 0, ran = 0, ran_back = 0, error = 0;

typedef struct {
  const float *x, *w, *r, *bias, *hx;
  int64_t width, size, batch, steps;
  const ob_value* sizes;
} net;

static const ob_tensor* at(const ob_kernel_call* call, int i) { return call->args[i].tensors; }

static int read(const ob_kernel_call* call, int first, int numbers, net* out) {
  const ob_tensor *x = at(call, first), *w = at(call, first + 1), *hx = at(call, first + 2);
  const ob_value* value = call->args + numbers;
  if (x->dtype != OB_FLOAT32 || value[1].ints[0] != 3 || value[2].ints[0] || hx->sizes[0] != 1) return 0;
  out->sizes = value;
  out->width = x->sizes[x->ndim - 1];
  out->size = hx->sizes[2];
  out->batch = hx->sizes[1];
  out->steps = value->count ? (int64_t)value->count : x->sizes[0];
  out->x = (const float*)x->data;
  out->w = (const float*)w->data;
  out->hx = (const float*)hx->data;
  out->r = out->w + out->size * out->width;
  out->bias = value[3].ints[0] ? out->r + out->size * out->size : 0;
  const int64_t count = out->size * (out->width + out->size + (out->bias ? 2 : 0));
  return w->ndim == 1 && w->sizes[0] == count && w->strides[0] == 1;
}

static int64_t rows(const net* n, int64_t step) { return n->sizes->count ? n->sizes->ints[step] : n->batch; }

static ob_status run(void* user, const ob_kernel_call* call) {
  net n;
  if (!read(call, 0, 4, &n)) return OB_UNIMPLEMENTED;
  ++ran;
  float *y = (float*)call->outputs[0].data, *hy = (float*)call->outputs[1].data;
  const ob_tensor* kept = call->outputs + 3;
  if (call->outputs[2].is_defined || (call->args[8].kind == OB_VALUE_INT) != kept->is_defined) error = 1;
  memcpy(hy, n.hx, n.batch * n.size * 4);
  const float* begin = y;
  for (int64_t step = 0; step < n.steps; ++step) {
    for (int64_t b = 0; b < rows(&n, step); ++b, n.x += n.width, y += n.size) {
      for (int64_t i = 0; i < n.size; ++i) {
        float sum = n.bias ? n.bias[i] + n.bias[n.size + i] : 0;
        for (int64_t j = 0; j < n.width; ++j) sum += n.w[i * n.width + j] * n.x[j];
        for (int64_t j = 0; j < n.size; ++j) sum += n.r[i * n.size + j] * hy[b * n.size + j];
        y[i] = sum > 0 ? sum : 0;
      }
      memcpy(hy + b * n.size, y, n.size * 4);
    }
  }
  if (kept->is_defined) {
    if (kept->dtype != OB_UINT8 || kept->sizes[0] != (int64_t)((const char*)y - (const char*)begin)) error = 2;
    memcpy((void*)kept->data, begin, kept->sizes[0]);
  }
  return OB_OK;
}

static ob_status ask(void* user, const ob_kernel_call* call) {
  net n;
  uint64_t address = 1;
  ++asked;
  const int trains = call->args[8].kind == OB_VALUE_INT;
  if (at(call, 0)->data || at(call, 1)->data || at(call, 2)->data || call->stream || call->draw) error = 3;
  if ((call->scratch != 0) != trains || at(call, 1)->device != call->device) error = 4;
  if (!read(call, 0, 4, &n)) return OB_UNIMPLEMENTED;
  const ob_tensor* y = call->outputs;
  const int64_t count = y->ndim == 3 ? y->sizes[0] * y->sizes[1] : y->sizes[0];
  if (trains && (call->scratch(call->scratch_context, count * n.size * 4, &address) != OB_OK || address)) error = 5;
  return OB_OK;
}

static ob_status back(void* user, const ob_kernel_call* call) {
  net n;
  if (!read(call, 3, 9, &n)) return OB_UNIMPLEMENTED;
  ++ran_back;
  const float* dy = (const float*)at(call, 0)->data;
  float* y = (float*)at(call, 8)->data;
  float *dx = (float*)call->outputs[0].data, *dh = (float*)call->outputs[1].data;
  const ob_tensor* of_weights = call->outputs + 3;
  if (of_weights->is_defined != call->args[13].ints[0] || call->outputs[2].is_defined) error = 6;
  float* dw = of_weights->is_defined ? (float*)of_weights->data : 0;
  if (dw) memset(dw, 0, of_weights->sizes[0] * 4);
  if (call->args[1].kind == OB_VALUE_TENSOR && at(call, 1)->is_defined) {
    memcpy(dh, (const void*)at(call, 1)->data, n.batch * n.size * 4);
  } else {
    memset(dh, 0, n.batch * n.size * 4);
  }
  int64_t row = 0;
  for (int64_t step = 0; step < n.steps; ++step) row += rows(&n, step);
  memset(dx, 0, row * n.width * 4);
  for (int64_t step = n.steps - 1; step >= 0; --step) {
    row -= rows(&n, step);
    for (int64_t b = 0; b < rows(&n, step); ++b) {
      const int64_t here = row + b;
      const float* before = step ? y + (row - rows(&n, step - 1) + b) * n.size : n.hx + b * n.size;
      float d[64];
      for (int64_t i = 0; i < n.size; ++i) {
        d[i] = y[here * n.size + i] > 0 ? dy[here * n.size + i] + dh[b * n.size + i] : 0;
      }
      memset(dh + b * n.size, 0, n.size * 4);
      for (int64_t i = 0; i < n.size; ++i) {
        for (int64_t j = 0; j < n.width; ++j) {
          dx[here * n.width + j] += n.w[i * n.width + j] * d[i];
          if (dw) dw[i * n.width + j] += n.x[here * n.width + j] * d[i];
        }
        for (int64_t j = 0; j < n.size; ++j) {
          dh[b * n.size + j] += n.r[i * n.size + j] * d[i];
          if (dw) dw[n.size * n.width + i * n.size + j] += before[j] * d[i];
        }
        for (int bias = 0; dw && n.bias && bias < 2; ++bias) dw[(n.bias - n.w) + bias * n.size + i] += d[i];
      }
    }
  }
  memset(y, 0, at(call, 8)->sizes[0]);
  return OB_OK;
}

OB_EXPORT ob_status kernel_register(void* self, const ob_registrar* registrar) {
  registrar->add(registrar->context, "outboard::recurrent_net_backward", back, 0);
  return registrar->ADD;
}
"""
WITH_QUERY = KERNELS.replace("ADD", 'add_with_query(registrar->context, "outboard::recurrent_net", run, ask, 0)')
WITHOUT_QUERY = KERNELS.replace("ADD", 'add(registrar->context, "outboard::recurrent_net", self && 0 ? ask : run, 0)')

START = """
import copy
from torch.nn.utils.rnn import PackedSequence
asked, ran, ran_back, error = (ctypes.c_int.in_dll(library, name) for name in ("asked", "ran", "ran_back", "error"))

def close(ours, expected):
    torch.testing.assert_close(ours.detach().cpu(), expected.detach(), atol=1e-5, rtol=1e-5)

def agree(net, x, calls, backward_calls, batch_sizes=None, ours=None):
    ours = ours or copy.deepcopy(net).to(device)
    before = ran.value, ran_back.value
    found = []
    for model, place in ((net, "cpu"), (ours, device)):
        rows = x.detach().to(place).requires_grad_()
        output, last = model(rows if batch_sizes is None else PackedSequence(rows, batch_sizes))
        output = output if batch_sizes is None else output.data
        wanted = [rows, *(parameter for parameter in model.parameters() if parameter.requires_grad)]
        grads = torch.autograd.grad((output * output).sum() + last.sum() * 2, wanted)
        found.append([output, last, *grads])
    for mine, expected in zip(*found[::-1], strict=True):
        close(mine, expected)
    assert (ran.value, ran_back.value) == (before[0] + calls, before[1] + backward_calls), (ran.value, ran_back.value)
    assert error.value == 0, error.value
    return ours

net, x = torch.nn.RNN(3, 4, nonlinearity="relu"), torch.randn(5, 2, 3)
"""


def test_values_and_gradients(run_python, compile_c):
    run_python(
        attach(compile_c(WITH_QUERY))
        + START
        + """
ours = agree(net, x, 1, 1)
assert asked.value == 1
agree(net, x, 1, 1, ours=ours)
assert asked.value == 1, "an answer is remembered"
with torch.no_grad():
    close(ours(x.to(device))[0], net(x)[0])
assert asked.value == 2 and ran.value == 3 and error.value == 0
agree(torch.nn.RNN(3, 4, nonlinearity="relu", bias=False), x, 1, 1)
agree(torch.nn.RNN(3, 4, nonlinearity="relu", batch_first=True), x, 1, 1)
agree(net, torch.randn(7, 3), 1, 1, torch.tensor([3, 3, 1]))
agree(net, torch.randn(7, 3), 1, 1, torch.tensor([4, 2, 1]))
net.requires_grad_(False)
agree(net, x, 1, 1)
rows = {row.op: row.provider for row in torch_outboard.coverage() if "recurrent" in row.op}
assert rows == {"outboard::recurrent_net": "native", "outboard::recurrent_net_backward": "native"}, rows
"""
    )


def test_what_the_driver_declines_goes_by_layers(run_python, compile_c):
    run_python(
        attach(compile_c(WITH_QUERY))
        + START
        + """
for other in (torch.nn.RNN(3, 4), torch.nn.GRU(3, 4), torch.nn.RNN(3, 4, 2, nonlinearity="relu"),
              torch.nn.RNN(3, 4, nonlinearity="relu", bidirectional=True),
              torch.nn.RNN(3, 4, nonlinearity="relu").double()):
    agree(other, x.to(other.weight_ih_l0.dtype), 0, 0)
assert asked.value == 5
# Layers with dropout between them are asked about one by one.
torch.manual_seed(1)
deep = torch.nn.RNN(3, 4, 2, nonlinearity="relu", dropout=0.5)
ours = copy.deepcopy(deep).to(device)
output, last = ours(x.to(device))
assert ran.value == 2 and last.shape == (2, 2, 4) and output.shape == (5, 2, 4)
close(output[-1], last[1].cpu())
close(last[0], deep.eval()(x)[1][0])
for mine, expected in zip(ours.eval()(x.to(device)), deep(x), strict=True):
    close(mine, expected)
assert ran.value == 2
# Wrong arguments raise torch's errors, and nothing is asked.
before = asked.value
for wrong in (lambda: ours(torch.randn(5, 2, 4, device=device)), lambda: net.to(device)(x.double().to(device))):
    with pytest.raises((RuntimeError, ValueError)):
        wrong()
assert asked.value == before
"""
    )


def test_two_passes_and_second_derivatives(run_python, compile_c):
    run_python(
        attach(compile_c(WITH_QUERY))
        + START
        + """
ours = copy.deepcopy(net).to(device)
found = []
for model, place in ((net, "cpu"), (ours, device)):
    rows = x.detach().to(place).requires_grad_()
    wanted = [rows, *model.parameters()]
    loss = model(rows)[0].pow(3).sum()
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    again = torch.autograd.grad(loss, wanted, retain_graph=True)
    deep = torch.autograd.grad(loss, wanted, create_graph=True)
    second = torch.autograd.grad(sum(grad.square().sum() for grad in deep), wanted)
    found.append([*first, *again, *deep, *second])
for mine, expected in zip(*found[::-1], strict=True):
    # Each element is a sum of terms that may cancel, so its error is one of the largest, not of its own size.
    largest = expected.abs().max().item()
    torch.testing.assert_close(mine.detach().cpu(), expected.detach(), atol=1e-5 * largest, rtol=0)
assert ran.value == 1 and ran_back.value == 3, "gradients that have gradients are those of the layers"
"""
    )


def test_in_a_graph(run_python, compile_c):
    run_python(
        attach(compile_c(WITH_QUERY))
        + START
        + """
ops, rows, hx = torch.ops.outboard, x.to(device), torch.zeros(1, 2, 4, device=device)
weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).to(device)
ones = torch.ones(5, 2, 4, device=device)
def call():
    output, hy, _, kept = ops.recurrent_net(rows, weights, hx, None, (), 3, False, True, 160)
    back = ops.recurrent_net_backward(
        ones, None, None, rows, weights, hx, None, output, kept, (), 3, False, True, True)
    return output, hy, back[0], back[3]
call()
graph = module.Graph()
with module.graph(graph):
    results = call()
for _ in range(2):
    given = torch.randn(5, 2, 3)
    rows.copy_(given)
    graph.replay()
    host = given.clone().requires_grad_()
    output, last = net(host)
    grads = torch.autograd.grad(output, [host, *net.parameters()], torch.ones_like(output))
    for mine, other in zip(results, (output, last, grads[0], torch.cat([grad.flatten() for grad in grads[1:]]))):
        close(mine, other)
assert error.value == 0
"""
    )


def test_a_kernel_that_cannot_be_asked_is_not_used(run_python, compile_c):
    run_python(attach(compile_c(WITHOUT_QUERY)) + START + "agree(net, x, 0, 0)\nassert asked.value == 0\n")


def test_the_operators_refuse_what_does_not_fit(run_python, compile_c):
    run_python(
        attach(compile_c(WITH_QUERY))
        + START
        + """
hx, weights = torch.zeros(1, 2, 4, device=device), torch.randn(36, device=device)
def call(x=x.to(device), weights=weights, hx=hx, cx=None, sizes=(), kind=3, both=False, biases=True, kept=None):
    return torch.ops.outboard.recurrent_net(x, weights, hx, cx, sizes, kind, both, biases, kept)
output, hy, cy, kept = call(kept=5 * 2 * 4 * 4)
assert output.shape == (5, 2, 4) and hy.shape == hx.shape and cy is None and kept.numel() == 160
rows = torch.randn(5, 3, device=device)
for wrong in (dict(kind=-1), dict(kind=4), dict(kind=0), dict(cx=hx), dict(weights=weights[1:]), dict(biases=False),
              dict(both=True), dict(hx=hx[0]), dict(hx=hx[:, :1]), dict(x=rows), dict(x=rows, sizes=[2, 2]),
              dict(x=rows, sizes=[2, 3]), dict(x=rows, sizes=[2, 2, 0, 1]), dict(x=rows, sizes=[1, 1, 1, 1, 1]),
              dict(x=torch.zeros(0, 2, 3, device=device))):
    with pytest.raises(ValueError, match="recurrent_net: "):
        call(**wrong)
        torch.accelerator.synchronize()
with pytest.raises(NotImplementedError, match="the driver declined this call"):
    call(x=x.double().to(device), weights=weights.double(), hx=hx.double())
    torch.accelerator.synchronize()
"""
    )
