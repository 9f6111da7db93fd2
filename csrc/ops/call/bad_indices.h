// SPDX-License-Identifier: BSD-3-Clause
// Rules of operators that index. Each says whether torch refuses the arguments,
// which are in the table's order.
#pragma once

namespace outboard {

class Arguments;

bool selects_badly(const Arguments& args);          // self, index
bool reduces_into_badly(const Arguments& args);     // self, dim, index, source
bool no_reduction_into(const Arguments& args);      // reduce
bool puts_badly(const Arguments& args);             // self, index, source
bool fills_badly(const Arguments& args);            // self, index, value
bool copies_badly(const Arguments& args);           // self, index, source
bool puts_at_indices_badly(const Arguments& args);  // self, indices, values
bool indexes_badly(const Arguments& args);          // self, indices

}  // namespace outboard
