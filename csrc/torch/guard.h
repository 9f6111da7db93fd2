// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace outboard {
void register_guard();
}
