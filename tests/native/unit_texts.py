# SPDX-License-Identifier: BSD-3-Clause
"""Compile generated kernels with matrix units as CUDA C++ with NVRTC, for several chips, without a GPU.

    python unit_texts.py NVRTC ARCH...    # such as 80 90 100

A text with matrix units says that it needs sm_80. Prints each text that compiles for an earlier chip although it does,
the compiler's words about each text that it refuses and should not, and the number of texts with and without units.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection

os.environ["OUTBOARD_KERNEL_CACHE_DIR"] = os.environ["OUTBOARD_KERNEL_PACKS"] = ""

import torch

import torch_outboard
from torch_outboard._discovery import find_driver
from torch_outboard.codegen.dialects.group_limits import GroupLimits
from torch_outboard.kernels import builder
from torch_outboard.kernels.plans import lower

NEED = "matrix units by PTX need sm_80"


class Texts(find_driver("sim")):
    kernel_generator = "ptx_cuda_cpp"


def kernels(dtype: torch.dtype, only: Collection[str] = ()) -> dict[str, tuple[bytes, str]]:
    """Return the texts and the options of products, with operands that lie in several ways, convolution, attention."""

    def made(*size: int) -> torch.Tensor:
        return torch.ones(size, dtype=dtype, device="sim")

    def last(x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.channels_last)

    none, one, two, attention = [0, 0], [1, 1], [2, 2], "aten::_scaled_dot_product_fused_attention_overrideable"
    channels = [last(tensor) for tensor in (made(2, 64, 9, 9), made(64, 64, 3, 3))]
    pixels, of_groups = (channels[0], *channels), (channels[0], made(64, 1, 3, 3))
    heads = [made(1, 2, rows, 128) for rows in (70, 90, 90)]  # which take the most memory of a group
    mask, sums, drawn = made(70, 90), torch.ones(1, 2, 70, device="sim"), torch.ones((), dtype=torch.long, device="sim")
    slopes, sides = (
        (heads[0], *heads, bias, wanted, heads[0], sums, None, None, 70, 90)
        for bias, wanted in ((mask, [False, False, False, True]), (None, [True, True, True, False]))
    )
    calls = {
        "rows": ("aten::mm", made(70, 90), made(90, 80)),
        "columns": ("aten::mm", made(90, 70).t(), made(80, 90).t()),
        "steps": ("aten::mm", made(70, 180)[:, ::2], made(90, 160)[:, ::2]),
        "many steps": ("aten::mm", made(16, 4096), made(4096, 90)),
        "large tiles": ("aten::baddbmm", made(800), made(9, 700, 40), made(9, 40, 800), 0.5, 2),
        "images": ("aten::convolution", made(2, 8, 9, 9), made(10, 8, 3, 3), made(10), one, one, one, False, none, 1),
        "channels": ("aten::convolution", *channels, None, one, one, one, False, none, 1),
        "slopes": ("aten::convolution_backward", *pixels, None, one, one, one, False, none, 1, [True, True, False]),
        "phases": ("aten::convolution", *channels, None, two, one, one, True, one, 1),
        "groups": ("aten::convolution", *of_groups, None, one, one, one, False, none, 64),
        "heads": (attention, *heads, None, 0.0, True, False, None),
        "mask": (f"{attention}_backward", *slopes, 0.0, False, drawn, drawn, None),
        "dropped": (attention, *heads, None, 0.1, True, False, None),
        "sides": (f"{attention}_backward", *sides, 0.0, True, drawn, drawn, None),
        "dropped slopes": (f"{attention}_backward", *slopes, 0.1, True, drawn, drawn, None),
        "dropped sides": (f"{attention}_backward", *sides, 0.1, True, drawn, drawn, None),
    }
    kernels_by_name = {}
    for name in only or calls:
        operator, *arguments = calls[name]
        answer = builder.build(operator, arguments, 0, False, 0)
        assert not answer.refusal, f"{name}: {answer.refusal}"
        texts = list({kernel.code: kernel for kernel in answer.kernels}.values())
        assert texts[-1].entry.endswith(("_of_units", "_of_parts")) == (name != "groups"), texts[-1].entry
        assert (texts[-1].entry == "ob_depthwise_convolution") == (name == "groups")
        assert any(b"band) * 128" in text.code for text in texts) == (name == "large tiles")
        for number, text in enumerate(texts):
            kernels_by_name[f"{name} {number} of {dtype}"] = text.code, text.options
    return kernels_by_name


def refused(nvrtc: ctypes.CDLL, code: bytes, options: list[str]) -> str:
    """Return the compiler's words if it refuses a text."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, None, 0, None, None) == 0
    words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    status = nvrtc.nvrtcCompileProgram(program, len(options), words)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if status == 0:
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        assert size.value > 0
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode() if status else ""


def main() -> None:
    nvrtc = ctypes.CDLL(sys.argv[1].split(os.pathsep)[0])
    torch_outboard.attach(Texts)
    lower.limits_of = lambda *_: GroupLimits()  # the simulated device has less
    torch.backends.cuda.matmul.allow_tf32 = True
    rounded = kernels(torch.float32, ["rows", "columns", "steps", "many steps", "large tiles", "channels", "slopes"])
    texts = kernels(torch.bfloat16) | kernels(torch.float16, ["rows"]) | rounded
    lower.dynamic_memory = lambda *_: 100 << 10  # the simulated device reports none
    large = kernels(torch.bfloat16, ["large tiles", "channels", "slopes", "mask", "sides"])
    assert any(b"ob_dynamic" in code for code, _ in large.values())
    texts |= {f"{name} with dynamic memory": text for name, text in large.items()}
    for architecture in sys.argv[2:]:
        for name, (code, options) in texts.items():
            words = refused(nvrtc, code, [f"--gpu-architecture=sm_{architecture}", *options.split()])
            if (NEED in words) != (NEED.encode() in code and int(architecture) < 80) or (words and NEED not in words):
                print(f"{name}, sm_{architecture}: {words or 'it compiles'}")
    with_units = sum(NEED.encode() in code for code, _ in texts.values())
    print(f"{with_units} texts with units, {len(texts) - with_units} without")


if __name__ == "__main__":
    main()
