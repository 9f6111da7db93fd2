# SPDX-License-Identifier: BSD-3-Clause
"""Matrix units in Slang: what a device lists becomes units, and texts with them compile."""

from __future__ import annotations

import ctypes.util
import itertools
import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.slang import compile_slang
from tests.unit.test_slang import needs_compiler
from torch_outboard import DeviceProperties, RegistrationError
from torch_outboard.codegen.dialects.slang import SLANG
from torch_outboard.codegen.dialects.slang_units import units_of, with_units
from torch_outboard.codegen.dialects.units import Sums, joint, reference, reference_of_joint
from torch_outboard.compile.generators import Generators
from torch_outboard.drivers.vulkan import _UNIT_MEMORY, VulkanDriver
from torch_outboard.kernels.templates.schedules.matrix import _bytes
from torch_outboard.kernels.templates.schedules.matrix_fragments import Array
from torch_outboard.kernels.templates.schedules.matrix_sides import Tiling
from torch_outboard.testing.plugin import RunPython

_COOPERATIVE_MATRIX = 6022  # the capability of SPIR-V

_CALLS = """
import json, torch, torch_outboard
from dataclasses import replace
from tests.simt_drivers import Unbuilt
from torch_outboard.drivers.vulkan import _UNIT_MEMORY

texts = {}
class Collecting(Unbuilt):
    kernel_generator = "slang: 32 lanes, float16 16x16x16, bfloat16 16x16x16"
    def device_properties(self, device):  # with the least memory of a group that the driver accepts
        return replace(super().device_properties(device), shared_memory_per_block=_UNIT_MEMORY)
    def program_build(self, device, language, code, options):
        texts[code.decode() if isinstance(code, bytes) else code] = options
        return next(self.handles)
torch_outboard.attach(Collecting)
F = torch.nn.functional

def ones(*sizes, dtype=torch.float16):
    return torch.ones(sizes, dtype=dtype).to("unbuilt").requires_grad_()

def back(result):
    result.backward(torch.ones_like(result))

torch.addmm(ones(77, dtype=torch.bfloat16), ones(65, 40, dtype=torch.bfloat16), ones(40, 77, dtype=torch.bfloat16))
torch.mm(ones(512, 128)[:, ::2], ones(64, 512).t().contiguous().t()), torch.mm(ones(64, 9000), ones(9000, 64))
back(F.conv2d(ones(2, 16, 9, 9), ones(16, 16, 3, 3), padding=1))
back(F.scaled_dot_product_attention(*(ones(1, 2, 64, 40) for _ in range(3)), is_causal=True))
print(json.dumps(list(texts.items())))
"""


@needs_compiler
def test_texts_with_units_compile(run_python: RunPython) -> None:
    answer = run_python(_CALLS, env={"OUTBOARD_FALLBACK": "error", "OUTBOARD_BUILD_THREADS": "0"})
    texts = json.loads(answer.stdout.splitlines()[-1])
    with_matrices = [(text, options) for text, options in texts if "linalg.coopMatMulAdd" in text]
    assert len(with_matrices) >= 6
    assert not any("attention" in text for text, _ in with_matrices)
    shifting = [text for text, _ in with_matrices if "from - " in text or "(from) - " in text]
    assert shifting and not any(re.search(r"from [+-] -|from - ", text) for text in shifting)
    for text, options in with_matrices:
        code = compile_slang(text, options)
        words = struct.unpack(f"<{len(code) // 4}I", code)
        assert (2 << 16 | 17, _COOPERATIVE_MATRIX) in itertools.pairwise(words[:100])


# Slang declares the Vulkan memory model for cooperative matrices, and here because it is asked to.
_SHARED = """
import torch, torch_outboard
from tests.vulkan_drivers import SUMS

torch_outboard.attach("vulkan")
options = "-O0 -fvk-use-entrypoint-name -capability vk_mem_model"
signature = "const float*, float*, int32, local"
kernel = torch_outboard.build_kernel(SUMS, "sums", language="slang", options=options, signature=signature)
"""


@needs_compiler
@pytest.mark.skipif(ctypes.util.find_library("vulkan") is None, reason="capability: a loader of Vulkan")
def test_items_share_the_groups_memory_in_the_vulkan_memory_model(run_python: RunPython, tmp_path: Path) -> None:
    run_python(_SHARED, env={"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path)})
    (stored,) = (tmp_path / "programs").iterdir()
    content = stored.read_bytes()
    code = content[content.index(struct.pack("<I", 0x07230203)) :]
    words = struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4])
    constants, types, pointers, accesses, barriers = {}, set(), set(), [], []
    at = 5
    while at < len(words) and words[at] >> 16:
        op, operands = words[at] & 0xFFFF, words[at + 1 : at + (words[at] >> 16)]
        at += words[at] >> 16
        if op == 14:  # OpMemoryModel
            assert operands[1] == 3
        elif op == 43:  # OpConstant
            constants[operands[1]] = operands[2]
        elif op == 32 and operands[1] == 4:  # OpTypePointer to the group's memory
            types.add(operands[0])
        elif op in (59, 65, 66) and operands[0] in types:  # OpVariable, OpAccessChain, OpInBoundsAccessChain
            pointers.add(operands[1])
        elif op == 61 and operands[2] in pointers:  # OpLoad
            accesses.append(operands[3:])
        elif op == 62 and operands[0] in pointers:  # OpStore
            accesses.append(operands[2:])
        elif op == 224:  # OpControlBarrier
            barriers.append(constants[operands[2]])
    assert len(accesses) >= 2 and all(mask and mask[0] & 0x20 for mask in accesses)  # NonPrivatePointer
    assert barriers and all(barrier & 0x6000 == 0x6000 for barrier in barriers)  # MakeAvailable, MakeVisible


def test_each_type_has_the_first_unit_that_tiles_can_have() -> None:
    listed = "uint8 16x16x32, float16 64x64x64, float16 16x16x16, float16 8x8x16, bfloat16 16x12x16, bfloat16 8x16x16"
    units = units_of(f"32 lanes, {listed}")
    assert [(unit.dtype, unit.m, unit.n, unit.k) for unit in units] == [
        (torch.float16, 16, 16, 16),
        (torch.bfloat16, 8, 16, 16),
    ]
    assert [Tiling.of(unit, (128, 128), 32).group for unit in units] == [128, 128]
    assert with_units(SLANG, "32 lanes, uint8 16x16x32") is SLANG
    assert with_units(SLANG, f"64 lanes, {listed}").described() != with_units(SLANG, f"32 lanes, {listed}").described()


@pytest.mark.parametrize("said", ["", "float16 16x16x16", "0 lanes, float16 16x16x16", "32 lanes, float16 16x16"])
def test_units_in_another_form_are_refused(said: str) -> None:
    with pytest.raises(ValueError, match="matrix units (begin with|have) '"):
        units_of(said)


@pytest.mark.parametrize("lanes", [8, 16, 32, 64])
def test_each_lane_gets_as_many_sums(lanes: int) -> None:
    (unit,) = units_of(f"{lanes} lanes, float16 64x64x32, float16 16x16x16, float16 8x8x16")
    assert unit.result.has_pairs and unit.result.elements * lanes == unit.m * unit.n <= 8 * lanes
    assert unit.result.rows_of_lane(lanes) > 0
    assert all(_bytes(Tiling.of(unit, (64, 64), steps)) <= _UNIT_MEMORY for steps in (16, 32))


def test_units_with_some_joint_matrices_are_refused() -> None:
    unit, known = reference_of_joint(torch.float16), reference(torch.float16)
    for change in ({"sums": None}, {"left": known.left}, {"result": joint("float")}):
        with pytest.raises(ValueError, match="hold both operands and the sums jointly, or none of them"):
            replace(unit, **change)
    with pytest.raises(ValueError, match="only its own instructions load"):
        replace(unit, load_right=(None, None))
    with pytest.raises(ValueError, match="jointly, or none"):
        replace(known, sums=Sums("t", "0", ""))


def test_rows_of_joint_matrices_are_equally_far_apart() -> None:
    array = Array("uint4", "tile", 4, 32, 8, is_plain=True, each=8)
    places = [
        [eval(array.at(str(row), str(8 * chunk), True).replace("/", "//")) for chunk in range(4)] for row in (0, 1)
    ]
    assert places == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert (array.entries_per_row, array.size) == (5, 20)


def test_the_driver_takes_the_units_that_all_devices_have_if_asked() -> None:
    units = {"matrix_units": "float16 16x16x16", "warp_size": 32, "shared_memory_per_block": 48 << 10}
    has, wide, small = (
        DeviceProperties(**{**units, **change})
        for change in ({}, {"warp_size": 64}, {"shared_memory_per_block": 31 << 10})
    )
    driver = VulkanDriver(matrix_units=True)
    assert driver.kernel_generator([has, has]) == "slang: 32 lanes, float16 16x16x16"
    for devices in ([], [has], [has, wide], [small], [has, DeviceProperties()]):
        assert VulkanDriver().kernel_generator(devices) == "slang"
        assert VulkanDriver(matrix_units=False).kernel_generator(devices) == "slang"
    tried = replace(has, vendor="NVIDIA")
    assert VulkanDriver().kernel_generator([tried, tried]) == "slang: 32 lanes, float16 16x16x16"
    assert VulkanDriver().kernel_generator([tried, has]) == "slang"
    assert VulkanDriver().kernel_generator([replace(tried, matrix_units="")]) == "slang"
    assert VulkanDriver(matrix_units=False).kernel_generator([tried]) == "slang"
    floats = replace(has, dtypes=has.dtypes - {torch.float64})
    assert driver.kernel_generator([floats]) == "slang_floats: 32 lanes, float16 16x16x16"
    assert len(Generators(driver, lambda: [floats]).eager().dialect.units) == 1
    for devices in ([has, wide], [small], [DeviceProperties(name="a chip")]):
        with pytest.raises(RegistrationError, match="the option matrix_units is 1"):
            driver.kernel_generator(devices)
    assert driver.kernel_generator([]) == "slang"
