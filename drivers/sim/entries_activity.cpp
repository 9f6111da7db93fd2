// SPDX-License-Identifier: BSD-3-Clause
// The entries for a profiler.
#include "entries.h"

namespace sim {
namespace {

ob_status activity_enable(void* self, uint32_t kinds) {
  return enter<Entry::activity_enable>(self, [&](const Call& call) -> ob_status {
    constexpr uint32_t kAll = OB_ACTIVITY_KERNEL | OB_ACTIVITY_COPY | OB_ACTIVITY_FILL | OB_ACTIVITY_HOST;
    if ((kinds & ~kAll) != 0) return fail(OB_INVALID_ARGUMENT, "activity_enable: unknown kinds 0x%x", kinds & ~kAll);
    call.driver.activity.enable(kinds);
    return OB_OK;
  });
}

ob_status activity_correlate(void* self, uint64_t correlation) {
  return enter<Entry::activity_correlate>(self, [&](const Call&) {
    Activity::set_correlation(correlation);
    return OB_OK;
  });
}

ob_status activity_read(void* self, size_t capacity, size_t stride, ob_activity* out_records, size_t* out_count) {
  return enter<Entry::activity_read>(self, [&](const Call& call) -> ob_status {
    if (capacity > 0 && stride < sizeof(size_t))
      return fail(OB_INVALID_ARGUMENT, "activity_read: invalid stride of %zu", stride);
    *out_count = call.driver.activity.read(capacity, stride, out_records);
    return OB_OK;
  });
}

}  // namespace

void fill_activity_entries(ob_driver* table) {
  table->activity_enable = activity_enable;
  table->activity_correlate = activity_correlate;
  table->activity_read = activity_read;
}

}  // namespace sim
