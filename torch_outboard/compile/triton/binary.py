# SPDX-License-Identifier: BSD-3-Clause
"""Compiling a kernel's source with Triton to one binary per configuration, without a device or its driver.

Compilation runs in the workers of torch's compiler, which have no driver.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_outboard._errors import NotSupportedError, OutboardError
from torch_outboard._triton import TritonTarget
from torch_outboard.compile.triton.grid import grid_formulas

__all__ = [
    "TYPES",
    "Binaries",
    "Binary",
    "binary_of",
    "compile_in_worker",
    "compile_kernel",
    "hidden_types",
    "load_backend",
]

# Types of numbers, by Triton's names. Signedness does not change how a number is passed.
_BITS = {"1": "int8_t", "8": "int8_t", "16": "int16_t", "32": "int32_t", "64": "int64_t"}
TYPES = {**{f"{sign}{bits}": kind for bits, kind in _BITS.items() for sign in "iu"}, "fp32": "float", "fp64": "double"}

# Triton's settings are global to the process.
_compiling = threading.Lock()


@dataclass(frozen=True)
class Binary:
    """A compiled configuration of a kernel.

    Attributes
    ----------
    config : str
        Inductor's Config, as text.
    code : bytes
        The program in the target's language.
    entry : str
        The kernel's name in the program.
    grid : tuple of str
        Formulas over the passed arguments (csrc/kernels/expression.h).
    threads, shared : int
        Threads per block, and bytes of its dynamic shared memory.
    scratch : tuple of pairs of int
        For each pointer after the kernel's own arguments: bytes per block of the grid, and their alignment.
    """

    config: str
    code: bytes
    entry: str
    grid: tuple[str, str, str]
    threads: int
    shared: int
    scratch: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Binaries:
    """A kernel as Triton compiled it.

    Attributes
    ----------
    types : tuple of str
        Types of the passed arguments, as in DeviceProgram.
    changed : tuple of int
        Arguments that a launch both reads and writes. A measurement passes copies of them.
    zeroed : tuple of int
        Arguments that must be zero before each launch of a measurement.
    variants : tuple of Binary
        Binaries in the order of Inductor's configurations.
    """

    types: tuple[str, ...]
    changed: tuple[int, ...]
    zeroed: tuple[int, ...]
    variants: tuple[Binary, ...]


def load_backend(target: TritonTarget) -> Any:
    """Return Triton's back end of a target.

    Raises
    ------
    NotSupportedError
        If Triton has no back end for the target, or is not installed.
    """
    try:
        if target.module:
            importlib.import_module(target.module)
        from triton.backends import backends
        from triton.backends.compiler import GPUTarget
        from triton.compiler.compiler import make_backend
    except ImportError as error:
        raise NotSupportedError(
            f"torch.compile needs Triton for this device, but importing Triton failed ({error}): install the version "
            "that this torch requires, or choose another code generator"
        ) from error
    try:
        return make_backend(GPUTarget(target.backend, target.arch, target.warp_size))
    except Exception as error:
        raise NotSupportedError(
            f"the installed Triton does not support the target {target.backend!r}, {target.arch!r} ({error}). Its back "
            f"ends: {', '.join(sorted(backends)) or 'none'}"
        ) from error


def compile_in_worker(environment: Mapping[str, str], name: str, source: str, target: TritonTarget) -> Binaries:
    """Set environment variables that the parent changed after the worker started, and call `compile_kernel`."""
    os.environ.update(environment)
    return compile_kernel(name, source, target)


def compile_kernel(name: str, source: str, target: TritonTarget) -> Binaries:
    """Compile all configurations of a kernel, except configurations that exceed the chip's resources.

    `source` is Inductor's: a module in which `name` is the kernel with its heuristics applied.

    Raises
    ------
    OutboardError
        If no configuration compiles; the message has the first reason.
    """
    load_backend(target)
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.triton_compat import OutOfResources, PTXASError

    with _compiling:
        kernel = getattr(PyCodeCache.load(source), name)
        variants, failures = [], []
        for config in kernel.configs:
            try:
                variants.append(_compile(kernel, config, target))
            except (OutOfResources, PTXASError) as error:
                failures.append(error)
    if not variants:
        raise OutboardError(
            f"Triton could compile none of the {len(failures)} configurations of the kernel {name} for "
            f"{target.backend} {target.arch}: {failures[0]}"
        )
    passed, types = _arguments(kernel, kernel.configs[0])
    return Binaries(
        types=types,
        changed=_places(passed, kernel.mutated_arg_names),
        zeroed=_places(passed, kernel.reset_to_zero_arg_names),
        variants=tuple(variants),
    )


def _compile(kernel: Any, config: Any, target: TritonTarget) -> Binary:
    import triton
    from torch._inductor.runtime.triton_compat import ASTSource, GPUTarget

    meta = kernel._create_compile_meta(config)
    text = ASTSource(kernel.fn, meta["signature"], meta["constants"], meta["configs"][0])
    of_launch = kernel.inductor_meta.get("backend_options", {})
    options = {**kernel._create_compile_options(config, meta), **of_launch, **dict(target.options)}
    # Triton does not verify files that it reads from its cache, so we store its output ourselves
    # and verify it.
    knobs = triton.knobs.compilation
    with knobs.scope():
        knobs.always_compile = True
        binary = triton.compile(text, target=GPUTarget(target.backend, target.arch, target.warp_size), options=options)
    if target.language not in binary.asm:
        raise NotSupportedError(
            f"Triton's back end {target.backend!r} produces {', '.join(binary.asm)}, but the target's language is "
            f"{target.language!r}: set TritonTarget.language to one that it produces"
        )
    grid = grid_formulas(kernel.inductor_meta, config, _arguments(kernel, config)[0])
    facts = binary.metadata._asdict()
    return binary_of(kernel.fn.__name__, str(config), facts, binary.asm[target.language], grid, target)


def binary_of(
    name: str,
    config: str,
    facts: Mapping[str, Any],
    code: str | bytes,
    grid: tuple[str, str, str],
    target: TritonTarget,
) -> Binary:
    """Return a binary with the metadata that its launch needs.

    Raises
    ------
    NotSupportedError
        If the kernel needs clusters or a cooperative launch.
    """
    if facts.get("num_ctas", 1) != 1:
        raise NotSupportedError(
            f"the kernel {name} has clusters of {facts['num_ctas']} blocks, which launches do not support"
        )
    if facts.get("launch_cooperative_grid"):
        raise NotSupportedError(
            f"the kernel {name} needs a cooperative launch, which is not supported: leave "
            "torch._inductor.config.triton.cooperative_reductions off"
        )
    hidden = [buffer for buffer in target.hidden if f"{buffer}_size" in facts]
    return Binary(
        config=config,
        code=code if isinstance(code, bytes) else code.encode(),
        entry=facts["name"],
        grid=grid,
        threads=facts["num_warps"] * facts.get("warp_size", target.warp_size),
        shared=facts["shared"],
        scratch=tuple((int(facts[f"{buffer}_size"] or 0), int(facts.get(f"{buffer}_align") or 1)) for buffer in hidden),
    )


def hidden_types(binary: Binary) -> list[str]:
    """Return the types of the pointers after a kernel's own arguments. Calls omit pointers without memory."""
    return ["void*" if size else "zero" for size, _ in binary.scratch]


def _arguments(kernel: Any, config: Any) -> tuple[list[str], tuple[str, ...]]:
    """Return the names and types of the arguments that calls pass."""
    from torch._inductor.runtime.triton_helpers import get_constexprs

    meta = kernel._create_compile_meta(config)
    constant = {kernel.fn.arg_names[place] for place in get_constexprs(kernel.fn)} & set(meta["constants"])
    names = [name for name in kernel.fn.arg_names if name not in constant]
    types = [_type(kernel, name, meta["signature"][name]) for name in names]
    # Grid sizes that calls pass.
    more = list(kernel.inductor_meta.get("extra_launcher_args", ()))
    return [*names, *more], (*types, *("kept" for _ in more))


def _type(kernel: Any, name: str, kind: str) -> str:
    if kind == "constexpr":
        return "kept"  # a number compiled into the kernel
    if kind.startswith("*"):
        # A program's own kernel uses arbitrary names, and lists all arguments that it changes.
        is_input = kernel.custom_kernel or name.startswith(("in_ptr", "arg_"))
        is_read = is_input and name not in kernel.mutated_arg_names
        return "const void*" if is_read else "void*"
    if kind in TYPES:
        return TYPES[kind]
    raise NotSupportedError(
        f"the kernel {kernel.fn.__name__} has an argument {name} of type {kind}, which launches don't support"
    )


def _places(passed: list[str], names: Any) -> tuple[int, ...]:
    return tuple(place for place, name in enumerate(passed) if name in names)
