# SPDX-License-Identifier: BSD-3-Clause
"""The generator 'triton': Inductor's kernels in Triton, for the driver's target."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

from torch_outboard._errors import NotSupportedError
from torch_outboard.compile.cpp.generator import WrappingGenerator
from torch_outboard.driver import Driver

__all__ = ["TritonGenerator", "wanted_triton"]


class TritonGenerator(WrappingGenerator):
    """A generator of Triton kernels. The driver's `triton_target(device)` returns the target."""

    name = "triton"
    is_gpu = True

    def scheduling(self) -> type[Any]:
        from torch_outboard.compile.triton.scheduling import scheduling_for

        return scheduling_for(self.driver)

    def prepare_graph(self, gm: Any) -> None:
        from torch_outboard._compat.triton import share_templates
        from torch_outboard.compile.triton.templates import choose_templates

        check_triton(self.driver)
        share_templates(self.driver.name, self.driver.triton_target(0).backend)
        choose_templates(self.driver)

    def cache_key(self) -> dict[str, str]:
        from torch_outboard.compile.triton.binary import load_backend

        target = self.driver.triton_target(0)
        load_backend(target)
        import triton

        return {"triton": triton.__version__, "target": repr(target)}


def check_triton(driver: Driver) -> None:
    """Raise NotSupportedError if Triton is missing, is not the version that torch requires, or lacks the target."""
    from torch_outboard.compile.triton.binary import load_backend

    load_backend(driver.triton_target(0))
    import triton

    wanted = wanted_triton()
    if wanted is not None and _minor(triton.__version__) != _minor(wanted):
        raise NotSupportedError(
            f"this torch needs Triton {wanted}, but Triton {triton.__version__} is installed: install "
            f"triton=={wanted}, or choose another code generator"
        )


def wanted_triton() -> str | None:
    """Return the version of Triton that the installed torch requires, or None if the build requires none."""
    for requirement in importlib.metadata.requires("torch") or ():
        if match := re.match(r"triton[=~ ]*=\s*([\w.+]+)", requirement):
            return match[1]
    return None


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
