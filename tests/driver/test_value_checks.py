# SPDX-License-Identifier: BSD-3-Clause
"""Wrong values raise at the call where CUDA's operators wait, and at the next wait elsewhere, whatever runs them."""

from __future__ import annotations

import pytest
import torch

from .support import module_of, queues_operators, runs_operators
from .value_checks import AT_CALL, AT_WAIT


@pytest.mark.parametrize("name", AT_CALL)
@pytest.mark.database
def test_it_is_raised_at_the_call(device, name):
    if name != "_linalg_eigh":  # the CPU's library returns NaNs, CUDA's raises
        with pytest.raises(RuntimeError):
            AT_CALL[name]("cpu")
    with pytest.raises(RuntimeError):
        AT_CALL[name](device)
    module_of(device).synchronize(device)  # and not again


@pytest.mark.parametrize("name", AT_WAIT)
@pytest.mark.database
def test_it_is_raised_at_the_next_wait(device, name):
    if not queues_operators(device):
        pytest.skip("capability: a queue; without one, the call itself fails")
    with pytest.raises((RuntimeError, IndexError)):
        AT_WAIT[name]("cpu")
    result = AT_WAIT[name](device)
    with pytest.raises((RuntimeError, IndexError)):
        module_of(device).synchronize(device)
    module_of(device).synchronize(device)
    del result


def test_a_capture_leaves_the_check_to_the_kernel(device):
    """A capture cannot wait for values: a replay reports them as other failures."""
    if not runs_operators(device):
        pytest.skip("capability: kernels, the host's or generated ones. Copies are not captured")
    module = module_of(device)
    source, sorter = torch.arange(3.0, device=device), torch.arange(3, device=device)
    torch.searchsorted(source, source, sorter=sorter)  # builds it
    graph = module.Graph()
    with module.graph(graph):
        places = torch.searchsorted(source, source, sorter=sorter)
    graph.replay()
    assert places.tolist() == [0, 1, 2]
