# SPDX-License-Identifier: BSD-3-Clause
"""Connectionist temporal classification: the probabilities of all alignments, step by step.

The states are a target's labels, with a blank before, between and after them. An item computes all steps of one
sequence, as the CPU's kernel does. For the gradients, an item collects one step of one sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates.call import Kernel, TemplateCall, Tensor
from torch_outboard.kernels.templates.product import filled

__all__ = ["backward", "ctc_alphas", "ctc_backward", "forward"]


_library = torch.library.Library("outboard", "FRAGMENT")  # type: ignore[no-untyped-call]
_LENGTHS = "Tensor labels, Tensor input_lengths, Tensor target_lengths"
_library.define(f"ctc_alphas(Tensor log_probs, {_LENGTHS}, int blank) -> (Tensor, Tensor)")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    f"ctc_gradient(Tensor grad, Tensor log_probs, {_LENGTHS}, Tensor neg_log_likelihood, Tensor log_alpha, int blank,"
    " bool zero_infinity) -> Tensor"
)


def _alphas(log_probs: torch.Tensor, labels: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    steps, batch = log_probs.shape[:2]
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * labels.shape[1] + 1)


_library.impl("ctc_alphas", _alphas, "Meta")  # type: ignore[no-untyped-call]
_library.impl(  # type: ignore[no-untyped-call]
    "ctc_gradient",
    lambda grad, log_probs, *_: torch.empty_like(log_probs, memory_format=torch.contiguous_format),
    "Meta",
)

# `labels` (int64) has a row per sequence, of which the first `target_lengths` entries count;
# lengths are int64.
ctc_alphas = torch.ops.outboard.ctc_alphas.default
ctc_backward = torch.ops.outboard.ctc_gradient.default


def forward(call: TemplateCall) -> list[str | None]:
    likelihood, alpha = call.results
    assert likelihood is not None and alpha is not None
    results = {"likelihood": call.allocate(likelihood), "alpha": call.allocate(alpha)}
    kernel, words = _begin(call, "ob_ctc_alphas", results, results)
    kernel.spread(call, alpha.size[0])
    kernel.text = filled(_ALPHAS, words)
    call.launch(kernel)
    return [results["likelihood"].name, results["alpha"].name]


def backward(call: TemplateCall) -> list[str | None]:
    alpha, (layout,) = call.tensor("log_alpha"), call.results
    assert layout is not None
    beta, result = call.allocate(alpha), call.allocate(layout)
    betas, words = _begin(call, "ob_ctc_betas", {"beta": beta}, {"beta": beta})
    betas.spread(call, alpha.size[0])
    betas.text = filled(_BETAS, words)
    read = {"grad": call.tensor("grad"), "alpha": alpha, "beta": beta, "result": result}
    read["likelihood"] = call.tensor("neg_log_likelihood")
    collect, words = _begin(call, "ob_ctc_collect", read, {"result": result})
    collect.spread(call, alpha.size[0] * alpha.size[1])
    words["ZERO_INFINITY"] = str(int(call.arguments["zero_infinity"]))
    collect.text = filled(_COLLECT, words)
    call.launch(betas, collect)
    call.free(beta)
    return [result.name]


def _begin(
    call: TemplateCall, name: str, tensors: Mapping[str, Tensor], written: Mapping[str, Tensor]
) -> tuple[Kernel, dict[str, str]]:
    """Return the kernel, with its inputs declared, and the texts of its placeholders."""
    probabilities = call.tensor("log_probs")
    if probabilities.dtype not in (torch.float32, torch.float64):
        raise CallRefusal(f"this loss isn't supported in {probabilities.dtype} [products]")
    kernel = Kernel(name)
    words = {"REAL": "float" if probabilities.dtype == torch.float32 else "double", "ITEM": call.dialect.item}
    words["READ"], words["WRITTEN"] = (
        call.dialect.pointer(words["REAL"], is_written=is_written) for is_written in (False, True)
    )
    words["EXP"], words["LOG"] = call.dialect.function("exp"), call.dialect.function("log")
    inputs = {"probs": probabilities, "labels": call.tensor("labels")}
    lengths = {"input_lengths": call.tensor("input_lengths"), "target_lengths": call.tensor("target_lengths")}
    for name, tensor in {**inputs, **lengths, **tensors}.items():
        kernel.pointer(name, tensor, is_written=name in written)
        for number, stride in enumerate(tensor.stride):
            words[f"{name}_{'ABC'[number]}".upper()] = kernel.number(f"{name}_{'abc'[number]}", stride)
    words["STEPS"] = kernel.number("steps", probabilities.size[0])
    words["BATCH"] = kernel.number("batch", probabilities.size[1])
    words["CLASSES"] = kernel.number("classes", probabilities.size[2])
    words["TARGETS"] = kernel.number("targets", inputs["labels"].size[1])
    words["BLANK"] = str(int(call.arguments["blank"]))
    words["LOG_SUM"], words["LABEL"], words["PROBABILITY"] = _LOG_SUM, _LABEL, _PROBABILITY
    return kernel, words


_LABEL = "((state & 1) ? labels[item * $LABELS_A + (state >> 1) * $LABELS_B] : (ob_i64)$BLANK)"
_PROBABILITY = "probs[step * $PROBS_A + item * $PROBS_B + label * $PROBS_C]"
# The logarithm of a sum of three terms, computed from the terms' logarithms.
_LOG_SUM = """\
      $REAL most = one > two ? one : two;
      if (three > most) most = three;
      if (most == -($REAL)OB_INFINITY) most = 0;
      const $REAL sum = $LOG($EXP(one - most) + $EXP(two - most) + $EXP(three - most)) + most;
"""

_ALPHAS = """\
  const ob_i64 item = $ITEM;
  if (item >= $BATCH) return;
  const ob_i64 length = input_lengths[item * $INPUT_LENGTHS_A];
  const ob_i64 states = 2 * target_lengths[item * $TARGET_LENGTHS_A] + 1;
  const $REAL none = -($REAL)OB_INFINITY;
  $WRITTEN own = alpha + item * $ALPHA_A;
  for (ob_i64 step = 0; step < $STEPS; ++step) {
    $WRITTEN row = own + step * $ALPHA_B;
    $READ before = own + (step - 1) * $ALPHA_B;
    for (ob_i64 state = 0; state < 2 * $TARGETS + 1; ++state) {
      if (step >= length || state >= states || (step == 0 && state > 1)) {
        row[state] = none;
        continue;
      }
      const ob_i64 label = $LABEL;
      if (step == 0) {
        row[state] = $PROBABILITY;
        continue;
      }
      const bool skips = state > 2 && (state & 1) && labels[item * $LABELS_A + ((state - 2) >> 1) * $LABELS_B] != label;
      const $REAL one = before[state];
      const $REAL two = state > 0 ? before[state - 1] : none;
      const $REAL three = skips ? before[state - 2] : none;
$LOG_SUM
      row[state] = sum + $PROBABILITY;
    }
  }
  $REAL found = states > 1 ? none : 0;
  if (length > 0) {
    const $REAL one = own[(length - 1) * $ALPHA_B + states - 1];
    const $REAL two = states > 1 ? own[(length - 1) * $ALPHA_B + states - 2] : none;
    const $REAL three = none;
$LOG_SUM
    found = states > 1 ? sum : one;
  }
  likelihood[item * $LIKELIHOOD_A] = -found;
"""

_BETAS = """\
  const ob_i64 item = $ITEM;
  if (item >= $BATCH) return;
  const ob_i64 length = input_lengths[item * $INPUT_LENGTHS_A];
  const ob_i64 states = 2 * target_lengths[item * $TARGET_LENGTHS_A] + 1;
  const $REAL none = -($REAL)OB_INFINITY;
  $WRITTEN own = beta + item * $BETA_A;
  for (ob_i64 step = length - 1; step >= 0; --step) {
    $WRITTEN row = own + step * $BETA_B;
    $READ next = own + (step + 1) * $BETA_B;
    for (ob_i64 state = states - 1; state >= 0; --state) {
      const ob_i64 label = $LABEL;
      if (step == length - 1) {
        row[state] = state >= states - 2 ? $PROBABILITY : none;
        continue;
      }
      const bool skips =
          state < states - 2 && (state & 1) && labels[item * $LABELS_A + ((state + 2) >> 1) * $LABELS_B] != label;
      const $REAL one = next[state];
      const $REAL two = state < states - 1 ? next[state + 1] : none;
      const $REAL three = skips ? next[state + 2] : none;
$LOG_SUM
      row[state] = sum + $PROBABILITY;
    }
  }
"""

_COLLECT = """\
  const ob_i64 number = $ITEM;
  if (number >= $BATCH * $STEPS) return;
  const ob_i64 item = number % $BATCH, step = number / $BATCH;
  const ob_i64 length = input_lengths[item * $INPUT_LENGTHS_A];
  const ob_i64 states = 2 * target_lengths[item * $TARGET_LENGTHS_A] + 1;
  const $REAL none = -($REAL)OB_INFINITY;
  const $REAL nll = likelihood[item * $LIKELIHOOD_A], factor = grad[item * $GRAD_A];
  $WRITTEN row = result + step * $RESULT_A + item * $RESULT_B;
  const bool is_zero = step >= length || ($ZERO_INFINITY && nll == ($REAL)OB_INFINITY);
  for (ob_i64 label = 0; label < $CLASSES; ++label) row[label] = is_zero ? ($REAL)0 : none;
  if (is_zero) return;
  for (ob_i64 state = states - 1; state >= 0; --state) {
    const ob_i64 label = $LABEL;
    const $REAL one = alpha[item * $ALPHA_A + step * $ALPHA_B + state] + beta[item * $BETA_A + step * $BETA_B + state];
    const $REAL two = row[label];
    if (two == none) {
      row[label] = one;
      continue;
    }
    const $REAL most = one > two ? one : two;
    row[label] = $LOG($EXP(one - most) + $EXP(two - most)) + most;
  }
  for (ob_i64 label = 0; label < $CLASSES; ++label) {
    const $REAL probability = $PROBABILITY;
    row[label] = ($EXP(probability) - $EXP(row[label] + nll - probability)) * factor;
  }
"""
