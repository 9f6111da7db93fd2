# SPDX-License-Identifier: BSD-3-Clause
"""Lose a CUDA device to an illegal address, and check what still works: python lost_device.py [LIBRARY]

LIBRARY is a libcuda; fake_cuda.cpp has its own kernel "illegal".
"""

from __future__ import annotations

import ctypes
import sys

import torch

import torch_outboard

LIBRARY = sys.argv[1] if len(sys.argv) > 1 else "libcuda.so.1"
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry illegal() {
  .reg .b32 %r<2>;
  .reg .b64 %d<2>;
  mov.u64 %d1, 64;
  mov.u32 %r1, 7;
  st.global.u32 [%d1], %r1;
  ret;
}
"""


def launch_illegal(stream: int) -> None:
    """Queue the kernel without the driver, in the context that the driver left current."""
    cuda = ctypes.CDLL(LIBRARY)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        assert code == 0, f"{name} gave {code}"

    call("cuModuleLoadDataEx", ctypes.byref(module), PTX, 0, None, None)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"illegal")
    call("cuLaunchKernel", function, *[1] * 6, 0, ctypes.c_void_p(stream), None, None)


def message_of(use: object) -> str:
    try:
        use()  # type: ignore[operator]
    except torch.AcceleratorError as error:
        return str(error)
    raise AssertionError(f"{use} raised no AcceleratorError")


torch_outboard.attach("nv", library=LIBRARY)
ours = torch.ones(4, device="nv")
torch.nv.synchronize()
launch_illegal(torch_outboard._C.current_raw_stream(0))
first = message_of(torch.nv.synchronize)
assert "illegal" in first.lower(), first
for use in (
    torch.nv.synchronize,
    lambda: torch.ones(2, device="nv"),
    lambda: ours + 1,
    lambda: ours.cpu(),
    lambda: torch.Event("nv").record(),
):
    later = message_of(use)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in later, later
host = torch.arange(4.0, requires_grad=True)
(host * host).sum().backward()
assert host.grad.tolist() == [0, 2, 4, 6]
print("the device is lost, the CPU goes on")
