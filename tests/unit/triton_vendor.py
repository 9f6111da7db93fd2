# SPDX-License-Identifier: BSD-3-Clause
"""A vendor with a chip of its own: a back end for Triton that is no NVIDIA's, and a driver that runs what it makes."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from dataclasses import dataclass, fields

import triton.backends
from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend
from triton.language.extra.cuda import libdevice  # names of functions, which the chip has too

from torch_outboard import DriverError, Status
from torch_outboard.driver import TritonTarget
from unit import ttir
from unit.programs import ProgramDriver

SPILL = 24  # bytes for each block
SHARED = 4096


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
    backend_name: str = "toychip"
    supported_fp8_dtypes: tuple = ()
    deprecated_fp8_dot_operand_dtypes: tuple = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple = ("ieee",)
    max_num_imprecise_acc_default: int = 0
    extern_libs: dict | None = None
    instrumentation_mode: str = ""
    shared: int = 64

    def hash(self):
        return repr(self)


class ToyBackend(BaseBackend):
    binary_ext = "toycode"

    @staticmethod
    def supports_target(target):
        return target.backend == "toychip"

    def hash(self):
        return f"toychip {self.target.arch}"

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
        stages["toycode"] = lambda module, metadata: self.finish(module, metadata, options)

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
        text = str(module)
        metadata["name"] = re.search(r"tt.func public @(\w+)", text)[1]
        metadata.update(shared=options.shared, spill_size=SPILL, spill_align=8, log_size=0, log_align=1)
        return text.encode()


class NoDriver:
    @staticmethod
    def is_active():
        return False


triton.backends.backends["toychip"] = triton.backends.Backend(compiler=ToyBackend, driver=NoDriver)


class ToyDriver(ProgramDriver):
    """Runs TTIR on the host. Behind a kernel's arguments it has memory for each block, and a pointer that is null."""

    name = "toychip"
    code_generator = "triton"
    target = TritonTarget(
        "toychip", "t1", "toycode", 16, hidden=("spill", "log", "absent"), module="unit.triton_vendor"
    )
    refuses = staticmethod(lambda grid, shared: shared > SHARED)

    def device_properties(self, device):
        return dataclasses.replace(
            super().device_properties(device),
            multi_processor_count=4,
            warp_size=16,
            max_threads_per_block=512,
            max_threads_per_multi_processor=1024,
            regs_per_multiprocessor=65536,
        )

    def triton_target(self, device):
        return self.target

    def program_build(self, device, language, code, options):
        if language != "toycode":
            return super().program_build(device, language, code, options)
        self.built.append((device, language, options))
        handle = next(self.handles)
        self.programs[handle] = code.decode()
        return handle

    def kernel_get(self, device, program, name):
        if not isinstance(self.programs[program], str):
            return super().kernel_get(device, program, name)
        handle = next(self.handles)
        self.kernels[handle] = (name, ttir.kernel(self.programs[program], name))
        return handle

    def kernel_launch(self, device, stream, kernel, grid, block, args, shared_memory, cluster, is_cooperative):
        name, function = self.kernels[kernel]
        if not isinstance(function, ttir.Kernel):
            return super().kernel_launch(
                device, stream, kernel, grid, block, args, shared_memory, cluster, is_cooperative
            )
        if self.refuses(grid, shared_memory):
            raise DriverError(
                f"{shared_memory} bytes of shared memory are more than there are", Status.INVALID_ARGUMENT
            )
        self.launched.append((name, grid, block, shared_memory, args))
        *own, spill, log = args
        assert log == (0, 0), log
        assert len(own) == len(function.parameters), (own, function.parameters)
        ctypes.memset(spill[1], 0x5A, SPILL * grid[0] * grid[1] * grid[2])
        function(grid, [_number(value, kind) for (_, value), (_, kind) in zip(own, function.parameters, strict=True)])
        return None


def _number(value, kind):
    if isinstance(value, int):
        assert kind.startswith("!tt.ptr"), kind
        return value
    types = {
        "i1": ctypes.c_bool,
        "i8": ctypes.c_int8,
        "i16": ctypes.c_int16,
        "i32": ctypes.c_int32,
        "i64": ctypes.c_int64,
        "f32": ctypes.c_float,
        "f64": ctypes.c_double,
    }
    assert len(value) == ctypes.sizeof(types[kind]), (value, kind)
    return types[kind].from_buffer_copy(value).value
