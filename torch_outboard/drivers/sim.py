# SPDX-License-Identifier: BSD-3-Clause
"""A simulated accelerator: asynchronous streams, memory that the host cannot touch, faults on demand."""

from torch_outboard.driver import Driver, Option
from torch_outboard.drivers import library_path

__all__ = ["SimDriver"]


class SimDriver(Driver):
    """The simulated device; drivers/sim/README.md describes the effect of each option."""

    name = "sim"
    library = library_path("sim")
    autocast = "default"
    code_generator = "cpp"
    options = {
        "devices": Option(int, None, "Number of devices; 2 if not given."),
        "memory": Option(str, None, "Bytes of each device, as 512MiB; 4GiB if not given."),
        "schedule": Option(
            str, None, "normal, inline (run at once), lazy:SEED or pct:SEED (run only at waits, in seeded order)."
        ),
        "depth": Option(int, None, "Depth of the races that schedule=pct:SEED looks for; by the seed if not given."),
        "steps": Option(int, None, "Steps at which several streams can run, for even seeds of schedule=pct:SEED."),
        "changes": Option(int, None, "Changes of ranks that schedule=pct:SEED makes; no limit if not given."),
        "workers": Option(int, None, "Threads that run the streams; 1 if not given."),
        "fault": Option(
            str,
            None,
            "Faults: mem_alloc:3:OUT_OF_MEMORY makes the third call fail. OUTBOARD_SIM_FAULT adds to these.",
            is_in_environment=False,
        ),
        "fault_counts": Option(str, None, "A file that holds the number of calls of each entry."),
        "bandwidth": Option(str, None, "Modelled bytes a second of copies and fills, as 16GiB; 0 for no limit."),
        "latency": Option(int, None, "Nanoseconds that each piece of work takes at least."),
        "spin": Option(int, None, "Microseconds that an idle thread looks for work before it sleeps."),
        "single_mapping": Option(bool, None, "Device addresses are host addresses, for tools that need that."),
        "poison": Option(bool, None, "Fresh and freed memory is filled, so that stale data cannot look right."),
        "collectives": Option(bool, None, "Collectives of its own, between processes; else they go through the host."),
        "ipc": Option(bool, None, "Memory can be shared with other processes."),
    }
