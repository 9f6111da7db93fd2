# SPDX-License-Identifier: BSD-3-Clause
"""Compile every kernel in Triton of the test models for NVIDIA's GPUs, without a GPU: `make compile-only`.

    python compile_only.py [ARCH...]    # such as 90; by default 80, 90 and 100

The models train for a step on devices that compile for these chips and launch nothing. Every configuration is compiled,
and under max-autotune those of products too. An operator without a kernel runs on the host, on memory that holds zeros
in place of kernels' results.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from kernels.test_models import Gpt, Residual  # noqa: E402

import torch_outboard  # noqa: E402
from examples.pure_python_driver import PythonDriver  # noqa: E402
from torch_outboard import DriverError, Status  # noqa: E402
from torch_outboard.driver import TritonTarget  # noqa: E402

ARCHITECTURES = [int(number) for number in sys.argv[1:]] or [80, 90, 100]
ELF = b"\x7fELF"


class CompileOnlyDriver(PythonDriver):
    """A driver with one device for each chip, which stores only the names of kernels."""

    name = "compile_only"
    code_generator = "triton"

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.programs: dict[int, tuple[int, bytes]] = {}  # program -> device and binary
        self.kernels: dict[int, str] = {}
        self.launches = [0] * self.devices

    def device_properties(self, device: int) -> object:
        # An H100's, whatever the chip: they decide which configurations there are.
        return dataclasses.replace(
            super().device_properties(device),
            architecture=f"sm_{ARCHITECTURES[device]}",
            multi_processor_count=132,
            warp_size=32,
            max_threads_per_block=1024,
            max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536,
        )

    def triton_target(self, device: int) -> TritonTarget:
        hidden = ("global_scratch", "profile_scratch")
        return TritonTarget("cuda", ARCHITECTURES[device], "cubin", 32, hidden=hidden)

    def program_build(self, device: int, language: str, code: bytes, options: str) -> int:
        if language != "cubin" or not bytes(code).startswith(ELF):
            raise DriverError(f"{language} is no cubin", Status.INVALID_ARGUMENT)
        program = next(self.handles)
        self.programs[program] = device, bytes(code)
        return program

    def program_destroy(self, device: int, program: int) -> None:
        pass

    def kernel_get(self, device: int, program: int, name: str) -> int:
        if name.encode() not in self.programs[program][1]:
            raise DriverError(f"the program has no kernel {name!r}", Status.NOT_FOUND)
        kernel = next(self.handles)
        self.kernels[kernel] = name
        return kernel

    def kernel_launch(self, device: int, *arguments: object) -> None:
        self.launches[device] += 1


def steps(device: torch.device) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the functions to compile, with their names."""
    words, images = torch.randint(50, (4, 16)).to(device), torch.randn(4, 3, 36, 34).to(device)
    classes = torch.randint(10, (4,)).to(device)

    def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        update = torch.compile(optimizer.step)

        @torch.compile
        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device.type, torch.bfloat16):
                return functional.cross_entropy(model(x), y)

        def step() -> None:
            loss(x, y).backward()
            update()

        return step

    yield "GPT", train(Gpt(), words, words.roll(-1, 1).flatten())
    yield "ResNet", train(Residual(), images, classes)
    x = torch.randn(100, 300).to(device)
    yield "reductions", lambda: torch.compile(lambda x: (x.cumsum(-1), x.argmax(-1), x.var(0), x.sort(-1)))(x)
    a, b = (torch.randn(256, 256).to(device, torch.bfloat16) for _ in range(2))
    templates = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
    yield "products", lambda: torch.compile(lambda a, b: (a @ b).relu(), options=templates)(a, b)


def main() -> None:
    driver = CompileOnlyDriver(devices=len(ARCHITECTURES))
    torch_outboard.attach(driver)
    for index, architecture in enumerate(ARCHITECTURES):
        for name, step in steps(torch.device(driver.name, index)):
            torch._dynamo.reset()
            before = len(driver.programs)
            step()
            count = len(driver.programs) - before
            print(f"sm_{architecture} {name}: {count} kernels and configurations", flush=True)
            if count == 0:
                raise SystemExit(f"{name} has no kernel")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # nothing that is kept: all of it is compiled
        main()
