# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels explain`: the route of an operator's call, and the files that decide it."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

import click

from torch_outboard.cli.attached import attach_for_plans, set_variables
from torch_outboard.cli.output import check_names, print_plan, printable
from torch_outboard.cli.torch_first import import_torch

if TYPE_CHECKING:
    from torch_outboard.kernels.explain import Note, Run  # imports torch, which `outboard --help` must not wait for
    from torch_outboard.kernels.route import Decision, Route
    from torch_outboard.kernels.samples import SampleRequest

__all__ = ["explain"]

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")


@click.command()
@click.argument("operator")
@click.option("--driver", metavar="NAME", help="Call OPERATOR on this driver's first device, and show what ran.")
@click.option("--option", "-o", "options", multiple=True, metavar="KEY=VALUE", help="An option of the driver.")
@click.option("--dtype", default="float32", show_default=True, metavar="TYPE", help="Dtype of the call's tensors.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="SIZES", help="Sizes such as 4,3, once for each tensor or for all."
)
@click.option("--mask", is_flag=True, help="Index with a mask. A second --shape sets the shape of the values.")
@click.option(
    "--value", "values", multiple=True, metavar="NAME=JSON", help="Value of an argument, such as accumulate=true."
)
@click.option("--deterministic", is_flag=True, help="Call under torch.use_deterministic_algorithms.")
@click.option("--text", is_flag=True, help="Print plans and the kernels' source.")
def explain(
    operator: str,
    driver: str | None,
    options: tuple[str, ...],
    dtype: str,
    shapes: tuple[str, ...],
    mask: bool,
    values: tuple[str, ...],
    deterministic: bool,
    text: bool,
) -> None:
    """Explain what decides how OPERATOR (aten::index_put or add.Tensor) runs, by provider, with files and lines.

    With a driver, the operator is called with arguments that suit its schema. The command then shows which operators
    ran, on which provider, what each plan was made of, and why an operator has no plan. Plans on disk are not used.
    """
    check_names([dtype], _DTYPES, "--dtype")
    sizes = [_shape(shape) for shape in shapes]
    named_values = dict(map(_value, values))
    import_torch()
    import torch

    from torch_outboard.kernels.explain import chosen_operator, notes_of
    from torch_outboard.kernels.samples import SampleRequest

    device = None if driver is None else _attached(driver, options)
    try:
        name = chosen_operator(operator)
    except ValueError as error:
        raise click.BadParameter(printable(str(error)), param_hint="OPERATOR") from error
    from torch_outboard.kernels.operators import overload_of

    click.echo(f"{overload_of(name)._schema}\n")
    for note in notes_of(name):
        _print_note(note)
    if device is None:
        click.echo("\nWith --driver NAME, the operator is called, and its route through the chain is shown.")
    else:
        _call(name, SampleRequest(getattr(torch, dtype), sizes, mask, named_values), deterministic, device, text)


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in text.split(",") if size != "")
    except ValueError:
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise click.BadParameter(f"{text!r} is not a list of sizes such as 4,3", param_hint="--shape")
    return sizes


def _value(setting: str) -> tuple[str, Any]:
    name, _, text = setting.partition("=")
    try:
        return name, json.loads(text)
    except json.JSONDecodeError as error:
        message = f'{setting!r} is not NAME=JSON, such as accumulate=true, dim=[0,1] or reduction="sum"'
        raise click.BadParameter(printable(message), param_hint="--value") from error


def _attached(driver: str, options: tuple[str, ...]) -> Any:
    import torch

    from torch_outboard.kernels.disk import packs, store

    # Build every plan in this process, so that its route is recorded, and store none.
    set_variables({store.VARIABLE: "", packs.VARIABLE: ""}, OUTBOARD_FALLBACK="silent")
    module = attach_for_plans(driver, options)
    return torch.device(module.__name__.rpartition(".")[2], 0)


def _call(name: str, request: SampleRequest, deterministic: bool, device: Any, text: bool) -> None:
    import torch

    from torch_outboard.kernels.explain import run_call
    from torch_outboard.kernels.samples import NoSample, sample_call, shown

    try:
        positional, named = sample_call(name, request, device)
    except NoSample as error:
        raise click.ClickException(printable(str(error))) from error
    arguments = [*map(shown, positional), *(f"{key}={shown(value)}" for key, value in named.items())]
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    run = run_call(name, positional, named, device)
    mode = ", deterministic" if deterministic else ""
    click.echo("\n" + printable(f"{name}({', '.join(arguments)}) on {device}{mode}"))
    _print_run(name, run, text)


def _print_note(note: Note, indent: str = "  ") -> None:
    place = f"\n{indent}{'':11}{note.place}" if note.place else ""
    click.echo(f"{indent}{note.of:10} {printable(note.text)}{place}")


def _print_run(name: str, run: Run, text: bool) -> None:
    from torch_outboard.kernels.explain import notes_of
    from torch_outboard.kernels.reasons import explained

    click.echo(f"  the chain  {run.chain}")
    for operator, provider, calls in run.calls:
        click.echo(f"  {provider:10} ran {operator}{f', {calls} times' if calls > 1 else ''}")
        for note in notes_of(operator) if operator != name else ():
            if note.of in ("operator", "checks") or note.place.startswith("csrc/"):
                _print_note(note, "    ")
    for route in run.routes:
        count = len(route.kernels)
        built = f"The plan of {route.operator}, with {count} kernel{'' if count == 1 else 's'}, is built by"
        refused = f"No plan of {route.operator}: {explained(route.refusal)}"
        click.echo("\n" + printable(refused if route.refusal else built))
        _print_decisions(route)
        if text and not route.refusal:
            print_plan(route.text, route.kernels)
    operators = {route.operator for route in run.routes}
    for operator, reason in run.refused.items():
        if operator not in operators:
            click.echo("\n" + printable(f"No plan of {operator}: {explained(reason)}"))
    if run.error:
        click.echo("\n" + printable(f"The call raised {run.error}"))


def _print_decisions(route: Route) -> None:
    """Print the decisions; Inductor's lowerings in one line per file, without lowerings of numbers."""
    from torch_outboard.kernels.explain import name_of, place_of
    from torch_outboard.kernels.route import LOWERING, OF_INDUCTOR

    lowered: dict[str, list[str]] = {}
    for decision in route.decisions:
        if decision.what == LOWERING:
            path, _, line = place_of(decision.function).rpartition(":")
            if "::" in decision.operator:
                lowered.setdefault(path, []).append(f"{decision.operator} {line}".rstrip())
        elif not (decision.what == OF_INDUCTOR and decision.has_declined):
            _print_decision(decision, name_of(decision.function), place_of(decision.function))
    for path, ones in lowered.items():
        click.echo(f"  {LOWERING}s, by line{f' of {path}' if path else ''}:")
        click.echo(textwrap.fill(", ".join(ones), 100, initial_indent="    ", subsequent_indent="    "))


def _print_decision(decision: Decision, name: str, place: str) -> None:
    indent = "  " * (decision.depth + 1)
    declined = ", which declines" if decision.has_declined else ""
    click.echo(f"{indent}{decision.operator}: {decision.what}{f' {name}' if name else ''}{declined}")
    if place:
        click.echo(f"{indent}  {place}")
