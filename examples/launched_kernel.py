# SPDX-License-Identifier: BSD-3-Clause
"""An operator whose kernel is text in the driver's language, built and launched from Python.

import torch_outboard
from examples import launched_kernel
torch_outboard.attach("opencl")
launched_kernel.register("opencl_c")
launched_kernel.swish(torch.randn(1000, device="opencl"), 1.5)
"""

import torch

import torch_outboard

__all__ = ["SOURCES", "register", "swish"]

SOURCES = {
    "opencl_c": """
__kernel void swish(__global const float* x, __global float* out, float beta, long n) {
  const long i = get_global_id(0);
  if (i < n) out[i] = x[i] / (1 + exp(-beta * x[i]));
}
""",
    "cuda": """
extern "C" __global__ void swish(const float* x, float* out, float beta, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] / (1 + expf(-beta * x[i]));
}
""",
}
THREADS = 64

# Register the operator with torch: its schema, its CPU kernel, its
# meta function, its gradient.
library = torch.library.Library("outboard_examples", "FRAGMENT")
library.define("swish(Tensor x, float beta) -> Tensor")
library.impl("swish", lambda x, beta: x * torch.sigmoid(beta * x), "CPU")
library.impl("swish", lambda x, beta: torch.empty_like(x), "Meta")


def _gradient(ctx, grad):
    (x,) = ctx.saved_tensors
    gate = torch.sigmoid(ctx.beta * x)
    return grad * (gate + ctx.beta * x * gate * (1 - gate)), None


def _save(ctx, inputs, output):
    x, ctx.beta = inputs
    ctx.save_for_backward(x)


torch.library.register_autograd("outboard_examples::swish", _gradient, setup_context=_save, lib=library)


def register(language: str) -> None:
    """Build the text in `language` and register it as the operator's kernel on the attached driver's devices."""
    kernel = torch_outboard.build_kernel(
        SOURCES[language], "swish", language=language, signature="const float32*, float32*, float32, int64"
    )

    def run(x, beta):
        if x.dtype != torch.float32 or not x.is_contiguous():
            return NotImplemented  # another provider has a kernel for these
        out = torch.empty_like(x)
        torch_outboard.launch(kernel, (x, out, beta, x.numel()), grid=-(-x.numel() // THREADS), block=THREADS)
        return out

    torch_outboard.register_kernel("outboard_examples::swish", run)


def swish(x: torch.Tensor, beta: float) -> torch.Tensor:
    """Return x * sigmoid(beta * x)."""
    return torch.ops.outboard_examples.swish(x, beta)
