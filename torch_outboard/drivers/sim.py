# SPDX-License-Identifier: BSD-3-Clause
"""A simulated accelerator: asynchronous streams, memory that the host cannot access, faults on demand."""

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
        "devices": Option(int, None, "Number of devices (default: 2)."),
        "memory": Option(str, None, "Memory of each device, such as 512MiB (default: 4GiB)."),
        "schedule": Option(
            str, None, "normal, inline (run at once), lazy:SEED or pct:SEED (run only at waits, in seeded order)."
        ),
        "depth": Option(int, None, "Depth of the races that schedule=pct:SEED looks for (default: from the seed)."),
        "steps": Option(int, None, "Steps at which several streams can run, for even seeds of schedule=pct:SEED."),
        "changes": Option(int, None, "Maximum changes of ranks in schedule=pct:SEED (default: no limit)."),
        "workers": Option(int, None, "Threads that run the streams (default: 1)."),
        "fault": Option(
            str,
            None,
            "Faults: mem_alloc:3:OUT_OF_MEMORY makes the third call fail. OUTBOARD_SIM_FAULT adds to these.",
            is_in_environment=False,
        ),
        "fault_counts": Option(str, None, "A file for the number of calls of each entry."),
        "bandwidth": Option(str, None, "Modelled bytes per second of copies and fills, such as 16GiB; 0 for no limit."),
        "latency": Option(int, None, "Minimum duration of each piece of work, in nanoseconds."),
        "spin": Option(int, None, "Microseconds for which an idle thread looks for work before it sleeps."),
        "single_mapping": Option(bool, None, "Use host addresses as device addresses, for tools that need it."),
        "poison": Option(bool, None, "Fill fresh and freed memory, so that stale data cannot look right."),
        "collectives": Option(
            bool, None, "Use the driver's own inter-process collectives (default: through the host)."
        ),
        "ipc": Option(bool, None, "Let processes share memory."),
    }
