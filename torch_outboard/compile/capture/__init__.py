# SPDX-License-Identifier: BSD-3-Clause
"""mode="reduce-overhead": the generated code of a graph is captured once and replayed.

Each set of sizes, and each set of addresses of static inputs, gets its own capture. Static inputs are weights, buffers,
and the tensors that a forward pass has saved for its backward pass. Other inputs are copied into the capture's own
memory. The first call with a new set runs without capture; the second call is captured.

The results of a replay stay in the capture's memory, and the next replay overwrites them. Every result that the caller
may keep is therefore copied out. Tensors that only the backward pass reads stay in place: the references to their
memory are counted, and while there is one, the forward pass runs without replay.
"""
