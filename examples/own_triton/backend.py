# SPDX-License-Identifier: BSD-3-Clause
"""A back end of Triton: from Triton's first language to the binary that the device loads.

This binary is the first language itself, as text. A vendor's back end lowers it, in C++, by passes of MLIR.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

import triton.backends
from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend
from triton.language.extra.cuda import libdevice  # names of functions that the chip has too

NAME = "own_triton"
LANGUAGE = "own_triton_ir"
SPILL = 24  # bytes for each block of the grid


@dataclass(frozen=True)
class Options:
    num_warps: int = 4
    num_stages: int = 2
    num_ctas: int = 1
    warp_size: int = 16
    debug: bool = False
    sanitize_overflow: bool = False
    enable_fp_fusion: bool = True
    arch: str = "t1"
    backend_name: str = NAME
    supported_fp8_dtypes: tuple = ()
    deprecated_fp8_dot_operand_dtypes: tuple = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple = ("ieee",)
    max_num_imprecise_acc_default: int = 0
    extern_libs: dict | None = None
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    shared: int = 64

    def hash(self):
        return repr(self)


class OwnTritonBackend(BaseBackend):
    binary_ext = LANGUAGE

    @staticmethod
    def supports_target(target):
        return target.backend == NAME

    def hash(self):
        return f"{NAME} {self.target.arch}"

    def parse_options(self, options):
        known = {field.name for field in fields(Options)}
        return Options(**{name: value for name, value in options.items() if name in known})

    def pack_metadata(self, metadata):
        return ()

    def get_codegen_implementation(self, options):
        return {"min_dot_size": lambda left, right: (1, 1, 1)}

    def get_module_map(self):
        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, context):
        pass

    def add_stages(self, stages, options, language):
        stages["ttir"] = self.simplify
        stages[LANGUAGE] = lambda module, metadata: self.finish(module, metadata, options)

    # Triton's first language, simplified. The vendor decides how it is lowered from here.
    @staticmethod
    def simplify(module, metadata):
        manager = ir.pass_manager(module.context)
        passes.common.add_inliner(manager)
        passes.common.add_canonicalizer(manager)
        passes.common.add_cse(manager)
        manager.run(module, "simplify")
        return module

    @staticmethod
    def finish(module, metadata, options):
        """Return the binary, and record what a launch needs: entry, shared memory, memory of hidden pointers."""
        text = str(module)
        metadata["name"] = re.search(r"tt.func public @(\w+)", text)[1]
        metadata.update(shared=options.shared, spill_size=SPILL, spill_align=8, log_size=0, log_align=1)
        return text.encode()


class NoDriver:
    """Triton's driver for this back end, which is never active: torch-outboard's driver launches the kernels."""

    @staticmethod
    def is_active():
        return False


# An installed package names its back end by the entry point group "triton.backends" instead.
triton.backends.backends[NAME] = triton.backends.Backend(compiler=OwnTritonBackend, driver=NoDriver)
