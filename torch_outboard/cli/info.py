# SPDX-License-Identifier: BSD-3-Clause
"""`outboard info`: shows what is installed, what works, and why the rest does not work."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from typing import Any

import click

from torch_outboard._build import build_info, check_built_for, check_torch_version, installed_torch, rebuild_command
from torch_outboard._discovery import FoundDriver, attaches_itself, found_drivers
from torch_outboard._version import __version__
from torch_outboard.cli.torch_first import import_torch
from torch_outboard.driver import WITHOUT, Driver

__all__ = ["info", "parse_options"]


@click.command()
@click.option("--driver", metavar="NAME", help="Attach this driver, and show its devices and entries.")
@click.option("--option", "-o", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@click.option("--patches", is_flag=True, help="Show the changes to torch, and their reasons, instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(driver: str | None, options: tuple[str, ...], patches: bool, as_json: bool) -> None:
    """Show versions, drivers, devices, and the entries that each driver has or lacks.

    If the extension does not load, the command still works and prints the reason. Exits with 1 if the requested driver
    cannot be attached.
    """
    if patches:
        _show_patches(as_json)
        return
    settings = parse_options(options)
    if _needs_fresh_process(driver):
        sys.exit(_without_autoload(driver, settings, as_json))
    report = _report(driver, settings)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    if report["attached"] is not None and report["attached"]["error"]:
        sys.exit(1)


def _needs_fresh_process(driver: str | None) -> bool:
    """Return True if importing torch attached another driver than the requested one."""
    if driver is None:
        return False
    import_torch()
    from torch_outboard._attach import attached_driver, is_attached_as

    return attached_driver() is not None and not is_attached_as(driver)


def _without_autoload(driver: str | None, options: dict[str, str], as_json: bool) -> int:
    """Run this command again in a process without autoload, and return its status."""
    arguments = [f"--driver={driver}", *(f"--option={key}={value}" for key, value in options.items())]
    environment = {key: value for key, value in os.environ.items() if key != "OUTBOARD_DRIVER"}
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    code = "import sys; from torch_outboard.cli import main; main(sys.argv[1:], prog_name='outboard')"
    command = [sys.executable, "-c", code, "info", *arguments, *(["--json"] if as_json else [])]
    return subprocess.run(command, env=environment).returncode


def _show_patches(as_json: bool) -> None:
    import torch  # noqa: F401 - first, because it may attach a driver, which fails while this package is half imported

    from torch_outboard._compat.patches import PATCHES

    rows: list[dict[str, Any]] = [{**patch._asdict(), "is_needed": patch.is_needed()} for patch in PATCHES]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    # No table, because its columns would break names and URLs.
    for row in rows:
        state = "" if row["is_needed"] else " (not applied: this torch does not need it)"
        click.echo(f"{row['target']}{state}\n    changed to: {row['purpose']}")
        click.echo(f"    upstream: {row['upstream']}\n    ends when: {row['ends_when']}")
    click.echo("Patches are applied when a driver is attached, patches of the compiler when it is imported.")


def parse_options(options: tuple[str, ...]) -> dict[str, str]:
    """Parse options of the form KEY=VALUE.

    Raises click.BadParameter for an option without "=".
    """
    pairs = {}
    for option in options:
        key, separator, value = option.partition("=")
        if not separator:
            raise click.BadParameter(f"{option!r} has no '='; write KEY=VALUE", param_hint="--option")
        pairs[key] = value
    return pairs


def _report(driver: str | None, options: dict[str, str]) -> dict[str, Any]:
    if driver is None and ("torch" in sys.modules or attaches_itself()):
        import_torch()
        from torch_outboard._attach import attached_driver

        attached = attached_driver()  # by OUTBOARD_DRIVER, perhaps
        driver = None if attached is None else attached.name
    return {
        "outboard": __version__,
        "torch": installed_torch(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "extension": _extension(),
        "drivers": [_driver(installed) for installed in found_drivers().values()],
        "attached": None if driver is None else _attached(driver, options),
    }


def _extension() -> dict[str, Any]:
    """Report the versions that the extension was built for, and why it does not load.

    Loading the extension imports torch, which takes a second. Without a driver to attach, only its files are checked.
    """
    report: dict[str, Any] = {"torch": None, "python": None, "error": None}
    try:
        built = build_info()
        if built is not None:
            report |= {"torch": built.torch, "python": built.python}
        if "torch" in sys.modules:
            check_torch_version()
            from torch_outboard import _C  # noqa: F401
        else:
            check_built_for(installed_torch())
            if importlib.util.find_spec("torch_outboard._C") is None:
                raise ImportError(f"torch_outboard._C is missing from the package. Rebuild it: {rebuild_command()}")
    except ImportError as error:
        report["error"] = str(error)
    return report


def _driver(installed: FoundDriver) -> dict[str, Any]:
    report: dict[str, Any] = {
        "name": installed.name,
        "device": None,
        "target": installed.target,
        "distribution": installed.distribution,
        "options": {},
        "error": None,
    }
    try:
        driver = installed.load()
    except Exception as error:  # noqa: BLE001 - a foreign module may fail in any way; the cause is the answer
        report["error"] = f"{type(error).__name__}: {error}"
        return report
    report["device"] = driver.name
    report["options"] = {
        name: {"type": option.type.__name__, "default": option.default, "doc": option.doc}
        for name, option in driver.options.items()
    }
    report["error"] = _library_error(driver)
    return report


def _library_error(driver: type[Driver]) -> str | None:
    """Return why the driver's library does not load; None if it loads or the driver has none."""
    if driver.library is None:
        return None
    import ctypes

    try:
        ctypes.CDLL(str(driver.library))
    except OSError as error:
        return str(error)
    return None


def _attached(name: str, options: dict[str, str]) -> dict[str, Any]:
    from torch_outboard._attach import attach, attached_driver

    report: dict[str, Any] = {"name": name, "error": None, "devices": [], "entries": {}, "kernels": [], "waiting": []}
    report["refused"], report["libraries"], report["device"] = [], {}, None
    try:
        driver = attached_driver()
        module = attach(name, **options) if driver is None or driver.name != name or options else attach(driver)
    except Exception as error:  # noqa: BLE001 - the command reports any failure of the driver
        report["error"] = f"{type(error).__name__}: {error}"
        return report
    from torch_outboard import _C
    from torch_outboard.kernels import refused_operators

    report["entries"] = {entry: is_there for entry, is_there in _C.entries().items() if entry in WITHOUT}
    report["kernels"] = _C.native_operators()
    attached = attached_driver()
    if attached is not None:
        report["device"] = attached.name
        report["libraries"] = dict(attached.libraries())
    report["waiting"] = [
        {"operator": op, "difference": difference, "waits": waits} for op, difference, waits in _C.shape_disagreements()
    ]
    report["refused"] = [{"operator": op, "reason": reason} for op, reason in refused_operators()]
    report["devices"] = [_device(module, index, attached) for index in range(module.device_count())]
    if not report["devices"]:
        reason = _C.probe_error() or "the driver reports none"
        report["error"] = f"no device: {reason}"
    return report


def _device(module: Any, index: int, driver: Driver | None) -> dict[str, Any]:
    from torch_outboard.cli.where import where_operators_run
    from torch_outboard.kernels.tune.schedule_table import describe_table

    try:
        properties = module.get_device_properties(index)
        free, total = module.mem_get_info(index)
    except Exception as error:  # noqa: BLE001 - a broken device must not hide the others
        return {"index": index, "error": f"{type(error).__name__}: {error}"}
    return {
        "index": index,
        "name": properties.name,
        "architecture": properties.architecture,
        "driver_version": properties.driver_version,
        "total_memory": total,
        "free_memory": free,
        "schedules": describe_table(index),
        "operators": None if driver is None else where_operators_run(driver, index),
        "error": None,
    }


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(f"torch-outboard {report['outboard']}, torch {report['torch']}, Python {report['python']}")
    console.print(escape(report["platform"]))
    extension = report["extension"]
    if extension["error"]:
        console.print(f"The extension does not load: {escape(extension['error'])}")
    else:
        console.print(f"The extension was built for torch {extension['torch']}, Python {extension['python']}.")
    _print_drivers(console, report["drivers"], extension["error"])
    attached = report["attached"]
    if attached is None:
        console.print("Name a driver to see its devices: outboard info --driver NAME")
    else:
        _print_attached(console, attached)


def _table(*columns: str, title: str) -> Any:
    """Return a table for narrow terminals.

    The last column takes the remaining width and wraps; the others never wrap.
    """
    from rich import box
    from rich.table import Column, Table

    *first, last = columns
    heads = [*(Column(name, no_wrap=True) for name in first), Column(last, overflow="fold")]
    return Table(*heads, title=title, box=box.SIMPLE_HEAD, title_justify="left")


def _cells(*values: object) -> list[str]:
    from rich.markup import escape

    return [escape(str(value)) for value in values]


def _print_drivers(console: Any, drivers: list[dict[str, Any]], extension_error: str | None) -> None:
    if not drivers:
        console.print("No driver is installed: the entry-point group torch_outboard.drivers is empty.")
        return
    table = _table("driver", "device", "loads", "package and options, or error", title="Drivers")
    for driver in drivers:
        reason = driver["error"] or extension_error
        options = ", ".join(driver["options"])
        about = reason or f"{driver['distribution']}{f'; {options}' if options else ''}"
        table.add_row(*_cells(driver["name"], driver["device"] or "", "no" if reason else "yes", about))
    console.print(table)


def _print_attached(console: Any, attached: dict[str, Any]) -> None:
    if attached["error"]:
        console.print(*_cells(f"Driver {attached['name']}: {attached['error']}"))
    if attached["devices"]:
        table = _table("device", "memory", "free", "name, architecture, driver version", title="Devices")
        for device in attached["devices"]:
            if device["error"]:
                table.add_row(*_cells(device["index"], "", "", f"unusable: {device['error']}"))
                continue
            tuned = f"tuned schedules: {device['schedules']}" if device["schedules"] else ""
            about = [device["name"], device["architecture"], device["driver_version"], tuned]
            sizes = _size(device["total_memory"]), _size(device["free_memory"])
            table.add_row(*_cells(device["index"], *sizes, ", ".join(filter(None, about))))
        console.print(table)
    if attached["entries"]:
        _print_entries(console, attached["entries"])
        if attached["kernels"]:
            console.print("Registered kernels", style="italic")
            console.print(*_cells(f"  {len(attached['kernels'])}: {', '.join(attached['kernels'])}"))
        _print_operators(console, attached["devices"])
    if attached["libraries"]:
        table = _table("library", "where it is", title="Libraries")
        for name, where in attached["libraries"].items():
            table.add_row(*_cells(name, where))
        console.print(table)
    if attached["waiting"]:
        _print_waiting(console, attached["waiting"])
    if attached["refused"]:
        _print_refused(console, attached["refused"])
    if any(device["error"] is None for device in attached["devices"]):
        console.print(*_cells(f"Next: outboard test {attached['name']}, which tests all of this."))


def _print_operators(console: Any, devices: list[dict[str, Any]]) -> None:
    """Print where operators run; devices with the same answer share one entry."""
    places: dict[str, list[int]] = {}
    for device in devices:
        if device["error"] is None and device["operators"] is not None:
            listed = device["operators"]
            compiled = listed["compiler"] or "nothing: the driver names no code_generator"
            text = "\n".join([*(f"  eager: {line}" for line in listed["eager"]), f"  torch.compile: {compiled}"])
            places.setdefault(text, []).append(device["index"])
    for text, indices in places.items():
        of_devices = f" of devices {', '.join(map(str, indices))}" if len(places) > 1 else ""
        console.print(f"Operators{of_devices}", style="italic")
        console.print(*_cells(text))


def _print_entries(console: Any, entries: dict[str, bool]) -> None:
    from rich.padding import Padding

    there = [name for name, is_there in entries.items() if is_there]
    console.print("Optional entries", style="italic")
    text = ", ".join(there) if there else "none"
    console.print(Padding(f"{text}. An entry may still report that it is unsupported.", (0, 0, 0, 2)))
    missing: dict[str, list[str]] = {}
    for name, is_there in entries.items():
        if not is_there:
            missing.setdefault(WITHOUT[name], []).append(name)
    if not missing:
        return
    table = _table("missing", "consequence", title="")
    for consequence, names in missing.items():
        table.add_row("\n".join(names), consequence)
    console.print(table)


def _print_waiting(console: Any, rows: list[dict[str, Any]]) -> None:
    """Print the operators that waited in this process.

    A program can list its own by calling `main(["info"])` after it has attached a driver and called operators.
    """
    table = _table("operator", "waits", "because its meta kernel returned another shape", title="Operators that wait")
    for row in rows:
        table.add_row(*_cells(row["operator"], row["waits"], row["difference"]))
    console.print(table)


def _print_refused(console: Any, rows: list[dict[str, Any]]) -> None:
    """Print the operators without generated kernels that this process has called; see `_print_waiting`."""
    table = _table("operator", "reason", title="Operators without generated kernels")
    for row in rows:
        table.add_row(*_cells(row["operator"], row["reason"]))
    console.print(table)


def _size(value: int) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
