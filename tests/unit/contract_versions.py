# SPDX-License-Identifier: BSD-3-Clause
"""The layouts of each version of driver.h, in bytes on 64-bit machines: a driver compiled with one has these structs.

A released version never changes: additions are a new version, at the end.
"""

from __future__ import annotations

__all__ = ["ADDED_ENTRIES", "SIZES"]

_FIRST = """
device_count device_properties mem_alloc mem_free copy_async stream_create stream_destroy stream_synchronize
event_create event_destroy event_record event_query stream_wait_event
last_error destroy device_open device_close device_synchronize fill_async copy_nd_async mem_info host_alloc host_free
host_register host_unregister host_address stream_query event_synchronize event_elapsed event_timestamp peer_access
mem_reserve mem_release mem_map mem_unmap ipc_export ipc_open ipc_close host_callback program_build program_destroy
kernel_get kernel_launch kernel_register graph_capture_begin graph_capture_end graph_instantiate graph_launch
graph_destroy graph_executable_destroy activity_enable activity_correlate activity_read
"""

# The entries that each minor version added at the end of the table.
ADDED_ENTRIES: tuple[tuple[str, ...], ...] = (
    tuple(_FIRST.split()),
    (),
    (),
    ("program_binary",),
    (),
    ("event_signal",),
    (),
    (),
    (),
)

_FIRST_SIZES = {
    "ob_options": 32,
    "ob_device_properties": 568,
    "ob_copy": 40,
    "ob_copy_nd": 64,
    "ob_program_source": 40,
    "ob_kernel_arg": 32,
    "ob_launch": 88,
    "ob_tensor": 48,
    "ob_value": 56,
    "ob_kernel_call": 80,
    "ob_registrar": 24,
    "ob_activity": 192,
    "ob_driver": 456,
}
_SECOND_SIZES = _FIRST_SIZES | {"ob_device_properties": 576}
_THIRD_SIZES = _SECOND_SIZES | {"ob_device_properties": 584, "ob_launch": 96}

_FOURTH_SIZES = _THIRD_SIZES | {"ob_kernel_call": 96, "ob_driver": 464}
_SIXTH_SIZES = _FOURTH_SIZES | {"ob_driver": 472}
_SEVENTH_SIZES = _SIXTH_SIZES | {"ob_kernel_call": 112, "ob_registrar": 32}

# The sizes of the structs by minor version.
SIZES: tuple[dict[str, int], ...] = (
    _FIRST_SIZES,
    _SECOND_SIZES,
    _THIRD_SIZES,
    _FOURTH_SIZES,
    _FOURTH_SIZES,
    _SIXTH_SIZES,
    _SEVENTH_SIZES,
    _SEVENTH_SIZES,
    _SEVENTH_SIZES,
)
