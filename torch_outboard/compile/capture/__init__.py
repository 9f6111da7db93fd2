# SPDX-License-Identifier: BSD-3-Clause
"""mode="reduce-overhead": what Inductor has generated for a graph is captured once and replayed.

One capture for each set of sizes, and for each set of addresses of what does not move: weights, buffers, and what a
forward pass has saved for its backward pass. Other inputs are copied into the capture's own memory. The first call with
such a set runs as generated, the second one is captured.

What a replay writes stays in the capture's memory, and the next replay writes there again. So whatever the caller may
keep is copied out. What only the backward pass reads stays where it is: there it is counted who holds the memory, and
while anybody does the forward pass runs as generated.
"""
