// SPDX-License-Identifier: BSD-3-Clause
// From the records of a driver and of the core's own events to the work of a profile.
#pragma once

#include <torch_outboard/driver.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/activity.h"

namespace outboard {

using CallsByCorrelation = std::unordered_map<uint64_t, const CallRecord*>;

// Complete work that the core timed with the data of its call.
void complete(WorkRecord& work, const CallRecord& call);

void add_driver_records(const std::vector<ob_activity>& records, const CallsByCorrelation& calls,
                        ActivityProfile& profile);

// Correct work that seems to begin before its call, for two reasons. A driver's conversion of its
// device's clock is off: then the work is shown later, and as long as it took. The event before the
// work was reached before the call's time was taken: then the work is cut. A large difference means
// a wrong clock, which the profile's problems name.
void begin_with_calls(const CallsByCorrelation& calls, ActivityProfile& profile);

}  // namespace outboard
