# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in C: torch's switches, seeds, and questions asked beforehand."""

from __future__ import annotations

from unit.test_native_kernels import attach, compile_c

__all__ = ["compile_c"]

# cos writes the call's flags, bernoulli the bits of its seed, drawn `draws` times. Attention is all
# 3, and taken for heads of 8; `asked` counts the questions.
KERNELS = """
#include <torch_outboard/driver.h>
#define SHOWN __attribute__((visibility("default")))
SHOWN int draws = 1, asked = 0, ran = 0, draw_failed = 0;

static ob_status flags(void* user, const ob_kernel_call* call) {
  if (call->outputs->dtype != OB_FLOAT64) return OB_UNIMPLEMENTED;
  *(double*)call->outputs->data = (double)call->flags;
  return OB_OK;
}

static ob_status bits(void* user, const ob_kernel_call* call) {
  for (int i = 0; i < draws; ++i) {
    const ob_status status = call->draw(call->scratch_context, call->outputs->data);
    if (status != OB_OK) {
      draw_failed = status;
      return status;
    }
  }
  return OB_OK;
}

static ob_status attend(void* user, const ob_kernel_call* call) {
  ++ran;
  const ob_tensor* out = call->outputs;
  for (int i = 0; i < out->sizes[0] * out->strides[0]; ++i) ((float*)out->data)[i] = 3;
  return OB_OK;
}

static ob_status ask(void* user, const ob_kernel_call* call) {
  ++asked;
  const ob_tensor* query = call->args[0].tensors;
  const ob_tensor* mask = call->args[3].tensors;
  if (query->data != 0 || call->stream != 0 || call->scratch != 0 || call->draw != 0) return OB_INTERNAL;
  if (call->output_count != 9 || call->outputs->data != 0 || call->outputs->sizes[3] != query->sizes[3] ||
      call->outputs->device != call->device || query->device != call->device) return OB_INTERNAL;
  if (call->args[3].kind == OB_VALUE_TENSOR && (mask->dtype != query->dtype || mask->device != call->device)) {
    return OB_INTERNAL;
  }
  return query->sizes[3] == 8 && !(call->flags & OB_CALL_REPEATS) ? OB_OK : OB_UNIMPLEMENTED;
}

OB_EXPORT ob_status kernel_register(void* self, const ob_registrar* registrar) {
  registrar->add(registrar->context, "aten::cos", flags, 0);
  registrar->add(registrar->context, "aten::sin", bits, 0);
  registrar->add(registrar->context, "aten::bernoulli", bits, 0);
  return registrar->add_with_query(registrar->context, "aten::_scaled_dot_product_fused_attention_overrideable",
                                   attend, ask, 0);
}
"""

COUNTS = """
draws, asked, ran = (ctypes.c_int.in_dll(library, name) for name in ("draws", "asked", "ran"))
"""


def test_torchs_switches(run_python, compile_c):
    run_python(
        attach(compile_c(KERNELS))
        + """
x = torch.zeros(1, dtype=torch.float64, device=device)
torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "ieee"
flags = lambda: int(x.cos().item())
assert flags() == 0
torch.backends.cudnn.deterministic = True
assert flags() == 2
torch.backends.cudnn.benchmark = True
assert flags() == 2 | 4
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = torch.backends.cudnn.benchmark = False
assert flags() == 1 | 2
torch.use_deterministic_algorithms(False)
torch.backends.cuda.matmul.fp32_precision = "tf32"
assert flags() == 8
torch.backends.cuda.matmul.fp32_precision = "ieee"
torch.backends.cudnn.conv.fp32_precision = "tf32"
assert flags() == 16
torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision = "ieee", "tf32"
assert flags() == 32
torch.backends.cudnn.rnn.fp32_precision = "ieee"
# A graph keeps the flags of its capture.
graph = module.Graph()
with module.graph(graph):
    y = x.cos()
torch.use_deterministic_algorithms(True)
graph.replay()
assert y.item() == 0 and flags() == 3
"""
    )


def test_seeds(run_python, compile_c):
    run_python(
        attach(compile_c(KERNELS), "sim")
        + COUNTS
        + """
x = torch.zeros(1, dtype=torch.float64, device=device)
draw = lambda **options: x.bernoulli(**options).view(torch.int64).item()
torch.manual_seed(3)
first, second = draw(), draw()
torch.manual_seed(3)
assert first != second and [draw(), draw()] == [first, second]
graph = module.Graph()
with module.graph(graph):
    y = x.bernoulli()
seen = set()
for _ in range(5):
    graph.replay()
    seen.add(y.view(torch.int64).item())
assert len(seen) == 5
draws.value = 2
with pytest.raises(ValueError, match="(?s)draws a seed twice.*aten::bernoulli"):
    draw()
draws.value = 1
with pytest.raises(ValueError, match="(?s)torch does not tag the operator as random.*aten::sin"):
    x.sin()
"""
    )


def test_seeds_of_queued_replays(run_python, compile_c):
    run_python(
        attach(compile_c(KERNELS), "sim")
        + """
x = torch.zeros(1, dtype=torch.float64, device=device)
x.bernoulli()
graph = module.Graph()
with module.graph(graph):
    y = x.bernoulli()
def replayed():
    graph.replay()
    return y.clone()
seeds = [result.view(torch.int64).item() for result in [replayed() for _ in range(5)]]
assert len(set(seeds)) == 5 and 0 not in seeds
""",
        env={"OUTBOARD_SIM_SCHEDULE": "lazy:3"},  # no replay has run when the last one is queued
    )


def test_seeds_without_fills(run_python, compile_c):
    run_python(
        attach(compile_c(KERNELS))
        + """
with pytest.raises(torch_outboard.NotSupportedError, match="for aten::bernoulli draws a seed, which needs the entry"):
    torch.zeros(1, dtype=torch.float64, device=device).bernoulli()
"""
    )


def test_questions(run_python, compile_c):
    run_python(
        attach(compile_c(KERNELS))
        + COUNTS
        + """
attention = torch.nn.functional.scaled_dot_product_attention
query = torch.randn(2, 3, 4, 8)
ours = query.to(device)
for _ in range(3):
    assert (attention(ours, ours, ours) == 3).all()
assert asked.value == 1 and ran.value == 3, "an answer is remembered"
for mask in (torch.ones(4, 4, dtype=torch.bool), torch.zeros(3, 4, 4)):
    assert (attention(ours, ours, ours, mask.to(device)) == 3).all()
# What the kernel declines beforehand goes another way: another head, a switch, what is not of the whole's form.
before = ran.value
wide = torch.randn(2, 3, 4, 16)
check(attention(*[wide.to(device)] * 3), attention(wide, wide, wide))
check(attention(*[ours[0]] * 3), attention(*[query[0]] * 3))
check(attention(*[ours.double()] * 3), attention(*[query.double()] * 3))
learned = torch.zeros(4, 4, device=device, requires_grad=True)
attention(ours, ours, ours, learned).sum().backward()
torch.use_deterministic_algorithms(True)
check(attention(ours, ours, ours), attention(query, query, query))
torch.use_deterministic_algorithms(False)
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
    check(attention(ours, ours, ours), attention(query, query, query))
assert ran.value == before
# Numbers that sizes determine are results, too.
results = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(ours, ours, ours)
assert results[4:6] == (4, 4) and results[2] is None
"""
    )
