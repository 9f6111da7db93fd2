// SPDX-License-Identifier: BSD-3-Clause
// The words for a bad call: its CPU kernel is asked, on this thread, with arguments that stand in for the device's.
#pragma once

namespace outboard {

class Call;

// What stands in for a tensor of the device.
enum class StandIn {
  Whole,   // zeros of its shape and dtype
  Element  // one of its elements, where constants are what the kernel refuses
};

// Runs the CPU kernel on stand-ins and lets what it raises through: to be called where the arguments' metadata or
// constants show that it will raise, so that type and words are torch's own, in each version. For arguments too large to
// stand in for, the call is waited for.
void rehearse(const Call& call, StandIn stand_in);

}  // namespace outboard
