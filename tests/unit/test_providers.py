# SPDX-License-Identifier: BSD-3-Clause
"""The providers that operators ask: OUTBOARD_PROVIDERS and Driver.providers."""

from __future__ import annotations

import pytest

from torch_outboard.testing.plugin import RunPython

NEEDS = """
import os
import pytest, torch, torch_outboard
from torch_outboard import _C
from torch_outboard._discovery import find_driver
Sim = find_driver("sim")
"""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("native,hots", "OUTBOARD_PROVIDERS must name only native, generated, host, not 'hots'.*'host'"),
        ("host,native", "in the order native, generated, host, not host, native"),
        ("host,host", "each provider at most once"),
        ("native,", "not ''"),
        ("native,generated", "names 'generated', but the driver 'sim' has no kernel generator"),
    ],
)
def test_a_chain_that_makes_no_sense_attaches_nothing(run_python: RunPython, value: str, message: str) -> None:
    run_python(
        NEEDS
        + f"""
os.environ["OUTBOARD_PROVIDERS"] = {value!r}
with pytest.raises(ValueError, match={message!r}):
    torch_outboard.attach("sim")
assert torch_outboard.attached_driver() is None
"""
    )


def test_without_the_host_operators_run_on_copies(run_python: RunPython) -> None:
    run_python(
        NEEDS
        + """
os.environ["OUTBOARD_PROVIDERS"] = "native"
os.environ["OUTBOARD_FALLBACK"] = "silent"
torch_outboard.attach("sim")
assert (torch.ones(3, device="sim") + 1).tolist() == [2.0] * 3
assert {row.provider for row in torch_outboard.coverage()} == {"fallback"}
_C.set_fallback_mode("error")
with pytest.raises(torch_outboard.NotSupportedError, match="OUTBOARD_PROVIDERS excludes 'host'"):
    torch.ones(3, device="sim") + 1
"""
    )


def test_a_driver_names_its_chain_and_the_environment_wins(run_python: RunPython) -> None:
    run_python(
        NEEDS
        + """
class Chained(Sim):
    providers = ("native",)
    kernels = {"aten::neg": lambda x: x.cpu().neg().to(x.device)}

os.environ["OUTBOARD_PROVIDERS"] = "host"
torch_outboard.attach(Chained)
torch.ones(3, device="sim").neg()
assert {row.provider for row in torch_outboard.coverage()} == {"host"}

class Wrong(Sim):
    providers = ("native", "generatet")

del os.environ["OUTBOARD_PROVIDERS"]
with pytest.raises(ValueError, match="`providers` of the driver 'sim' must name only .* not 'generatet'.*'generated'"):
    from torch_outboard._settings import providers_of
    providers_of(Wrong())
"""
    )


def test_a_generator_of_kernels_must_write_for_the_device(run_python: RunPython) -> None:
    run_python(
        NEEDS
        + """
class OnTheHost(Sim):
    kernel_generator = "host_cpp"

class Unknown(Sim):
    kernel_generator = "opencl"

for driver, message in ((OnTheHost, "whose dialect the device can build"), (Unknown, "unknown code generator")):
    with pytest.raises(torch_outboard.RegistrationError, match=message):
        torch_outboard.attach(driver)
assert torch_outboard.attached_driver() is None
"""
    )


def test_where_the_host_reaches_the_memory_nothing_is_compiled_unasked(run_python: RunPython) -> None:
    run_python(
        NEEDS
        + """
import sys

class Generates(Sim):
    kernel_generator = "opencl_c"

torch_outboard.attach(Generates)
torch.ones(3, device="sim").exp()
assert {row.provider for row in torch_outboard.coverage()} == {"host"}
assert "torch._inductor" not in sys.modules
"""
    )


def test_without_the_host_norms_run_as_parts(run_python: RunPython) -> None:
    """The driver may have its own kernels of the parts, but none of the whole."""
    run_python(
        NEEDS
        + """
os.environ.update(OUTBOARD_PROVIDERS="native", OUTBOARD_FALLBACK="silent")
torch_outboard.attach("sim")
host = torch.randn(3, 8)
found = []
for place in ("sim", "cpu"):
    x, weight = host.to(place).requires_grad_(), torch.full((8,), 2.0, device=place, requires_grad=True)
    result = torch.nn.functional.rms_norm(x, [8], weight)
    found.append([result, *torch.autograd.grad(result.square().sum(), [x, weight])])
for result, wanted in zip(*found, strict=True):
    torch.testing.assert_close(result.cpu(), wanted)
assert torch_outboard.coverage().calls("aten::rsqrt") == 1
assert torch_outboard.coverage().calls("aten::_fused_rms_norm") == 0
assert torch_outboard.coverage().calls("aten::_fused_rms_norm_backward") == 0
"""
    )
