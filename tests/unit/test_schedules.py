# SPDX-License-Identifier: BSD-3-Clause
"""The registry of schedules: which way is taken, and that a further way is one object and one registration."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torch_outboard.codegen.dialects.cuda_cpp import CUDA_CPP
from torch_outboard.codegen.dialects.host_cpp import HOST_CPP
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates.product import Operand, SumType
from torch_outboard.kernels.templates.schedules.registry import ATTENTION, PRODUCTS, Device, Registry, way_of
from torch_outboard.kernels.tune.schedules import PARAMETERS
from torch_outboard.testing.plugin import RunPython


@pytest.mark.parametrize(
    ("dialect", "is_cpu", "way"),
    [
        (OPENCL_C, True, "strips"),
        (OPENCL_C, False, "tiles"),
        (CUDA_CPP, False, "tiles"),
        (CUDA_CPP, True, "tiles"),
        (HOST_CPP, True, "strips"),
        (HOST_CPP, False, "strips"),
    ],
)
def test_the_way_of_a_device(dialect, is_cpu, way):
    device = Device(dialect, is_cpu, torch.float32)
    assert {way_of(family, device) for family in (*PRODUCTS.families, *ATTENTION.families)} == {way}


def test_a_dialect_without_vectors_and_groups_has_no_way():
    device = Device(replace(CUDA_CPP, has_groups=False), False, torch.float32)
    with pytest.raises(Refusal, match="'cuda_cpp' has neither vectors nor groups .* set its vectors or has_groups"):
        way_of("attention", device)


def test_each_way_has_the_parameters_that_are_tuned():
    ways = {
        f"{family}.{way}"
        for template in (PRODUCTS, ATTENTION)
        for family in template.families
        for way in template.ways(family)
    }
    assert ways == set(PARAMETERS)


def test_of_several_ways_the_last_one_is_taken():
    registry: Registry[str] = Registry("product", "convolution")
    registry.register("tiles", "slow", lambda device: True)
    registry.register("units", "fast", lambda device: device.dtype == torch.bfloat16, ["product"])
    halves, floats = (Device(OPENCL_C, False, dtype) for dtype in (torch.bfloat16, torch.float32))
    assert registry.way_of("product", halves) == "units"
    assert registry.way_of("product", floats) == registry.way_of("convolution", halves) == "tiles"


def test_a_way_is_registered_once_and_for_a_known_family():
    registry: Registry[str] = Registry("product")
    registry.register("tiles", "first", lambda device: True)
    with pytest.raises(ValueError, match="the family 'product' already has a schedule 'tiles'"):
        registry.register("tiles", "second", lambda device: True)
    with pytest.raises(ValueError, match="unknown family 'sums'; choose from product"):
        registry.register("units", "third", lambda device: True, ["sums"])


FURTHER = """
import torch, torch_outboard
from torch_outboard._discovery import find_driver
from torch_outboard.kernels import builder
from torch_outboard.kernels.templates.call import Kernel
from torch_outboard.kernels.templates.product import Operand, SumType
from torch_outboard.kernels.templates.schedules.registry import PRODUCTS

class Units:
    def multiply(self, call, product):
        kernel = Kernel(f"{product.name}_of_units")
        sizes = product.sizes(kernel)
        product.epilogue.declare(kernel)
        kernel.text, kernel.groups = f"// {sizes['DEPTH']} steps, then {product.epilogue.store}\\n", product.rows
        call.launch(kernel)

class Driver(find_driver("sim")):
    kernel_generator = "opencl_c"

torch_outboard.attach(Driver)

def names(dtype):
    x, y = torch.ones(6, 10, dtype=dtype, device="sim"), torch.ones(10, 14, dtype=dtype, device="sim")
    answer = builder.build("aten::mm", [x, y], 0, False, 0)
    assert not answer.refusal, answer.refusal
    return [kernel.entry for kernel in answer.kernels]

strips = ["ob_product_pack", "ob_product_of_strips"]
assert names(torch.bfloat16) == strips
PRODUCTS.register("units", Units(), lambda device: device.dtype == torch.bfloat16, ["product"])
assert names(torch.bfloat16) == ["ob_product_of_units"]
assert names(torch.float32) == strips
"""


def test_a_further_way_computes_the_products_that_it_serves(run_compiler: RunPython) -> None:
    run_compiler(FURTHER, env={"OUTBOARD_KERNEL_CACHE_DIR": "", "OUTBOARD_KERNEL_PACKS": ""})


def test_an_operand_gives_the_raw_element_and_its_conversion_apart():
    operand = Operand(lambda kernel: None, (), "", "x[step]", torch.bfloat16, True, adjacent="x[lane + step]")
    sums = SumType.of(torch.bfloat16)
    assert operand.raw() == "x[step]" and operand.element(sums) == "ob_from_bf16(x[step])"
    assert operand.adjacent_element(sums) == "ob_from_bf16(x[lane + step])"
    window = replace(operand, condition="step < 4")
    assert (
        window.raw() == "(step < 4) ? x[step] : 0" and window.element(sums) == "(step < 4) ? ob_from_bf16(x[step]) : 0"
    )
