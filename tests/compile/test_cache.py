# SPDX-License-Identifier: BSD-3-Clause
"""The keys of compiled code in the caches, and hits in later compilations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import codecache

from torch_outboard import _C, _extension
from torch_outboard.compile.device import cache_key as module
from torch_outboard.testing.plugin import RunPython

from .conftest import COUNTS_BUILDS

PROCESS = f"""{COUNTS_BUILDS}
assert torch.compile(lambda x: x * 3 + 1.25, fullgraph=True)(x).tolist() == [7.25] * 7
print(len(builds))
"""


def _compile(device: torch.device) -> str:
    """Compile the same function anew, and return whether the caches had it."""
    torch._dynamo.reset()
    counters.clear()
    x = torch.ones(5, device=device)
    assert torch.compile(lambda x: x * 5 - 0.5, fullgraph=True)(x).tolist() == [4.5] * 5
    hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
    misses = counters["aot_autograd"]["autograd_cache_miss"]
    assert (hits > 0) != (misses > 0), counters
    return "hit" if hits > 0 else "miss"


@pytest.mark.core
def test_what_the_key_holds() -> None:
    key = dict(module.cache_key())
    assert key["driver"] == _C.driver_name()
    assert {"driver_version", "chip", "generator", "torch_outboard"} <= set(key)
    assert all(isinstance(value, str) for value in key.values())


@pytest.mark.parametrize("part", ["chip", "driver_version", "torch_outboard"])
def test_another_chip_driver_or_version_misses(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    _compile(device)
    assert _compile(device) == "hit"
    changed = tuple(sorted({**dict(module.cache_key()), part: "another"}.items()))
    with monkeypatch.context() as patch:
        patch.setattr(module, "cache_key", lambda: changed)
        codecache.CacheBase.get_system.cache_clear()
        assert _compile(device) == "miss"
    codecache.CacheBase.get_system.cache_clear()
    assert _compile(device) == "hit"


@pytest.mark.usefixtures("builds_cpp")
def test_another_environment_misses(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Compiled code includes headers of the one that compiled it, which may be gone."""
    request.addfinalizer(codecache.CacheBase.get_system.cache_clear)
    request.addfinalizer(module.cache_key.cache_clear)
    _compile(device)
    assert _compile(device) == "hit"
    copy = shutil.copytree(_extension.include_paths()[0], tmp_path / "include")
    monkeypatch.setattr(_extension, "include_paths", lambda: [str(copy)])
    module.cache_key.cache_clear()
    codecache.CacheBase.get_system.cache_clear()
    assert _compile(device) == "miss"


@pytest.mark.usefixtures("builds_cpp")
def test_a_second_process_compiles_nothing(
    run_python: RunPython, driver_target: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = run_python(PROCESS, driver_target).stdout
    second = run_python(PROCESS, driver_target).stdout
    assert int(first) > 0
    assert int(second) == 0


@pytest.mark.core
def test_the_patch_of_inductor_is_needed() -> None:
    from torch_outboard._compat.inductor import needs_fuse_as_on_cpu

    # It has been applied, and looks at the functions that it replaced.
    assert needs_fuse_as_on_cpu(), "torch asks the scheduling: remove torch_outboard/_compat/inductor.py"
