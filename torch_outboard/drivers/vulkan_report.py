# SPDX-License-Identifier: BSD-3-Clause
"""A report of Vulkan on a machine, for `outboard doctor --driver vulkan --report`.

The report reads Vulkan's structs by their layout. It therefore needs no SDK, and covers devices that the driver itself
skips.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch_outboard._child import ask_module
from torch_outboard._version import __version__

__all__ = ["report"]

_TIMEOUT_SECONDS = 600  # for all computations; the first ones also compile
_VULKAN_13 = 1 << 22 | 3 << 12
_ENVIRONMENT = ("VK_", "OUTBOARD_VK_", "OUTBOARD_VULKAN_", "MESA_", "RADV_", "ANV_", "LP_NUM_THREADS", "__EGL_")
_FOLDERS = ("/usr/local/etc", "/usr/local/share", "/etc", "/usr/share")
_KINDS = {1: "integrated GPU", 2: "discrete GPU", 3: "virtual GPU", 4: "CPU"}

# Features that the driver requires: per struct of features, the positions and names of its
# switches.
_NEEDED = {
    "1.0": {40: "shaderInt64"},
    "1.2": {
        2: "storageBuffer8BitAccess",
        8: "shaderInt8",
        31: "scalarBlockLayout",
        36: "hostQueryReset",
        37: "timelineSemaphore",
        38: "bufferDeviceAddress",
    },
    "1.3": {9: "synchronization2", 14: "maintenance4"},
}
_USED = {
    "1.0": {39: "shaderFloat64", 41: "shaderInt16", 46: "sparseBinding"},
    "1.1": {0: "storageBuffer16BitAccess", 4: "variablePointersStorageBuffer"},
    "1.2": {
        4: "storagePushConstant8",
        5: "shaderBufferInt64Atomics",
        6: "shaderSharedInt64Atomics",
        7: "shaderFloat16",
        41: "vulkanMemoryModel",
        42: "vulkanMemoryModelDeviceScope",
    },
    "1.3": {7: "subgroupSizeControl", 8: "computeFullSubgroups", 13: "shaderIntegerDotProduct"},
    "atomics": {0: "shaderBufferFloat32Atomics", 1: "shaderBufferFloat32AtomicAdd"},
    "bfloats": {0: "shaderBFloat16Type", 2: "shaderBFloat16CooperativeMatrix"},
    "matrices": {0: "cooperativeMatrix"},
}
# The type of each struct of features, and its number of switches.
_FEATURES = {
    "1.0": (1000059000, 55),
    "1.1": (49, 12),
    "1.2": (51, 47),
    "1.3": (53, 15),
    "atomics": (1000260000, 12),
    "bfloats": (1000141000, 3),
    "matrices": (1000506000, 2),
}
_OF_EXTENSION = {
    "VK_EXT_shader_atomic_float": "atomics",
    "VK_KHR_shader_bfloat16": "bfloats",
    "VK_KHR_cooperative_matrix": "matrices",
}
_EXTENSIONS = (
    *_OF_EXTENSION,
    "VK_EXT_calibrated_timestamps",
    "VK_EXT_external_memory_host",
    "VK_EXT_memory_budget",
    "VK_EXT_shader_atomic_float2",
    "VK_KHR_calibrated_timestamps",
    "VK_KHR_workgroup_memory_explicit_layout",
    "VK_NV_cooperative_matrix2",
)
_FLOAT_CONTROLS = [
    f"{what}Float{width}"
    for what in ("SignedZeroInfNanPreserve", "DenormPreserve", "DenormFlushToZero", "RoundingModeRTE")
    for width in (16, 32, 64)
]
_QUEUES = {1: "graphics", 2: "compute", 4: "transfer", 8: "sparse"}
_MEMORY = {1: "local", 2: "visible", 4: "coherent", 8: "cached", 16: "lazy", 64: "coherent for devices"}
_TYPES = {0: "float16", 1: "float32", 2: "float64", 3: "int8", 4: "int16", 5: "int32", 6: "int64", 7: "uint8"}
_TYPES |= {8: "uint16", 9: "uint32", 10: "uint64", 1000141000: "bfloat16"}
_CLOCKS = {0: "device", 1: "CLOCK_MONOTONIC", 2: "CLOCK_MONOTONIC_RAW"}
_SCOPES = {1: "device", 2: "workgroup", 3: "subgroup", 5: "queue family"}


def report(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report as JSON data; `options` are the driver's options that are set."""
    settings = {key: value for key, value in options.items() if value is not None}
    library = str(settings.get("library", "libvulkan.so.1"))
    return {
        "machine": dict(_machine(settings)),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_ENVIRONMENT)},
        "drivers of devices": list(_files("icd.d")),
        "loader": _loader(library),
        "computations": _computations(settings),
    }


def _machine(options: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    import torch

    yield "system", platform.platform()
    yield "processor", f"{platform.machine()}, {os.cpu_count()} cores"
    yield "python", platform.python_version()
    yield "torch", torch.__version__
    yield "torch_outboard", __version__
    yield "options", {key: str(value) for key, value in options.items()}


def _files(kind: str) -> Iterator[dict[str, str]]:
    """Yield the .json files from which the loader finds the device drivers."""
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    if named:
        places: Iterable[Path] = map(Path, named.split(os.pathsep))
    else:
        folders = [*map(Path, _FOLDERS), Path.home() / ".local" / "share", Path.home() / ".config"]
        places = [file for folder in folders for file in sorted((folder / "vulkan" / kind).glob("*.json"))]
    for place in places:
        try:
            driver = json.loads(place.read_text())["ICD"]
            yield {"file": str(place), "library": driver["library_path"], "api": driver.get("api_version", "?")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            yield {"file": str(place), "error": f"{type(error).__name__}: {error}"}


def _loader(name: str) -> dict[str, Any]:
    try:
        vulkan = _Vulkan(name)
    except OSError as error:
        return {"library": name, "error": str(error)}
    loader: dict[str, Any] = {"library": name, "api": vulkan.version()}
    status = vulkan.open()
    if status != 0:
        return {**loader, "error": f"vkCreateInstance returned {status}"}
    try:
        return {**loader, "devices": [_device(vulkan, device) for device in vulkan.devices()]}
    finally:
        vulkan.call("vkDestroyInstance", vulkan.instance, None)


class _Vulkan:
    """Vulkan's functions, by their names, without declarations."""

    def __init__(self, name: str) -> None:
        library = ctypes.CDLL(name)
        entry = getattr(library, "vkGetInstanceProcAddr", None) or getattr(library, "vk_icdGetInstanceProcAddr", None)
        if entry is None:
            raise OSError(f"{name} is not a Vulkan library")
        self._find = entry
        self._find.restype = ctypes.c_void_p
        self._find.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self.instance = ctypes.c_void_p()

    def has(self, name: str) -> bool:
        return bool(self._find(self.instance, name.encode()))

    def call(self, name: str, *arguments: Any) -> int:
        place = self._find(self.instance, name.encode())
        if not place:
            raise OSError(f"there is no {name}")
        return int(ctypes.CFUNCTYPE(ctypes.c_int)(place)(*arguments))

    def version(self) -> str:
        """Return the version of the API that the loader supports."""
        version = ctypes.c_uint()
        try:
            self.call("vkEnumerateInstanceVersion", ctypes.byref(version))
        except OSError:
            return "1.0"
        return _version(version.value)

    def open(self) -> int:
        """Create an instance and return the status."""
        application = ctypes.create_string_buffer(struct.pack("=i4xQQI4xQII", 0, 0, 0, 0, 0, 0, _VULKAN_13))
        info = struct.pack("=i4xQI4xQI4xQI4xQ", 1, 0, 0, ctypes.addressof(application), 0, 0, 0, 0)
        return self.call("vkCreateInstance", ctypes.create_string_buffer(info), None, ctypes.byref(self.instance))

    def devices(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self.call("vkEnumeratePhysicalDevices", self.instance, ctypes.byref(count), None)
        handles = (ctypes.c_void_p * count.value)()
        self.call("vkEnumeratePhysicalDevices", self.instance, ctypes.byref(count), handles)
        return [ctypes.c_void_p(handle) for handle in handles[: count.value]]


class _Struct:
    """A Vulkan struct, which begins with its type and a pointer to the next struct."""

    def __init__(self, kind: int, size: int = 1024) -> None:
        self.bytes = ctypes.create_string_buffer(size)
        struct.pack_into("=i", self.bytes, 0, kind)

    def before(self, following: _Struct) -> _Struct:
        struct.pack_into("=Q", self.bytes, 8, ctypes.addressof(following.bytes))
        return self

    def get(self, form: str, at: int) -> Any:
        values = struct.unpack_from(f"={form}", self.bytes, at)
        return values[0] if len(values) == 1 else list(values)

    def text(self, at: int) -> str:
        return self.bytes.raw[at : at + 256].split(b"\0")[0].decode(errors="replace")


def _version(number: int) -> str:
    return f"{number >> 22 & 0x7F}.{number >> 12 & 0x3FF}.{number & 0xFFF}"


def _words(bits: int, names: Mapping[int, str]) -> list[str]:
    return [name for bit, name in names.items() if bits & bit]


def _device(vulkan: _Vulkan, device: ctypes.c_void_p) -> dict[str, Any]:
    first = _Struct(0)
    vulkan.call("vkGetPhysicalDeviceProperties", device, first.bytes)
    api, driver, vendor, number, kind = first.get("IIIII", 0)
    facts: dict[str, Any] = {
        "name": first.text(20),
        "kind": _KINDS.get(kind, f"kind {kind}"),
        "vendor": f"{vendor:#06x}",
        "device": f"{number:#06x}",
        "api": _version(api),
        "driver version": f"{driver:#x}",
    }
    if api < _VULKAN_13:
        return {**facts, "error": "it is older than Vulkan 1.3"}
    extensions = _extensions(vulkan, device)
    facts["extensions"] = [name for name in _EXTENSIONS if name in extensions]
    facts |= _properties(vulkan, device)
    facts |= _features(vulkan, device, extensions)
    facts["queues"] = _queues(vulkan, device)
    facts["clocks"] = _clocks(vulkan, device, extensions)
    facts["memory"] = _memory(vulkan, device)
    if "VK_KHR_cooperative_matrix" in extensions:
        facts["matrices"] = _matrices(vulkan, device)
    return facts


def _extensions(vulkan: _Vulkan, device: ctypes.c_void_p) -> set[str]:
    count = ctypes.c_uint()
    vulkan.call("vkEnumerateDeviceExtensionProperties", device, None, ctypes.byref(count), None)
    listed = ctypes.create_string_buffer(260 * count.value)
    vulkan.call("vkEnumerateDeviceExtensionProperties", device, None, ctypes.byref(count), listed)
    names = (listed.raw[at : at + 256] for at in range(0, 260 * count.value, 260))
    return {name.split(b"\0")[0].decode(errors="replace") for name in names}


def _properties(vulkan: _Vulkan, device: ctypes.c_void_p) -> dict[str, Any]:
    of11, of12, of13 = (_Struct(kind) for kind in (50, 52, 54))
    whole = _Struct(1000059001).before(of11.before(of12.before(of13)))
    vulkan.call("vkGetPhysicalDeviceProperties2", device, whole.bytes)
    limits = 16 + 296
    stages = of11.get("I", 68)
    return {
        "driver": f"{of12.text(20)}, {of12.text(276)}, id {of12.get('i', 16)}",
        "conformance": ".".join(map(str, of12.get("BBBB", 532))),
        "subgroups": {
            "size": of11.get("I", 64),
            "least": of13.get("I", 16),
            "most": of13.get("I", 20),
            "in a group": of13.get("I", 24),
            "compute can require a size": bool(of13.get("I", 28) & 0x20),
            "compute has subgroup operations": bool(stages & 0x20),
            "operations": f"{of11.get('I', 72):#x}",
        },
        "limits": {
            "maxPushConstantsSize": whole.get("I", limits + 32),
            "maxStorageBufferRange": whole.get("I", limits + 28),
            "maxMemoryAllocationCount": whole.get("I", limits + 36),
            "maxMemoryAllocationSize": of11.get("Q", 104),
            "maxBufferSize": of13.get("Q", 208),
            "sparseAddressSpaceSize": whole.get("Q", limits + 56),
            "maxComputeSharedMemorySize": whole.get("I", limits + 216),
            "maxComputeWorkGroupCount": whole.get("III", limits + 220),
            "maxComputeWorkGroupInvocations": whole.get("I", limits + 232),
            "maxComputeWorkGroupSize": whole.get("III", limits + 236),
            "timestampPeriod": round(whole.get("f", limits + 424), 6),
        },
        "float controls": [name for place, name in enumerate(_FLOAT_CONTROLS) if of12.get("I", 544 + 4 * place)],
    }


def _features(vulkan: _Vulkan, device: ctypes.c_void_p, extensions: set[str]) -> dict[str, Any]:
    brought = {_OF_EXTENSION[name] for name in extensions if name in _OF_EXTENSION}
    structs = {name: _Struct(kind) for name, (kind, _) in _FEATURES.items() if name in brought or name[0] == "1"}
    chain = list(structs.values())
    for preceding, following in zip(chain, chain[1:], strict=False):
        preceding.before(following)
    vulkan.call("vkGetPhysicalDeviceFeatures2", device, chain[0].bytes)

    def switches(wanted: Mapping[str, Mapping[int, str]]) -> dict[str, bool]:
        return {
            name: kind in structs and bool(structs[kind].get("I", 16 + 4 * place))
            for kind, places in wanted.items()
            for place, name in places.items()
        }

    needed = switches(_NEEDED)
    lacking = [name for name, is_there in needed.items() if not is_there]
    used = switches(_USED)
    return {
        "needed features": "all" if not lacking else f"lacks {', '.join(lacking)}",
        "used features": [name for name, is_there in used.items() if is_there],
        "missing features": [name for name, is_there in used.items() if not is_there],
    }


def _queues(vulkan: _Vulkan, device: ctypes.c_void_p) -> list[str]:
    size, count = 40, ctypes.c_uint()
    vulkan.call("vkGetPhysicalDeviceQueueFamilyProperties2", device, ctypes.byref(count), None)
    families = ctypes.create_string_buffer(size * count.value)
    for place in range(count.value):
        struct.pack_into("=i", families, size * place, 1000059005)
    vulkan.call("vkGetPhysicalDeviceQueueFamilyProperties2", device, ctypes.byref(count), families)
    groups = [struct.unpack_from("=III", families, size * place + 16) for place in range(count.value)]
    return [
        f"{number} of {', '.join(_words(flags, _QUEUES))}; timestamps of {bits} bits" for flags, number, bits in groups
    ]


def _clocks(vulkan: _Vulkan, device: ctypes.c_void_p, extensions: set[str]) -> list[str]:
    """Return the clocks that can be calibrated with each other; the driver needs the device's and CLOCK_MONOTONIC."""
    for suffix in ("KHR", "EXT"):
        name = f"vkGetPhysicalDeviceCalibrateableTimeDomains{suffix}"
        if f"VK_{suffix}_calibrated_timestamps" not in extensions or not vulkan.has(name):
            continue
        count = ctypes.c_uint()
        vulkan.call(name, device, ctypes.byref(count), None)
        domains = (ctypes.c_int * count.value)()
        vulkan.call(name, device, ctypes.byref(count), domains)
        return [_CLOCKS.get(domain, str(domain)) for domain in domains]
    return []


def _memory(vulkan: _Vulkan, device: ctypes.c_void_p) -> dict[str, list[str]]:
    properties = _Struct(1000059006)
    vulkan.call("vkGetPhysicalDeviceMemoryProperties2", device, properties.bytes)
    kinds = [properties.get("II", 20 + 8 * place) for place in range(properties.get("I", 16))]
    heaps = [properties.get("QI", 280 + 16 * place) for place in range(properties.get("I", 276))]
    return {
        "heaps": [f"{size / 2**30:.2f} GiB{', local' if flags & 1 else ''}" for size, flags in heaps],
        "types": [f"heap {heap}: {', '.join(_words(flags, _MEMORY)) or 'nothing'}" for flags, heap in kinds],
    }


def _matrices(vulkan: _Vulkan, device: ctypes.c_void_p) -> list[str]:
    name = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
    if not vulkan.has(name):
        return []
    size, count = 56, ctypes.c_uint()
    vulkan.call(name, device, ctypes.byref(count), None)
    listed = ctypes.create_string_buffer(size * count.value)
    for place in range(count.value):
        struct.pack_into("=i", listed, size * place, 1000506001)
    vulkan.call(name, device, ctypes.byref(count), listed)
    lines = []
    for place in range(count.value):
        m, n, k, *kinds, saturates, scope = struct.unpack_from("=IIIiiiiIi", listed, size * place + 16)
        a, b, c, result = (_TYPES.get(kind, str(kind)) for kind in kinds)
        more = ", saturates" if saturates else ""
        lines.append(f"{m}x{n}x{k} {a} by {b} + {c} = {result}, {_SCOPES.get(scope, scope)}{more}")
    return lines


def _computations(options: Mapping[str, Any]) -> dict[str, Any]:
    """Compute on each device in a separate process, and return its output and how it ended."""
    settings = {"host_access": "0", **{key: str(value) for key, value in options.items()}}  # as for a discrete GPU
    computed = "torch_outboard.doctor.computed"
    variables = {"OUTBOARD_FALLBACK": "error"}
    answer = ask_module(computed, "vulkan", json.dumps(settings), seconds=_TIMEOUT_SECONDS, variables=variables)
    if answer.failure:
        return {"error": f"the process {answer.failure}", "output": answer.output}
    return {**answer.value, "messages": answer.output}
