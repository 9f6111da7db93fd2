# SPDX-License-Identifier: BSD-3-Clause
"""torch's functions that import Triton for any accelerator. Each is kept from a device without Triton, and stands here.

They were searched in torch 2.11 to 2.15. A function that a newer torch adds fails the test, until somebody reads it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torch

PARTS = ("_dynamo", "_functorch", "_higher_order_ops", "_inductor", "distributed", "fx", "profiler", "utils")

# Where kernels are in Triton already: a device's generator, its templates, a program's own kernels.
OF_TRITON = (
    "_higher_order_ops/triton_kernel_wrap.py",
    "_inductor/codegen/cuda/",
    "_inductor/codegen/cutedsl/",
    "_inductor/codegen/simd.py",
    "_inductor/codegen/triton",
    "_inductor/heuristics/",
    "_inductor/kernel/",
    "_inductor/runtime/",
    "_inductor/template_heuristics/",
    "distributed/_symmetric_memory/",
)
_OWN_KERNEL = "a program's own kernel in Triton is in the graph"
_GUARDED = "the caller asks whether Triton is installed"
_COMBO = "Inductor's combo kernels and benchmarks of fusions, which are settings for Triton"
REASONS = {
    "_dynamo/device_interface.py *.raise_if_triton_unavailable": "of torch's own devices; ours has its own interface",
    "_dynamo/variables/builder.py VariableBuilder._wrap": _GUARDED,
    "_dynamo/variables/user_defined.py UserDefinedObjectVariable.as_python_constant": _OWN_KERNEL,
    "_functorch/_aot_autograd/autograd_cache.py AOTAutogradCacheDetails.get_triton_source_codes_from_gm": _OWN_KERNEL,
    "_functorch/_aot_autograd/autograd_cache.py _check_triton_cache_version": _GUARDED,
    "_inductor/autows_utils.py meta_ws_enabled": "of Triton's templates",
    "_inductor/codecache.py FxGraphHashDetails.__init__": _OWN_KERNEL,
    "_inductor/codegen/common.py _init_builtin_backend_registration": "the CPU's generator is set to Triton",
    "_inductor/codegen/common.py init_backend_registration": "the CPU's generator is set to Triton",
    "_inductor/codegen/wrapper.py PythonWrapperCodegen._get_triton_info_kernel_cls": _OWN_KERNEL,
    "_inductor/codegen/wrapper.py PythonWrapperCodegen.val_to_arg_str": _GUARDED,
    "_inductor/codegen/wrapper.py user_defined_triton_kernel_transitive_closure_source_code": _OWN_KERNEL,
    "_inductor/codegen/wrapper_fxir.py FxConverter._generate_triton_call.tune_kernel": "of the FX wrapper's Triton",
    "_inductor/fx_passes/reinplace.py reinplace_inplaceable_ops_core": _OWN_KERNEL,
    "_inductor/ir.py UserDefinedTritonKernel.get_kernel_and_metadata": _OWN_KERNEL,
    "_inductor/scheduler.py Scheduler.speedup_by_combo_kernel": _COMBO,
    "_inductor/scheduler.py Scheduler.speedup_by_fusion": _COMBO,
    "_inductor/scheduler.py _is_loop_carried_compile_error": _COMBO,
    "_inductor/utils.py _get_device_dram_gbps": "asks for torch's own devices only",
    "_inductor/utils.py _get_device_tflops": "asks for CUDA only",
    "_inductor/utils.py get_device_tflops": "patched: _compat/estimates.py",
    "_inductor/utils.py get_gpu_dram_gbps": "patched: _compat/estimates.py",
    "_inductor/utils.py get_gpu_shared_memory": "of products and heuristics in Triton",
    "_inductor/utils.py get_triton_attrs_descriptor_version": _GUARDED,
    "utils/_triton.py has_triton.cpu_extra_check": _GUARDED,
    "utils/_triton.py has_triton_block_ptr": _GUARDED,
    "utils/_triton.py has_triton_cpu_backend": _GUARDED,
    "utils/_triton.py triton_backend": _GUARDED,
    "utils/flop_counter.py _FlopCounterMode._handle_higher_order_ops": _OWN_KERNEL,
}


def _imports(node: ast.AST, names: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of functions that import Triton, and do not catch that it is missing."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Try):
            continue
        within = (*names, child.name) if isinstance(child, ast.FunctionDef | ast.ClassDef) else names
        modules = [alias.name for alias in child.names] if isinstance(child, ast.Import) else []
        modules += [child.module or ""] if isinstance(child, ast.ImportFrom) else []
        if within and any(re.match(r"triton(\.|$)", module) for module in modules):
            yield ".".join(within)
        yield from _imports(child, within)


def _functions() -> Iterator[str]:
    root = Path(torch.__file__).parent
    for path in (path for part in PARTS for path in (root / part).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        if not name.startswith(OF_TRITON) and re.search(r"^\s+(import|from) triton\b", text, re.MULTILINE):
            yield from (f"{name} {function}" for function in _imports(ast.parse(text)))


def test_each_function_that_imports_triton_has_a_reason() -> None:
    named = {re.sub(r" \w+\.raise_if", " *.raise_if", function) for function in _functions()}
    assert named - REASONS.keys() == set()
    assert "_inductor/utils.py get_gpu_dram_gbps" in named or "_inductor/utils.py _get_device_dram_gbps" in named
