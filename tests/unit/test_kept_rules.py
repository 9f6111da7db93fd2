# SPDX-License-Identifier: BSD-3-Clause
"""Inductor's rules for the types of operations: made once, and again when a lowering registers another one."""

from __future__ import annotations

CODE = """
import torch
import torch_outboard
from torch_outboard._compat import rules
from torch_outboard._compat.imports import import_inductor
import_inductor()
import_inductor()  # a second time changes nothing
from torch._inductor import utils
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler as Handler
of_torch = Handler.__init__
assert hasattr(of_torch, "__wrapped__") == rules.needs_cache_rules() and not hasattr(
    getattr(of_torch, "__wrapped__", None), "__wrapped__"
)
first = Handler()
rule = first.exp
assert Handler() is first and Handler().exp is rule
kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
utils.register_op_dtype_propagation_rules("ours", kind, override_return_dtype=torch.int16)
assert Handler().ours() is torch.int16
utils.register_op_dtype_propagation_rules("ours", kind, override_return_dtype=torch.int8)
assert Handler().ours() is torch.int8
print(Handler().exp is rule)
"""


def test_rules_are_made_again_only_for_new_ones(run_python):
    assert run_python(CODE).stdout.split() == ["False"]
