# SPDX-License-Identifier: BSD-3-Clause
"""A driver's description of Triton's kernels for its devices."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TritonTarget"]


@dataclass(frozen=True)
class TritonTarget:
    """The target that Triton compiles for, and the facts about it that a launch needs.

    A driver with `code_generator = "triton"` needs no other description.

    Attributes
    ----------
    backend : str
        The back end in Triton, by the name of its GPUTarget, such as "cuda".
    arch : int or str
        The chip, as that back end expects it.
    language : str
        The binary's language: the name of the back end's last stage, and a language that the driver's `program_build`
        takes.
    warp_size : int
        Threads of a warp; a block has num_warps times as many.
    hidden : tuple of str
        Pointers that the back end adds after a kernel's own arguments, in order, by their names in the back end's
        metadata. For "global_scratch" the metadata has `global_scratch_size`, in bytes for each block of the grid, and
        `global_scratch_align`. A pointer to 0 bytes is passed as 0. A pointer that the metadata lacks is left out.
    options : tuple of pairs
        More options for the back end, by their names.
    module : str
        Imported before the first compilation, in worker processes too: the module may register the back end with
        Triton. An installed package's back end needs no module.
    """

    backend: str
    arch: int | str
    language: str
    warp_size: int
    hidden: tuple[str, ...] = ()
    options: tuple[tuple[str, object], ...] = ()
    module: str = ""
