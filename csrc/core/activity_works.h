// SPDX-License-Identifier: BSD-3-Clause
// Converts records of the driver and of the core's own events to a profile's work.
#pragma once

#include <torch_outboard/driver.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/activity.h"

namespace outboard {

using CallsByCorrelation = std::unordered_map<uint64_t, const CallRecord*>;

// Fill in the call's data for work that the core timed.
void complete(WorkRecord& work, const CallRecord& call);

void add_driver_records(const std::vector<ob_activity>& records, const CallsByCorrelation& calls,
                        ActivityProfile& profile);

// Correct work that seems to begin before its call. There are two causes. If the driver's
// conversion of the device's clock is off, shift the work and keep its duration. If the event
// before the work was reached before the call's time was taken, cut the work's beginning. A large
// difference indicates a wrong clock, which the profile's problems report.
void begin_with_calls(const CallsByCorrelation& calls, ActivityProfile& profile);

}  // namespace outboard
