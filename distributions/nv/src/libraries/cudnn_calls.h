// SPDX-License-Identifier: BSD-3-Clause
// What the operators by cuDNN have in common.
#pragma once

#include <optional>

#include "../driver.h"
#include "call.h"

namespace nv {

namespace cudnn {

// Return cuDNN's number for a type, if it computes with it.
std::optional<int> type_of(ob_dtype dtype);

}  // namespace cudnn

// Decline a call: another provider runs it.
ob_status decline_cudnn(const char* reason);

// Return the device's session, made at the first call. Decline if the library can't be used.
ob_status session_of(Driver& driver, Device& device, cudnn::Session** out_session);

// Take memory for the call. Decline without enough of it: another way may do with less.
ob_status take_scratch(const ob_kernel_call& request, uint64_t bytes, uint64_t* out_address);

}  // namespace nv
