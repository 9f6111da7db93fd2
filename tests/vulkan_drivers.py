# SPDX-License-Identifier: BSD-3-Clause
"""A Vulkan driver with programs for the tests, for `pytest --driver=tests.vulkan_drivers:Programs`."""

from torch_outboard._discovery import find_driver
from torch_outboard.testing.programs import TestPrograms

HEAD = "[vk::constant_id(0)] const int ob_block = 64;\n"


def program(name, fields, body, before="", is_pushed=True):
    """Return a program with a kernel of these arguments; `i` is an item's number."""
    pushed = "Arguments given;" if is_pushed else "Pushed pushed;\n#define given pushed.at"
    return f"""{HEAD}{before}
struct Arguments {{ int64_t ob_first_group; {fields} }};
struct Pushed {{ Arguments* at; }};
[[vk::push_constant]] {pushed}
[shader("compute")] [numthreads(ob_block, 1, 1)]
void {name}(uint3 group : SV_GroupID, uint3 item : SV_GroupThreadID) {{
  const int64_t i = (given.ob_first_group + group.x) * ob_block + item.x;
  {body}
}}
"""


SCALE = program(
    "scale",
    "float* x; float* b; float* out; int n; float a; int64_t shift;",
    "if (i < given.n) given.out[i] = given.a * given.x[i] + given.b[0] + float(given.shift);",
)
SUMS = program(
    "sums",
    "float* x; float* out; int n;",
    """held[item.x] = i < given.n ? given.x[i] : 0;
  GroupMemoryBarrierWithGroupSync();
  if (item.x == 0) {
    float sum = 0;
    for (int k = 0; k < ob_block; ++k) sum += held[k];
    given.out[given.ob_first_group + group.x] = sum;
  }""",
    "[vk::constant_id(1)] const int ob_local_1 = 64;\ngroupshared float held[ob_local_1 / 4];",
)


def many(count):
    fields = "float* out; " + " ".join(f"float* x{i};" for i in range(count))
    body = " ".join(f"given.out[{i}] = *given.x{i} + 1;" for i in range(count))
    return program("many", fields, body, is_pushed=16 + 8 * count <= 128)


class Programs(find_driver("vulkan")):
    test_programs = TestPrograms(
        language="slang",
        scale=SCALE,
        refused=SCALE.replace("given.a * ", "unknown * "),
        sums=SUMS,
        sums_by_argument=True,
        many=many,
    )
