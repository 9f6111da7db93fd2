# SPDX-License-Identifier: BSD-3-Clause
"""Compiled functions in captured graphs."""

from __future__ import annotations

import torch


def test_a_replay_runs_the_kernels_again(device: torch.device) -> None:
    module = torch.get_device_module(device)
    x = torch.zeros(8, 8, device=device)
    function = torch.compile(lambda x: ((x + 1) @ x.t()).softmax(-1) * 2, fullgraph=True)
    function(x)
    graph = module.Graph()
    with module.graph(graph):
        result = function(x)
    torch.manual_seed(0)
    for _ in range(3):
        values = torch.randn(8, 8)
        x.copy_(values)
        graph.replay()
        torch.testing.assert_close(result.cpu(), ((values + 1) @ values.t()).softmax(-1) * 2)
