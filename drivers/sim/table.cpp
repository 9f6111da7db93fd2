// SPDX-License-Identifier: BSD-3-Clause
// ob_driver_table, and the entries about devices.
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "entries.h"
#include "torch_outboard/support/table.h"

namespace sim {
namespace {

int32_t device_count(void* self) {
  int32_t count = 0;
  const ob_status status = enter<Entry::device_count>(self, [&](const Call& call) {
    count = call.driver.options.devices;
    return OB_OK;
  });
  return status == OB_OK ? count : -status;
}

ob_status device_properties(void* self, int32_t index, ob_device_properties* out_properties) {
  return enter<Entry::device_properties>(self, [&](const Call& call) -> ob_status {
    const Options& options = call.driver.options;
    if (const ob_status status = call.driver.check_index(index); status != OB_OK) return status;
    ob_device_properties properties = {};
    utsname host = {};
    uname(&host);
    std::snprintf(properties.name, sizeof properties.name, "Simulated accelerator");
    std::snprintf(properties.vendor, sizeof properties.vendor, "torch-outboard");
    std::snprintf(properties.architecture, sizeof properties.architecture, "sim-%.50s", host.machine);
    std::snprintf(properties.driver_version, sizeof properties.driver_version, "%u.%u", OB_ABI_MAJOR, OB_ABI_MINOR);
    std::memcpy(properties.uuid, "outboard-sim", 12);
    std::memcpy(properties.uuid + 12, &index, sizeof index);
    properties.total_memory = options.memory;
    properties.major = 1;
    properties.multi_processor_count = static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
    properties.stream_priority_greatest = -1;
    properties.mem_granularity = kMapGranularity;
    properties.machine = OB_MACHINE_CPU;
    support::return_struct(properties, out_properties);
    return OB_OK;
  });
}

ob_status device_open(void* self, int32_t index) {
  return enter<Entry::device_open>(self, [&](const Call& call) { return call.driver.open(index); });
}

ob_status device_close(void* self, int32_t index) {
  return enter<Entry::device_close>(self, [&](const Call& call) { return call.driver.close(index); });
}

ob_status device_synchronize(void* self, int32_t index) {
  return enter_device<Entry::device_synchronize>(self, index, [&](const Call& call, Device&) {
    call.driver.drain(index);
    return call.driver.take_failure(index);
  });
}

ob_status peer_access(void* self, int32_t index, int32_t peer, int32_t* out_can_access) {
  return enter<Entry::peer_access>(self, [&](const Call& call) -> ob_status {
    ob_status status = call.driver.check_index(index);
    if (status == OB_OK) status = call.driver.check_index(peer);
    if (status == OB_OK) *out_can_access = 1;
    return status;
  });
}

void last_error(void* self, char* buffer, size_t size) {
  copy_last_error(static_cast<Driver*>(self)->repeats, buffer, size);
}

void destroy(void* self) {
  delete static_cast<Driver*>(self);
}

}  // namespace

void fill_device_entries(ob_driver* table) {
  table->device_count = device_count;
  table->device_properties = device_properties;
  table->device_open = device_open;
  table->device_close = device_close;
  table->device_synchronize = device_synchronize;
  table->peer_access = peer_access;
  table->last_error = last_error;
  table->destroy = destroy;
}

void fill_entries(ob_driver* table, const Options& options) {
  fill_device_entries(table);
  fill_memory_entries(table, options.ipc);
  fill_host_memory_entries(table);
  fill_stream_entries(table);
  // Inline, a wait would block the caller, who may be the one to signal.
  fill_event_entries(table, options.schedule != Schedule::kInline);
  fill_copy_entries(table);
  fill_activity_entries(table);
}

}  // namespace sim

extern "C" OB_EXPORT ob_status ob_driver_table(const ob_options* options, ob_driver* out_driver, char* error,
                                               size_t error_size) {
  const auto fill = [](sim::Options parsed, ob_driver& table) {
    sim::fill_entries(&table, parsed);
    if (parsed.poison) table.flags |= OB_DRIVER_POISONS;
    table.self = new sim::Driver(parsed);
  };
  return support::return_table(sim::parse_options, options, out_driver, error, error_size, fill);
}
