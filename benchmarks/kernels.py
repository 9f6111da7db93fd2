# SPDX-License-Identifier: BSD-3-Clause
"""Measure generated kernels of eager operators against torch's own kernels for the same hardware.

torch's own kernels are the CPU's if the device is the CPU, and those of torch's CUDA device on a GPU:

    benchmarks/kernels.py --driver nv       # or opencl, with OUTBOARD_OPENCL_PLATFORM=NVIDIA
    OUTBOARD_OCL_HOST_ACCESS=0 benchmarks/kernels.py  # a CPU; else torch.compile makes C++ on both sides

Both alternate in one process, in an order that changes each round. A figure is the median of the rounds, the ratio the
median of the rounds' ratios. On a CPU the host waits for each call, on a GPU for every twenty.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _results import RESULTS, about, results_of, write

os.environ.setdefault("OUTBOARD_PROVIDERS", "native,generated")
os.environ.setdefault("OUTBOARD_FALLBACK", "error")

import torch
import torch.nn.functional as F

import torch_outboard

BIG = (4096, 4096)
SQUARE = (1024, 1024)


@dataclass(frozen=True)
class Case:
    """A function, the sizes and the dtype of its arguments, and the ratios to reach on a CPU and on a GPU.

    A `compiled` case goes through `torch.compile` on both.
    """

    function: Callable[..., torch.Tensor]
    sizes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float32
    cpu_bar: float | None = None
    gpu_bar: float | None = None
    machines: tuple[str, ...] = ("cpu", "gpu")
    compiled: bool = False

    def arguments(self) -> list[torch.Tensor]:
        return [torch.randn(size).to(self.dtype) for size in self.sizes]


def fused(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return F.gelu(x) * y + z


def row_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


def column_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(1)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:])


def embedding(table: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    return F.embedding(where.abs().mul(1000).long() % table.shape[0], table)


def embedding_gradient(rows: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    indices = where.abs().mul(1000).long() % 50257
    return torch.ops.aten.embedding_dense_backward(rows, indices, 50257, -1, False)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    return torch.autograd.grad(attention(*inputs), inputs, q)[0]


def attention_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Run the same attention by operators: autograd supports one accelerator in a process, and here there are two."""
    aten = torch.ops.aten
    if q.device.type == "cuda":
        out, *kept, _ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
        *kept, seed, offset = kept
        return aten._scaled_dot_product_flash_attention_backward(q, q, k, v, out, *kept, 0.0, True, seed, offset)[0]
    out, *kept, _ = aten._scaled_dot_product_fused_attention_overrideable(q, k, v, None, 0.0, True)
    *kept, seed, offset = kept
    gradients = aten._scaled_dot_product_fused_attention_overrideable_backward(
        q, q, k, v, None, [True, True, True, False], out, *kept, 0.0, True, seed, offset
    )
    return gradients[0]


ON_GPU, ON_CPU = ("gpu",), ("cpu",)
HEADS, FEW_HEADS = ((8, 12, 1024, 64),) * 3, ((1, 8, 1024, 64),) * 3


def on_cpu_compiled(function: Callable[..., torch.Tensor], *sizes: tuple[int, ...]) -> Case:
    return Case(function, sizes, cpu_bar=1.1, machines=ON_CPU, compiled=True)


CASES: dict[str, Case] = {
    "product 1024³ float32": Case(torch.mm, (SQUARE, SQUARE), cpu_bar=1.3),
    "product 1024³, transposed": Case(lambda x, y: x @ y.t(), (SQUARE, SQUARE)),
    "product 1024³ bfloat16": Case(torch.mm, (SQUARE, SQUARE), torch.bfloat16),
    "product 4096³ float32": Case(torch.mm, (BIG, BIG), machines=ON_GPU),
    "product 4096³ bfloat16": Case(torch.mm, (BIG, BIG), torch.bfloat16, machines=ON_GPU),
    "convolution 3×3, 64 channels of 56², 8 images": Case(
        lambda x, w: F.conv2d(x, w, padding=1), ((8, 64, 56, 56), (64, 64, 3, 3))
    ),
    "attention, causal, 8 heads of 1024 × 64": Case(attention, FEW_HEADS, machines=ON_CPU),
    "the same and its gradients": Case(attention_gradients, FEW_HEADS, machines=ON_CPU),
    "attention, causal, 8 × 12 heads of 1024 × 64, bfloat16": Case(attention, HEADS, torch.bfloat16, machines=ON_GPU),
    "that and its gradients": Case(attention_backward, HEADS, torch.bfloat16, machines=ON_GPU),
    "gelu·mul·add 16 M, three calls": Case(fused, (BIG, BIG, BIG), gpu_bar=1.1),
    "add 16 M bfloat16": Case(torch.add, (BIG, BIG), torch.bfloat16, gpu_bar=1.1, machines=ON_GPU),
    "row sums 4096²": Case(row_sums, (BIG,), gpu_bar=1.1),
    "column sums 4096²": Case(column_sums, (BIG,), gpu_bar=1.1),
    "sum 16 M": Case(torch.sum, (BIG,), gpu_bar=1.1, machines=ON_GPU),
    "softmax 4096²": Case(softmax, (BIG,), gpu_bar=1.1),
    "layer norm 4096²": Case(layer_norm, (BIG,), gpu_bar=1.1),
    "cast to bfloat16, 16 M": Case(lambda x: x.to(torch.bfloat16), (BIG,), gpu_bar=1.1, machines=ON_GPU),
    "transposed copy 4096²": Case(lambda x: x.t().contiguous(), (BIG,), gpu_bar=1.1, machines=ON_GPU),
    "embedding, 8192 rows of 768": Case(embedding, ((50257, 768), (8, 1024)), gpu_bar=1.1, machines=ON_GPU),
    "gradient of that embedding": Case(embedding_gradient, ((8, 1024, 768), (8, 1024)), gpu_bar=1.1, machines=ON_GPU),
    "gelu·mul·add 16 M, compiled": on_cpu_compiled(fused, BIG, BIG, BIG),
    "row sums 4096², compiled": on_cpu_compiled(row_sums, BIG),
    "column sums 4096², compiled": on_cpu_compiled(column_sums, BIG),
    "softmax 4096², compiled": on_cpu_compiled(softmax, BIG),
    "layer norm 4096², compiled": on_cpu_compiled(layer_norm, BIG),
}


def measure(case: Case, device: torch.device, reference: torch.device, rounds: int) -> dict[str, float]:
    inputs = case.arguments()
    theirs, ours = [tensor.to(reference) for tensor in inputs], [tensor.to(device) for tensor in inputs]
    calls = 5 if reference.type == "cpu" else 20
    function = torch.compile(case.function, fullgraph=True, dynamic=False) if case.compiled else case.function

    def seconds(arguments: list[torch.Tensor]) -> float:
        if reference.type == "cpu":
            # OpenMP's threads wait for torch's next call for some milliseconds, on the processors
            # of the other side.
            time.sleep(0.05)
            function(*arguments)  # wakes the threads
            wait(arguments[0].device)
        begin = time.perf_counter()
        for _ in range(calls):
            result = function(*arguments)
        wait(arguments[0].device)
        elapsed = time.perf_counter() - begin
        del result
        return elapsed / calls

    for arguments in (ours, theirs):  # builds the kernels
        seconds(arguments)
    pairs = []
    for number in range(rounds):
        order = (ours, theirs) if number % 2 == 0 else (theirs, ours)
        first, second = (seconds(arguments) for arguments in order)
        pairs.append((first, second) if number % 2 == 0 else (second, first))
    return {
        "ours": statistics.median(pair[0] for pair in pairs) * 1e3,
        "theirs": statistics.median(pair[1] for pair in pairs) * 1e3,
        "ratio": statistics.median(pair[0] / pair[1] for pair in pairs),
    }


def keep_freed_memory() -> None:
    """Keep freed memory in the C library, as devices do; otherwise page faults dominate the CPU's figures."""
    mallopt = ctypes.CDLL(None).mallopt
    trim_threshold, mmap_max = -1, -4
    if not (mallopt(trim_threshold, 2**31 - 1) and mallopt(mmap_max, 0)):
        raise RuntimeError("mallopt refused to keep freed memory")


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    elif device.type != "cpu":
        torch.accelerator.synchronize(device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="opencl")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    options = parser.parse_args()
    keep_freed_memory()
    module = torch_outboard.attach(options.driver)
    if module.device_count() == 0:
        print("There is no such device here. For OpenCL scripts/test-tools build/tools installs a CPU's or says how.")
        return 0
    device = torch.device(torch_outboard.attached_driver().name, 0)
    properties: Any = module.get_device_properties(0)
    machine = properties.machine
    if machine not in ("cpu", "gpu") or (machine == "gpu" and not torch.cuda.is_available()):
        print(f"There is nothing to compare a device with that is a {machine!r}: a GPU is compared with torch's CUDA.")
        return 0
    reference = torch.device("cuda" if machine == "gpu" else "cpu")
    print(f"{properties.name}, {properties.driver_version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| case | generated, ms | torch's, ms | ratio | to reach | reached |\n|---|---:|---:|---:|---|---|")
    missed = False
    rows = {}
    for name, case in CASES.items():
        if machine not in case.machines:
            continue
        rows[name] = row = measure(case, device, reference, options.rounds)
        bar = case.cpu_bar if machine == "cpu" else case.gpu_bar
        reached = "" if bar is None else "yes" if row["ratio"] <= bar else "no"
        missed |= reached == "no"
        to_reach = "" if bar is None else f"≤ {bar} ×"
        print(f"| {name} | {row['ours']:.3f} | {row['theirs']:.3f} | {row['ratio']:.2f} | {to_reach} | {reached} |")
    of_gpu = results_of(options.driver) / f"kernels-{options.driver}-gpu.json"
    path = options.json or (of_gpu if machine == "gpu" else RESULTS / "kernels.json")
    write(path, {"about": about(properties), "milliseconds": rows})
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
