# SPDX-License-Identifier: BSD-3-Clause
"""A dialect that is not C in its frame: what C++ compiles of it, no C dialect would write.

Parameters are fields of a struct, pointers are objects, memory of a group stands outside of kernels and has no address,
and the qualifiers of C dialects are undefined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.frame import LocalArray, Parameter, Suffixes
from torch_outboard.codegen.dialects.host_cpp import HOST_CPP
from torch_outboard.compile.simt.generator import SimtGenerator

_C_ONLY = ("#define OB_GLOBAL\n", "#define OB_RESTRICT __restrict\n")

_HEADER = """
template <typename T>
struct ob_span {
  T* first;
  ob_span() = default;
  template <typename U>
  ob_span(ob_span<U> other) : first(other.first) {}
  explicit ob_span(ob_u64 address) : first((T*)address) {}
  T& operator[](ob_i64 at) const { return first[at]; }
  T& operator*() const { return *first; }
  ob_span operator+(ob_i64 at) const { ob_span moved = *this; moved.first += at; return moved; }
};
template <typename T, int count>
struct ob_shared {
  T& operator[](ob_i64 at) { return items[at]; }
 private:
  T items[count];
};
struct float4 { float x, y, z, w; };
struct uint4 { ob_u32 x, y, z, w; };
template <typename To, typename From>
To ob_four(From& from, ob_i64 at) { return To{from[at], from[at + 1], from[at + 2], from[at + 3]}; }
template <typename To, typename From>
void ob_put_four(To& to, ob_i64 at, From four) { to[at] = four.x; to[at + 1] = four.y; to[at + 2] = four.z; to[at + 3] = four.w; }
constexpr float operator""_f(long double number) { return (float)number; }
constexpr ob_i64 operator""_i(unsigned long long number) { return (ob_i64)number; }
constexpr ob_u64 operator""_u(unsigned long long number) { return (ob_u64)number; }
template <typename T>
T ob_rounded(T number) { return number; }
extern ob_i64 ob_item, ob_group;
#define OB_BARRIER
#define OB_ITEM_OF_GROUP ((ob_i32)ob_item)
#define OB_GROUP_NUMBER ob_group
"""  # noqa: E501


@dataclass(frozen=True)
class Frames(Dialect):
    """A dialect whose kernels take a struct."""

    def frame(self, name: str, parameters: Iterable[Parameter], body: str, arrays: Iterable[LocalArray] = ()) -> str:
        declared = list(parameters)
        shared = [f"static ob_shared<{array.type}, {array.size}> {name}_{array.name};" for array in arrays]
        lines = [
            *shared,
            f"struct {name}_given {{ {' '.join(f'{self.declared(parameter)};' for parameter in declared)} }};",
            f"void {name}({name}_given ob_given) {{",
            *(f"  auto {parameter.name} = ob_given.{parameter.name};" for parameter in declared),
            *(f"  auto& {array.name} = {name}_{array.name};" for array in arrays),
        ]
        return "\n".join(lines) + f"\n{body}}}\n"

    def pointer(self, kind: str, *, is_written: bool) -> str:
        return f"ob_span<{kind}>" if is_written else f"ob_span<const {kind}>"

    def declared(self, parameter: Parameter) -> str:
        kind = parameter.type
        return (
            f"{self.pointer(kind, is_written=parameter.is_written) if parameter.is_pointer else kind} {parameter.name}"
        )

    def constant(self, name: str, value: int) -> str:
        return f"constexpr int {name} = {value};"

    def load_four(self, kind: str, array: str, index: str) -> str:
        return f"ob_four<{self.four(kind)}>({array}, {index})"

    def store_four(self, kind: str, array: str, index: str, value: str) -> str:
        return f"ob_put_four({array}, {index}, {value});"

    def arithmetic(self, sign: str, a: str, b: str, dtype: torch.dtype) -> str:
        return f"ob_rounded({a} {sign} {b})"


def _header() -> str:
    header = HOST_CPP.header
    for text in _C_ONLY:
        assert text in header
        header = header.replace(text, "")
    return header.partition("// The items of a launch run one after the other.")[0] + _HEADER


FRAMES = Frames(
    name="frames",
    header=_header(),
    kernel="no kernel begins so",
    item="(ob_group * 64 + ob_item)",
    has_groups=True,
    unroll="// unrolled",
    suffixes=Suffixes(f32="_f", i64="_i", u64="_u"),
)


class FramesGenerator(SimtGenerator):
    dialect = FRAMES
