# SPDX-License-Identifier: BSD-3-Clause
"""What a driver says of Triton's kernels for its devices."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TritonTarget"]


@dataclass(frozen=True)
class TritonTarget:
    """What Triton compiles for, and what its launcher would know.

    It is all that a vendor says for `code_generator = "triton"`.

    Attributes
    ----------
    backend : str
        The back end in Triton, by the name of its GPUTarget, such as "cuda".
    arch : int or str
        The chip, as that back end wants it.
    language : str
        Of the binary: the name of the back end's last stage, and a language that the driver's `program_build` takes.
    warp_size : int
        Threads of a warp; a block has as many times num_warps.
    hidden : tuple of str
        Pointers that the back end adds behind a kernel's own arguments, in their order, by the names that its metadata
        knows them by: for "global_scratch" it has `global_scratch_size`, in bytes for each block of the grid, and
        `global_scratch_align`. One of 0 bytes is passed as 0, one that the metadata hasn't got is none.
    options : tuple of pairs
        More options for the back end, by their names.
    module : str
        Imported before anything is compiled, in worker processes too: it may make the back end known to Triton. A back
        end of an installed package needs none.
    """

    backend: str
    arch: int | str
    language: str
    warp_size: int
    hidden: tuple[str, ...] = ()
    options: tuple[tuple[str, object], ...] = ()
    module: str = ""
