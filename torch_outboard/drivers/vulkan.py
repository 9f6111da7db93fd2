# SPDX-License-Identifier: BSD-3-Clause
"""GPUs of any vendor, through Vulkan 1.3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_outboard.driver import Check, Driver, Option, package_folders
from torch_outboard.drivers import library_path

if TYPE_CHECKING:  # `outboard info` loads the class without torch
    from torch_outboard._properties import DeviceProperties

__all__ = ["VulkanDriver"]

# The paths of Slang's compiler in packages, the smaller package first.
_COMPILERS = ("slangtorch/bin/libslang-compiler.so*", "slangpy/libslang-compiler.so*", "slangpy/libslang.so*")

# The least group memory, in bytes, in which kernels with matrix units have room for their tiles.
_UNIT_MEMORY = 32 << 10

# The vendor of the devices on which each feature was tested and is correct; "Mesa" is lavapipe.
_UNITS_TRIED = "NVIDIA"
_SUBGROUPS_TRIED = "Mesa"

_DRIVERS_ENTRY = "vk_icdGetInstanceProcAddr"  # exported by a vendor's driver, but not by the loader


class VulkanDriver(Driver):
    """GPUs of any vendor, and CPUs, through their Vulkan drivers; see drivers/vulkan/README.md.

    The driver is attached as "vulkan". Its devices are named "vk", because torch reserves torch.device("vulkan").
    """

    name = "vk"
    library = library_path("vulkan")
    autocast = "default"
    options = {
        "device": Option(
            str,
            None,
            "A device's number, or part of its name in any case. Default: OUTBOARD_VULKAN_DEVICE, else all devices, "
            "but CPUs only if there are no others.",
            is_in_environment=False,
        ),
        "library": Option(str, None, "The Vulkan loader (default: libvulkan.so.1)."),
        "slang": Option(str, None, "The file of Slang's compiler (default: from the package slangtorch or slangpy)."),
        "host_access": Option(
            bool,
            None,
            "Whether the host accesses devices' memory if it can, so that operators run on the CPU (default: only for "
            "CPUs).",
        ),
        "matrix_units": Option(
            bool,
            None,
            "Whether generated kernels use the devices' matrix units, cooperative matrices (default: only on NVIDIA's "
            "devices, where this is tested).",
        ),
        "subgroups": Option(
            bool,
            None,
            "Whether items of a subgroup read each other's values in generated reductions (default: only on Mesa's "
            "CPU devices, where this is tested; not with matrix_units).",
        ),
    }

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        # The library does not have these options.
        self._uses_units = self.option_values.pop("matrix_units")
        self._uses_subgroups = self.option_values.pop("subgroups")
        if self.option_values["slang"] is None and (compiler := _packaged_compiler()) is not None:
            self.option_values["slang"] = compiler

    def kernel_generator(self, devices: Sequence[DeviceProperties]) -> str:
        """Return the Slang dialect for the types that all devices have, followed by their matrix units or subgroups.

        Raises
        ------
        RegistrationError
            If the option requests matrix units, and a device has none, or different ones.
        """
        from torch_outboard._errors import RegistrationError

        units = {(device.matrix_units, device.warp_size) for device in devices}
        has_units = len(units) == 1 and all(
            device.matrix_units and device.shared_memory_per_block >= _UNIT_MEMORY for device in devices
        )
        if self._uses_units and devices and not has_units:
            reasons = "; ".join(
                f"{gpu.name}: {gpu.matrix_units or 'none'}, {gpu.shared_memory_per_block} bytes of group memory"
                for gpu in devices
            )
            raise RegistrationError(
                "the option matrix_units is 1, but the devices don't all have the same matrix units and at least "
                f"{_UNIT_MEMORY} bytes of group memory ({reasons}). Omit the option, or choose devices with "
                "`device`"
            )
        if not has_units or not _is_used(self._uses_units, devices, _UNITS_TRIED):
            return _language(devices) + self._subgroups(devices)
        listed, lanes = units.pop()
        return f"{_language(devices)}: {lanes} lanes, {listed}"

    def _subgroups(self, devices: Sequence[DeviceProperties]) -> str:
        """Return ": subgroups of 8" if generated reductions use subgroups, else an empty string."""
        sizes = {device.warp_size for device in devices}
        is_used = _is_used(self._uses_subgroups, devices, _SUBGROUPS_TRIED)
        return f": subgroups of {sizes.pop()}" if is_used and len(sizes) == 1 and min(sizes) > 1 else ""

    def code_generator(self, device: int) -> str:
        """Return "cpp" if the host can reach the device's memory, as for CPUs; else the device's own language."""
        from torch_outboard import _C
        from torch_outboard.device.devices import get_device_properties

        return "cpp" if _C.reaches_memory(device) else _language([get_device_properties(device)])

    def checks(self) -> Sequence[Check]:
        """Return whether Vulkan's loader opens and finds devices, and whether there is a compiler of kernels."""
        import ctypes

        name = str(self.option_values["library"] or "libvulkan.so.1")
        install = "install the vendor's Vulkan driver, or for CPUs, AMD and Intel: apt-get install mesa-vulkan-drivers"
        try:
            loader = ctypes.CDLL(name)
        except OSError as error:
            return [Check("Vulkan's loader", "unused", str(error), f"apt-get install libvulkan1; {install}")]
        if not hasattr(loader, "vkCreateInstance"):
            fault = (
                "is a device's driver without the loader"
                if hasattr(loader, _DRIVERS_ENTRY)
                else "is not a Vulkan library"
            )
            return [Check("Vulkan's loader", "unused", f"{name} {fault}: devices are not counted", install)]
        status, count = _count_devices(loader)
        if status != 0 or count == 0:
            return [Check("Vulkan's loader", "unused", f"{name} opens and finds no device ({status})", install)]
        compiler = self.option_values["slang"]
        return [
            Check("Vulkan's loader", "right", f"{name} opens; devices of all drivers: {count}"),
            Check("Slang, for kernels", "right", str(compiler))
            if compiler is not None
            else Check(
                "Slang, for kernels", "unused", "neither slangtorch nor slangpy is installed", "pip install slangtorch"
            ),
        ]

    def report(self) -> Mapping[str, Any]:
        """Return the properties of the loader and the devices, and whether values are right on each device."""
        from torch_outboard.drivers.vulkan_report import report

        return report(
            {**self.option_values, "matrix_units": self._uses_units or None, "subgroups": self._uses_subgroups}
        )


def _is_used(choice: object, devices: Sequence[DeviceProperties], tried: str) -> bool:
    """Return the user's choice or, if the user made none, whether all devices are of the tested vendor."""
    return all(device.vendor == tried for device in devices) if choice is None else bool(choice)


def _language(devices: Sequence[DeviceProperties]) -> str:
    """Return "slang", followed by "_floats" if a device has no float64, and by "_bytes" if one has no 16-bit types."""
    import torch  # not at the top: `outboard info` loads the class without torch

    forms = {torch.float64: "_floats", torch.int16: "_bytes"}
    return "slang" + "".join(form for dtype, form in forms.items() if any(dtype not in gpu.dtypes for gpu in devices))


def _count_devices(loader: Any) -> tuple[int, int]:
    """Return Vulkan's status and the number of devices, from a new Vulkan 1.0 instance without extensions."""
    import ctypes

    # The fields of VkInstanceCreateInfo: type, next, flags, application, then the counts and names
    # of layers and extensions.
    kinds = ("i", "p", "u", "p", "u", "p", "u", "p")
    types: dict[str, Any] = {"i": ctypes.c_int, "u": ctypes.c_uint, "p": ctypes.c_void_p}
    fields = [(f"field{place}", types[kind]) for place, kind in enumerate(kinds)]
    info = type("Info", (ctypes.Structure,), {"_fields_": fields})(1)
    instance, count = ctypes.c_void_p(), ctypes.c_uint()
    status = int(loader.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)))
    if status != 0:
        return status, 0
    try:
        return int(loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)), count.value
    finally:
        loader.vkDestroyInstance(instance, None)


def _packaged_compiler() -> str | None:
    """Return the compiler's library of an installed package, which is not imported."""
    for pattern in _COMPILERS:
        for folder in package_folders():
            if libraries := sorted(folder.glob(pattern)):
                return str(libraries[-1])
    return None
