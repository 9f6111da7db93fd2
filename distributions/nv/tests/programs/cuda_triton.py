# SPDX-License-Identifier: BSD-3-Clause
"""Compile functions with Triton for a fake CUDA GPU, and read the fake's launches.

    python cuda_triton.py LIBCUDA [fx_wrapper] [cpp_wrapper]

FAKE_CUDA_MAJOR sets the chip, and FAKE_CUDA_LAUNCHES the file of the launches. The driver checks the number and sizes
of a kernel's parameters, and the fake checks the block and the shared memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch._inductor.config
import triton
import triton.language as tl
from torch.nn import functional

import torch_outboard
from torch_outboard.compile.generators import generators

torch._inductor.config.compile_threads = 1
torch._inductor.config.test_configs.autotune_choice_desc_regex = ".*BLOCK_M=64"
LAUNCHES = Path(os.environ["FAKE_CUDA_LAUNCHES"])


def launch(function: Callable[..., torch.Tensor], *arguments: torch.Tensor, **options: object) -> list[str]:
    """Return the words of the last launch: name, grid, block, shared memory, and sizes and values of parameters."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, **options)
    compiled(*arguments)
    LAUNCHES.unlink()  # the measurements' launches
    result = compiled(*arguments)
    (line,) = LAUNCHES.read_text().splitlines()
    words = line.split()
    addresses = [f"8:{tensor.data_ptr()}" for tensor in (*arguments, result)]
    assert words[8 : 8 + len(addresses)] == addresses, (words, addresses)
    assert words[-2:] == ["8:0", "8:0"], "scratch that no kernel asks for"
    assert int(words[4]) % 32 == 0 and words[5:7] == ["1", "1"], words
    return words


@triton.jit
def add(x, y, n, factor, is_twice, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n) + factor
    tl.store(y + place, value * 2 if is_twice else value, mask=place < n)


def added(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 1.5, True, BLOCK=256, num_warps=4)
    return y


def own_kernel(x: torch.Tensor) -> None:
    """Call a program's own kernel directly and compiled."""
    LAUNCHES.unlink(missing_ok=True)
    y = added(x)
    (line,) = LAUNCHES.read_text().splitlines()
    words = line.split()
    assert words[:8] == ["add", "508", "1", "1", "128", "1", "1", "0"], words
    addresses = [f"8:{tensor.data_ptr()}" for tensor in (x, y)]
    assert words[8:] == [*addresses, "4:130000", f"4:{0x3FC00000}", "1:1", "8:0", "8:0"], words
    words = launch(added, x)
    assert words[:8] == ["add", "508", "1", "1", "128", "1", "1", "0"], words


def covers(blocks: str, elements: int) -> bool:
    size = 1
    while -(-elements // size) > int(blocks):
        size *= 2
    return -(-elements // size) == int(blocks)


def main() -> None:
    torch_outboard.attach("nv", library=sys.argv[1])
    target = generators().driver.triton_target(0)
    assert target.arch == 10 * int(os.environ["FAKE_CUDA_MAJOR"]), target
    x, y = (torch.ones(1000, 130, device="nv") for _ in range(2))

    words = launch(lambda x, y: functional.gelu(x) * y + x, x, y)
    assert words[0].startswith("triton_poi") and covers(words[1], 130000) and words[7] == "0", words
    assert words[11] == "4:130000", words
    words = launch(lambda x: x.softmax(-1), x)
    assert words[0].startswith("triton_per") and covers(words[1], 1000), words
    assert words[10:12] == ["4:1000", "4:130"], words
    words = launch(lambda x: x.softmax(-1), x, dynamic=True)
    assert words[0].startswith("triton_red") and covers(words[1], 1000), words
    words = launch(lambda x: x.sum(), x[:100].clone())
    assert words[1:4] == ["1", "1", "1"], words
    words = launch(lambda x: x.bfloat16().t().contiguous(), x)
    assert words[0].startswith("triton_poi"), words
    words = launch(lambda x: x.cumsum(-1), x)
    assert covers(words[1], 1000), words

    own_kernel(x)
    for wrapper in sys.argv[2:]:
        words = launch(lambda x, y: functional.gelu(x) * y + x, x, y, options={wrapper: True})
        assert words[0].startswith("triton_poi") and covers(words[1], 130000) and words[11] == "4:130000", words

    # Code compiled for addresses that are multiples of 16 gets a copy of a tensor at another
    # address.
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 3)
    whole = torch.ones(1028, device="nv")
    compiled(whole[4:])
    LAUNCHES.unlink()
    compiled(whole[1:1025])
    (line,) = LAUNCHES.read_text().splitlines()
    address = int(line.split()[8].removeprefix("8:"))
    assert address % 16 == 0 and address != whole[1:].data_ptr(), line

    templates = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
    a, b = (torch.ones(256, 256, device="nv", dtype=torch.bfloat16) for _ in range(2))
    words = launch(lambda a, b: (a @ b).relu(), a, b, options=templates)
    assert words[0].startswith("triton_tem") and int(words[7]) > 0, words
    print(target.arch, words[7], "bytes of shared memory")


if __name__ == "__main__":
    main()
