# SPDX-License-Identifier: BSD-3-Clause
"""A driver that builds programs, on the host: in Python, for launches, and in C++, for torch.compile."""

from __future__ import annotations

import ctypes
from pathlib import Path

from examples.pure_python_driver import PythonDriver
from torch_outboard import DriverError, Status, include_paths
from torch_outboard.compile import CodeGenerator

_ITEMS = 64


class ProgramGenerator(CodeGenerator):
    """Inductor's C++ for the CPU, passed to the driver as programs."""

    name = "programs"
    fuses_as_cpu = True

    def scheduling(self):
        import sympy
        from torch._inductor.utils import Placeholder
        from torch._inductor.virtualized import V
        from torch.utils._sympy.functions import CeilDiv

        from torch_outboard.codegen import letters
        from torch_outboard.codegen.formula import formula
        from torch_outboard.codegen.program import DeviceProgram
        from torch_outboard.compile.cpp import scheduling as of_cpp

        class ProgramScheduling(of_cpp.HostScheduling):
            def define_kernel(self, src_code, nodes, kernel_args=None):
                wrapper = V.graph.wrapper_code
                group = self.kernel_group
                _, call, types = (group.args if kernel_args is None else kernel_args).cpp_argdefs()
                words = ", ".join(
                    f"outboard_argument<{letters.argument_type(kind)}>(words[{i}])" for i, kind in enumerate(types)
                )
                # A number of this generator's own, which says that there is one block.
                arguments, kinds = [*call, str(_ITEMS)], [*types, "int32_t"]
                group.call_kernel = lambda wrapper, name: wrapper.generate_kernel_call(
                    name, arguments, triton=False, arg_types=kinds
                )
                if src_code in wrapper.src_to_kernel:
                    return wrapper.src_to_kernel[src_code]
                name = wrapper.src_to_kernel[src_code] = f"program_{wrapper.next_kernel_suffix()}"
                text = src_code.replace(str(Placeholder.KERNEL_NAME), name).replace("#pragma CMT", "//")
                text += of_cpp._ENTRY.format(kernel=name, arguments=words)
                items = sympy.Symbol("items", integer=True)
                grid = (formula(CeilDiv(items, _ITEMS), {items: len(types)}),)
                program = DeviceProgram(name, "cpp", tuple(kinds), text, "outboard_entry", grid)
                wrapper.define_program(program, nodes[0].get_device())
                return name

        return ProgramScheduling

    def wrapper(self):
        from torch_outboard.compile.wrapper.python import OutboardWrapper

        return OutboardWrapper

    def cpp_wrapper(self):
        from torch_outboard.compile.cpp.wrapper import OutboardCppWrapper

        return OutboardCppWrapper

    def model_header(self):
        return str(Path(include_paths()[0]) / "torch_outboard" / "compiled_model.h")

    def fx_wrapper(self):
        from torch_outboard.compile.fx.wrapper import OutboardFxWrapper

        return OutboardFxWrapper


class ProgramDriver(PythonDriver):
    name = "programs"
    code_generator = ProgramGenerator

    def __init__(self, **options):
        super().__init__(**options)
        self.built = []  # (device, language, options)
        self.launched = []  # (kernel's name, grid, block, bytes of shared memory, arguments)
        self.programs = {}
        self.kernels = {}
        self.failures = []  # to be raised by the next builds
        self.before_build = lambda: None
        self.is_busy = False  # events are not done then

    def event_query(self, device, event):
        return not self.is_busy

    def stream_query(self, device, stream):
        return not self.is_busy

    def program_build(self, device, language, code, options):
        self.built.append((device, language, options))
        self.before_build()
        if self.failures:
            raise self.failures.pop()
        handle = next(self.handles)
        if language == "python":
            try:
                self.programs[handle] = {}
                exec(compile(code.decode(), "<program>", "exec"), self.programs[handle])
            except SyntaxError as error:
                raise DriverError(f"line {error.lineno}: {error.msg}", Status.INVALID_ARGUMENT) from error
        elif language == "cpp":
            from torch_outboard.compile.runtime.library import KernelCache

            self.programs[handle] = KernelCache.load(code.decode())
        else:
            raise DriverError(f"programs are built from 'python' or 'cpp', not {language!r}", Status.INVALID_ARGUMENT)
        return handle

    def program_destroy(self, device, program):
        del self.programs[program]

    def kernel_get(self, device, program, name):
        built = self.programs[program]
        if isinstance(built, dict) and name not in built:
            raise DriverError(f"the program has no {name!r}", Status.NOT_FOUND)
        function = built[name] if isinstance(built, dict) else _entry(getattr(built, name))
        handle = next(self.handles)
        self.kernels[handle] = (name, function)
        return handle

    def kernel_launch(self, device, stream, kernel, grid, block, args, shared_memory, cluster, is_cooperative):
        name, function = self.kernels[kernel]
        self.launched.append((name, grid, block, shared_memory, args))
        function(*(value for _, value in args))


def _entry(function):
    def call(*values):
        words = (ctypes.c_uint64 * len(values))()
        for i, value in enumerate(values):
            words[i] = value if isinstance(value, int) else int.from_bytes(value, "little")
        function(words)

    return call
