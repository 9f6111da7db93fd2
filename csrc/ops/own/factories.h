// SPDX-License-Identifier: BSD-3-Clause
// The operators that bypass the providers: allocation, views, storage, copies, scalars, fills.
#pragma once

#include <torch/library.h>

namespace outboard {

void register_factories(torch::Library& aten);
void register_views(torch::Library& aten);
void register_fill(torch::Library& aten);
void register_scalars(torch::Library& aten);
void register_ctc(torch::Library& aten);
void register_recurrent(torch::Library& aten);
void register_recurrent_cells();
void register_recurrent_nets();
void register_dropout(torch::Library& aten);
void register_composites(torch::Library& aten);
void register_attention();
void register_grouped_products(torch::Library& aten);
void register_lists();
void register_sparse();
void register_rms_norm();
void register_sync_batch_norm(torch::Library& aten);

}  // namespace outboard
