# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers of torch.<name>: one Philox generator for each device. Seeding and states open no device."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_outboard import _C
from torch_outboard.device._context import device_index

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]

_Device = torch.device | int | str | None

_generators: tuple[torch.Generator, ...] = ()


def default_generators() -> tuple[torch.Generator, ...]:
    """Return the devices' default generators, by index; torch.<name>.default_generators."""
    global _generators
    if not _generators:
        _generators = tuple(_C.default_generator(index) for index in range(_C.device_count()))
    return _generators


def _get_generator(device: torch.device) -> torch.Generator:
    return _C.default_generator(device_index(device))


def get_rng_state(device: _Device = None) -> torch.Tensor:
    """Return a device's state as 16 bytes on the CPU, as on CUDA: seed, then offset."""
    return _C.default_generator(device_index(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices."""
    return [generator.get_state() for generator in default_generators()]


def set_rng_state(new_state: torch.Tensor, device: _Device = None) -> None:
    """Set a device's state."""
    _C.default_generator(device_index(device)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of devices 0, 1, …."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _C.default_generator(device_index(None)).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed all devices' generators; torch.manual_seed calls this."""
    for generator in default_generators():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's generator from the system's randomness."""
    _C.default_generator(device_index(None)).seed()


def seed_all() -> None:
    """Seed all devices' generators with the same number from the system's randomness."""
    generators = default_generators()
    if generators:
        manual_seed_all(generators[0].seed())


def initial_seed() -> int:
    """Return the seed of the current device's generator."""
    return _C.default_generator(device_index(None)).initial_seed()
