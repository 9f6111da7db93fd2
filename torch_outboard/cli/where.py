# SPDX-License-Identifier: BSD-3-Clause
"""Where a device's operators run: which generator writes kernels, and which operators run on the CPU."""

from __future__ import annotations

from typing import Any

from torch_outboard.driver import Driver

__all__ = ["where_operators_run"]


def where_operators_run(driver: Driver, index: int) -> dict[str, Any]:
    """Return where the operators of an attached driver's device run, in the order in which providers are asked.

    `eager` has one line for each provider. `generator` is the generator of kernels for eager operators, and `compiler`
    the generator for torch.compile. Each is a string with its language and class, or None if there is none.
    """
    from torch_outboard import _C
    from torch_outboard._settings import generates_kernels, providers_of
    from torch_outboard.compile.generators import generators

    named = providers_of(driver)
    kernel_generators = generators()
    generator = _described(kernel_generators.eager()) if kernel_generators.has_eager else None
    compiler = kernel_generators.of(index)
    can_reach = _C.reaches_memory(index)
    generates = generates_kernels(driver, index)
    eager = []
    if registered := len(_C.native_operators()):
        eager.append(f"{registered} by kernels that are registered for the device")
    if generates:
        eager.append(f"by kernels generated in {generator}")
    elif generator is not None:
        why = f"`providers` are {', '.join(named)}" if named is not None else "the host reaches the device's memory"
        eager.append(
            f"not by kernels generated in {generator}, because {why}; OUTBOARD_PROVIDERS=native,generated,host uses "
            "them"
        )
    others = "the rest" if registered or generates else "all"
    if can_reach and (named is None or "host" in named):
        eager.append(f"{others} by the CPU's kernels, in the device's memory and in its streams' order")
    else:
        eager.append(f"{others} by the CPU's kernels on copies, which OUTBOARD_FALLBACK=error refuses")
    return {
        "eager": eager,
        "generator": generator,
        "compiler": None if compiler.name == "none" else _described(compiler),
    }


def _described(generator: Any) -> str:
    """Return a generator's language and class."""
    dialect = getattr(generator, "dialect", None)
    kind = type(generator).__name__
    return f"{generator.name} ({kind})" if dialect is None else f"{dialect.name} ({kind})"
