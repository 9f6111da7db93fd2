# SPDX-License-Identifier: BSD-3-Clause
"""Schedules chosen for a device: all compute the same, how one is chosen, and when a table is used."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_outboard._errors import NotSupportedError
from torch_outboard.kernels import builder
from torch_outboard.kernels.disk.packs import Packs
from torch_outboard.kernels.disk.store import Store
from torch_outboard.kernels.tune import measuring, schedule_table
from torch_outboard.kernels.tune.schedules import PARAMETERS, SCHEDULE, Schedule, default_of
from torch_outboard.testing.database.calls import poison

pytestmark = pytest.mark.usefixtures("own_plans")


@pytest.fixture
def kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_plans: Callable[[], None]
) -> Iterator[Callable[[], Store]]:
    """Yield a function that simulates the start of a process: only the data on disk are known."""

    def begin() -> Store:
        store = Store(tmp_path)
        monkeypatch.setattr(builder, "store", lambda: store)
        schedule_table._stored_table.cache_clear()
        own_plans()
        return store

    monkeypatch.setattr(schedule_table, "default_folder", lambda: tmp_path)
    monkeypatch.setattr(builder, "packs", lambda: Packs([]))
    yield begin
    schedule_table._stored_table.cache_clear()


def other_schedule(name: str, place: int = 1) -> dict[str, int]:
    """Return a schedule of the `place`-th values, or of the last values."""
    parameters = PARAMETERS[name.partition(" ")[0]]
    return {parameter: values[min(place, len(values) - 1)] for parameter, values in parameters.items()}


def stored_schedules(store: Store) -> set[str]:
    """Return the schedules that the kernels on disk name."""
    kernels = [kernel for entry in store.entries() if entry.answer is not None for kernel in entry.answer.kernels]
    lines = {line for kernel in kernels for line in kernel.code.decode().splitlines()}
    return {line.removeprefix(SCHEDULE) for line in lines if line.startswith(SCHEDULE)}


def text_of(name: str, schedule: Schedule) -> str:
    return f"{name}: {', '.join(f'{parameter} {value}' for parameter, value in schedule.items())}"


def products(device: torch.device) -> str:
    return measuring.names_of(device, "^product", ["float32"])[0]


def check_product(device: torch.device) -> None:
    x, y = torch.randn(67, 300), torch.randn(300, 45)
    poison(device)
    torch.testing.assert_close((x.to(device) @ y.to(device)).cpu(), x @ y, rtol=1e-4, atol=1e-4)


def results_of(device: torch.device) -> list[torch.Tensor]:
    """Return products, a convolution and attention with gradients, with sizes that are not round."""
    generator = torch.Generator().manual_seed(3)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(device).requires_grad_()

    images, weight, heads = random(2, 5, 19, 23), random(7, 5, 3, 3), [random(2, 3, 101, 20) for _ in range(3)]
    left, right = random(3, 67, 130), random(3, 130, 45)
    poison(device)
    results = [
        left @ right,
        F.conv2d(images, weight, padding=1),
        F.scaled_dot_product_attention(*heads, is_causal=True),
    ]
    leaves = [left, right, images, weight, *heads]
    return [
        tensor.cpu()
        for tensor in (*results, *torch.autograd.grad([result.square().sum() for result in results], leaves))
    ]


@pytest.mark.parametrize("place", [1, 2] if os.environ.get("OUTBOARD_TEST_SAMPLES") == "all" else [1])
def test_every_schedule_computes_the_same(place: int, device: torch.device) -> None:
    names = measuring.names_of(device, "", ["float32"])
    assert len(names) == 5
    with schedule_table.use_schedules({name: other_schedule(name, place) for name in names}):
        results = results_of(device)
    for result, wanted in zip(results, results_of(torch.device("cpu")), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-3)


def test_the_fastest_is_chosen(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds' ratios decide: a value whose gain is within the noise is not chosen."""
    name = products(device)
    first, second, *_ = PARAMETERS[name.partition(" ")[0]]
    wanted = {**default_of(name), first: PARAMETERS[name.partition(" ")[0]][first][1]}

    def seconds(tried: dict[str, Any], device: torch.device, rounds: int, least: float) -> dict[str, list[float]]:
        return {
            trial: [
                (1.0 if tried[trial].schedule[first] == wanted[first] else 2.0)
                * (0.98 if tried[trial].schedule[second] != wanted[second] else 1.0)
                * turn
                for turn in range(1, rounds + 1)
            ]
            for trial in tried
        }

    monkeypatch.setattr(measuring, "rounds_of", seconds)
    (choice,) = measuring.tune(device, [name], 48, 3)
    assert choice.schedule == wanted and choice.refused == {}
    assert (choice.before, choice.seconds) == (4.0, 2.0)
    check_product(device)  # by the plans of before


def test_what_is_wrong_is_not_chosen(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    name = products(device)
    parameter, (value, wrong, *_) = next(iter(PARAMETERS[name.partition(" ")[0]].items()))
    real = measuring._Trial.check

    def check(tried: Any, first: Any) -> None:
        if tried.schedule[parameter] == wrong:
            raise AssertionError("Tensor-likes are not close!\nand more")
        real(tried, first)

    monkeypatch.setattr(measuring._Trial, "check", check)
    monkeypatch.setattr(measuring, "rounds_of", lambda tried, *arguments: {trial: [1.0] for trial in tried})
    (choice,) = measuring.tune(device, [name], 48, 3)
    assert choice.schedule[parameter] == value
    assert choice.refused == {f"{parameter} {wrong}": "AssertionError: Tensor-likes are not close!"}


def test_events_without_times_are_refused(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "has_timing", lambda: False)
    with pytest.raises(NotSupportedError, match="needs event timing. Implement event_elapsed or event_timestamp"):
        list(measuring.tune(device, [products(device)], 32, 1))


@pytest.mark.usefixtures("generated_products")
def test_plans_follow_the_table(device: torch.device, kept: Callable[[], Store], tmp_path: Path) -> None:
    name = products(device)
    store = kept()
    check_product(device)
    torch.ones(2, device=device).neg()
    assert stored_schedules(store) == {text_of(name, default_of(name))} and store.saved == 2

    # With a table plans of products are others, and those without a schedule the same.
    chosen = other_schedule(name)
    schedule_table.write(tmp_path, device.index, {name: chosen})
    store = kept()
    check_product(device)
    # What is read of the class without a table is not taken.
    assert (store.loaded, store.saved) == (1, 1)
    assert stored_schedules(store) == {text_of(name, default_of(name)), text_of(name, chosen)}
    torch.ones(2, device=device).neg()
    assert (store.loaded, store.saved) == (2, 1)
    store = kept()
    check_product(device)
    assert (store.loaded, store.saved) == (2, 0)

    # Without it they are those of before.
    assert schedule_table.remove(tmp_path, device.index) and not schedule_table.remove(tmp_path, device.index)
    assert schedule_table.describe_table(device.index) is not None  # read by this process
    store = kept()
    assert schedule_table.describe_table(device.index) is None
    check_product(device)
    assert (store.loaded, store.saved) == (1, 0)


@pytest.mark.usefixtures("generated_products")
def test_a_table_of_untuned_schedules_changes_no_plan(
    device: torch.device, kept: Callable[[], Store], tmp_path: Path
) -> None:
    name = products(device)
    kept()
    check_product(device)
    path = schedule_table.write(tmp_path, device.index, {name: default_of(name)})
    store = kept()
    check_product(device)
    assert (store.loaded, store.saved) == (1, 0) and schedule_table.describe_table(device.index) == str(path)


def _damage(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"schedules", b"schedule5"))


def _open_to_others(path: Path) -> None:
    path.chmod(0o666)


def _open_folder(path: Path) -> None:
    path.parent.chmod(0o777)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_damage, "the file is damaged; `outboard kernels tune` rebuilds it"),
        (_open_to_others, "other users can write to"),
        (_open_folder, "other users can write to"),
    ],
)
def test_harm_is_reported(
    harm: Callable[[Path], None],
    said: str,
    device: torch.device,
    kept: Callable[[], Store],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = products(device)
    path = schedule_table.write(tmp_path, device.index, {name: other_schedule(name)})
    harm(path)
    kept()
    with caplog.at_level(logging.WARNING):
        assert schedule_table.schedules_of(device.index).of(name) == default_of(name)
        assert schedule_table.schedules_of(device.index).digest == ""
    (record,) = caplog.records
    assert said in record.getMessage() and str(path) in record.getMessage()
    assert said in schedule_table.describe_table(device.index)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"code of this package": "old"}, "measured with another code of this package; "),
        ({"generator": "old", "driver version": "old"}, "measured with another generator and another driver version; "),
    ],
)
def test_stale_tables_are_reported(
    what: dict[str, str],
    said: str,
    device: torch.device,
    kept: Callable[[], Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = products(device)
    now = schedule_table._measured_with(device.index)
    monkeypatch.setattr(schedule_table, "_measured_with", lambda device: {**now, **what})
    schedule_table.write(tmp_path, device.index, {name: other_schedule(name)})
    monkeypatch.undo()
    assert said in schedule_table.read(tmp_path, device.index).obstacle
    assert schedule_table.read(tmp_path, device.index).of(name) == default_of(name)


@pytest.mark.parametrize(
    "schedules",
    [{"product.strips float32": {"block": 7}}, {"nothing.at_all float32": {}}, {"product.tiles int8": {"steps": 16}}],
)
def test_schedules_that_there_are_not_are_refused(
    schedules: dict[str, dict[str, int]], device: torch.device, tmp_path: Path
) -> None:
    schedule_table.write(tmp_path, device.index, schedules)
    tuned = schedule_table.read(tmp_path, device.index)
    assert "it contains unknown schedules" in tuned.obstacle and not tuned.schedules


def test_an_own_folder_that_others_may_write_is_closed_to_them(device: torch.device, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    path = schedule_table.write(tmp_path, device.index, {})
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert schedule_table.read(tmp_path, device.index).path == path
