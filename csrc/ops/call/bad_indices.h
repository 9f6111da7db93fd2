// SPDX-License-Identifier: BSD-3-Clause
// Rules for indexing operators. Each returns whether torch refuses the arguments, which are in the
// table's order.
#pragma once

namespace outboard {

class Arguments;

bool is_bad_index_select(const Arguments& args);          // self, index
bool is_bad_index_reduce(const Arguments& args);     // self, dim, index, source
bool is_bad_reduction_name(const Arguments& args);      // reduce
bool is_bad_put(const Arguments& args);             // self, index, source
bool is_bad_index_fill(const Arguments& args);            // self, index, value
bool is_bad_index_copy(const Arguments& args);           // self, index, source
bool is_bad_index_put(const Arguments& args);  // self, indices, values
bool is_bad_index(const Arguments& args);          // self, indices

}  // namespace outboard
