# SPDX-License-Identifier: BSD-3-Clause
"""An interpreter of Triton's first language on the host: slow, in place of the device that runs a compiled kernel.

The interpreter supports the operations that tests and first experiments need, and names an operation that it lacks.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re

import numpy as np

from torch_outboard import DriverError, Status

_DTYPES = {"f32": "f4", "f64": "f8", "f16": "f2", "i1": "?", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8"}
_BINARY = {
    "addi": np.add, "addf": np.add, "subi": np.subtract, "subf": np.subtract, "muli": np.multiply, "mulf": np.multiply,
    "divf": np.divide, "precise_divf": np.divide, "andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor,
    "maxnumf": np.fmax, "minnumf": np.fmin, "maximumf": np.maximum, "minimumf": np.minimum,
    "maxsi": np.maximum, "minsi": np.minimum,
    "shli": np.left_shift, "shrsi": np.right_shift,
    "shrui": lambda a, b: _unsigned(np.right_shift, a, b),
    "mulhiui": lambda a, b: _unsigned(lambda x, y: (x.astype("u8") * y >> np.uint64(32)).astype(x.dtype), a, b),
    "divsi": lambda a, b: np.trunc(a / b).astype(a.dtype), "remsi": np.fmod,
    "divui": lambda a, b: _unsigned(np.floor_divide, a, b), "remui": lambda a, b: _unsigned(np.remainder, a, b),
}  # fmt: skip
_COMPARED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_FUNCTIONS = {
    **{name: getattr(np, name) for name in ("exp", "log", "sqrt", "sin", "cos", "tanh", "floor", "log1p")},
    "precise_sqrt": np.sqrt,
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "absf": np.abs,
    "negf": np.negative,
    "erf": np.vectorize(math.erf, otypes=["f4"]),
}
_CASTS = {"sitofp", "fptosi", "extf", "truncf", "extsi", "extui", "trunci", "uitofp"}


def _unsigned(function, left, right):
    of = left.dtype
    unsigned = np.dtype(f"u{of.itemsize}")
    return function(left.astype(unsigned), right.astype(unsigned)).astype(unsigned).view(of)


def _shape(kind):
    """Return the sizes and the element type of `tensor<8x64xf32>` or `f32`."""
    inner = re.fullmatch(r"tensor<(.*)>", kind)
    *sizes, element = re.split(r"x(?![^<]*>)", inner[1]) if inner else [kind]
    if inner and "ptr" in inner[1]:
        sizes, element = inner[1].split("x!")[0].split("x"), "!" + inner[1].split("x!")[1]
    return tuple(map(int, sizes)), element


def _dtype(element):
    return np.dtype("i8" if element.startswith("!tt.ptr") else _DTYPES[element])


class Kernel:
    """A function of a module: `parameters` are its names and types, in order."""

    def __init__(self, text, name):
        text = re.sub(r"loc\((?:[^()]|\([^()]*\))*\)", "", text)
        text = re.sub(r"(%\w+)\.(\d+)", r"\1_part\2", text)  # of tuples, in newer versions of Triton
        begin = text.index(f"@{name}(")
        head, _, body = text[begin:].partition(") attributes")
        self.parameters = re.findall(r"(%[\w]+): (\S+?)(?=[ ,]|$)", head)
        self._lines = [line.strip() for line in body.splitlines()[1:] if line.strip()]

    def __call__(self, grid, arguments):
        for z, y, x in np.ndindex(*grid[::-1]):
            values = {
                name: np.asarray(value, _dtype(kind))
                for (name, kind), value in zip(self.parameters, arguments, strict=True)
            }
            with np.errstate(all="ignore"):
                self._run(0, values, {"x": x, "y": y, "z": z})

    def _run(self, at, values, place):
        """Run lines up to the end of their block; return the line behind the block and the values it yields."""
        while True:
            line = self._lines[at]
            at += 1
            if line.startswith(("tt.return", "tt.reduce.return", "tt.scan.return", "scf.yield", "}")):
                operands = re.findall(r"%\w+(?:#\d+)?", line.split(" : ")[0])
                return at, [values[name] for name in operands]
            match = re.match(r"(?:(%\w+)(?::\d+)? = )?\"?([\w.]+)\"?(.*)$", line)
            result, operation, rest = match.groups()
            if operation == "scf.for":
                at = self._loop(at, result, rest, values, place)
                continue
            if operation == "scf.if":
                at = self._if(at, result, rest, values, place)
                continue
            if operation in ("tt.reduce", "tt.scan"):
                at = self._reduce(at, result, rest, values, place, keeps_all=operation == "tt.scan")
                continue
            value = self._value(operation, rest, values, place)
            if result is not None:
                values[result] = value

    def _loop(self, at, result, rest, values, place):
        index, first, last, step = re.match(r" (%\w+) = (%\w+) to (%\w+) step (%\w+)", rest).groups()
        carried = re.findall(r"(%\w+) = (%\w+(?:#\d+)?)", rest.partition("iter_args(")[2].partition(")")[0])
        state = [values[begin] for _, begin in carried]
        end = None
        for number in range(int(values[first]), int(values[last]), int(values[step])):
            inner = {**values, index: np.int32(number), **dict(zip((name for name, _ in carried), state, strict=True))}
            end, state = self._run(at, inner, place)
        if end is None:
            raise ValueError("a loop of no turns")
        values.update({f"{result}#{i}": value for i, value in enumerate(state)})
        if len(state) == 1:
            values[result] = state[0]
        return end + 1  # behind its brace

    def _if(self, at, result, rest, values, place):
        otherwise = self._end(at)
        has_other = self._lines[otherwise].startswith("} else")
        end = self._end(otherwise + 1) if has_other else otherwise
        given = []
        if values[re.match(r" (%\w+)", rest)[1]]:
            given = self._run(at, values, place)[1]
        elif has_other:
            given = self._run(otherwise + 1, values, place)[1]
        if result is not None:
            values.update({result: given[0], **{f"{result}#{i}": value for i, value in enumerate(given)}})
        return end + 1

    def _end(self, at):
        """Return the line of the brace that ends a block."""
        depth = 1
        while True:
            line = self._lines[at]
            depth -= line.startswith("}")
            if depth == 0:
                return at
            depth += line.endswith("{")
            at += 1

    def _reduce(self, at, result, rest, values, place, keeps_all):
        operands = re.findall(r"%\w+(?:#\d+)?", rest.partition(")")[0])
        axis = int(re.search(r"axis = (\d+)", rest)[1])
        names = re.findall(r"(%\w+):", self._lines[at])
        columns = [np.moveaxis(values[name], axis, 0) for name in operands]
        order = range(len(columns[0]))[:: -1 if "reverse = true" in rest else 1]
        state, end = [column[order[0]] for column in columns], at
        rows = []
        for row in order:
            inner = {**values, **dict(zip(names, [*state, *(column[row] for column in columns)], strict=True))}
            end, joined = self._run(at + 1, inner, place)
            state = joined if row != order[0] else state
            rows.append(state)
        if keeps_all:
            ordered = rows[:: order.step]
            state = [np.moveaxis(np.stack(column), 0, axis) for column in zip(*ordered, strict=True)]
        values.update({result: state[0], **{f"{result}#{i}": value for i, value in enumerate(state)}})
        return end + 1

    def _value(self, operation, rest, values, place):
        text, _, kinds = rest.rpartition(" : ")
        given = [values[name] for name in re.findall(r"%\w+(?:#\d+)?", text or rest)]
        kind = re.split(" -> | to ", kinds)[-1].strip()
        shape, element = ((), "") if not kind or ", " in kind else _shape(kind)
        family, _, what = operation.partition(".")
        match operation:
            case "arith.constant":
                return np.broadcast_to(_literal(rest), shape)
            case "tt.get_program_id":
                return np.int32(place[rest.split()[0]])
            case "tt.make_range":
                first, last = (int(re.search(rf"{word} = (\d+)", rest)[1]) for word in ("start", "end"))
                return np.arange(first, last, dtype="i4")
            case "tt.splat" | "tt.broadcast":
                return np.broadcast_to(given[0], shape)
            case "tt.expand_dims" | "tt.reshape":
                return given[0].reshape(shape)
            case "tt.addptr":
                size = _dtype(re.search(r"ptr<(\w+)>", kinds)[1]).itemsize
                return given[0] + given[1].astype("i8") * size
            case "tt.load":
                return _load(*given, element=re.search(r"ptr<(\w+)>", kinds)[1])
            case "gpu.barrier":
                return None  # a block is one thread
            case "tt.assert":
                message = re.search(r'"(.*)"', rest)[1]
                if not np.all(given[0]):
                    raise DriverError(f"a kernel's assertion does not hold: {message}", Status.INTERNAL)
                return None
            case "tt.store":
                return _store(*given)
            case "arith.select":
                return np.where(*given)
            case "arith.cmpi" | "arith.cmpf":
                return _compare(rest.split(",")[0].split()[0], *given)
            case "tt.extern_elementwise":
                symbol = re.search(r'symbol = "__nv_(\w+?)f?"', rest)[1]
                return _FUNCTIONS[symbol](*given)
        if what in _BINARY:
            return _BINARY[what](*given)
        if what == "bitcast":
            return np.ascontiguousarray(given[0]).view(_dtype(element))
        if what in _CASTS:
            return given[0].astype(_dtype(element))
        if family == "math" or what in _FUNCTIONS:
            return _FUNCTIONS[what](*given)
        raise NotImplementedError(f"{operation}{rest}")


def _literal(rest):
    value, _, kind = rest.strip().partition(" : ")
    value = re.sub(r"dense<(.*)>", r"\1", value)
    dtype = _dtype(_shape(kind)[1]) if kind else np.dtype("?")
    if value in ("true", "false"):
        return np.asarray(value == "true")
    if value.startswith("0x"):
        return np.asarray(int(value, 16), f"u{dtype.itemsize}").view(dtype)
    return np.asarray(float(value) if dtype.kind == "f" else int(value), dtype)


def _compare(how, left, right):
    known = how if how in _COMPARED else how[1:]
    found = _COMPARED[known](left, right)
    return found | np.isnan(left) | np.isnan(right) if how.startswith("u") and left.dtype.kind == "f" else found


def _load(pointers, mask=None, other=None, element="f32"):
    dtype = _dtype(element)
    pointers = np.asarray(pointers)
    mask = np.broadcast_to(True if mask is None else mask, pointers.shape)
    out = np.array(np.broadcast_to(0 if other is None else other, pointers.shape), dtype)
    for place in np.ndindex(pointers.shape):
        if mask[place]:
            out[place] = np.frombuffer(ctypes.string_at(int(pointers[place]), dtype.itemsize), dtype)[0]
    return out


def _store(pointers, value, mask=None):
    pointers, value = np.asarray(pointers), np.asarray(value)
    mask = np.broadcast_to(True if mask is None else mask, pointers.shape)
    for place in np.ndindex(pointers.shape):
        if mask[place]:
            ctypes.memmove(int(pointers[place]), value[place].tobytes(), value.dtype.itemsize)


@functools.cache
def kernel(text, name):
    return Kernel(text, name)
