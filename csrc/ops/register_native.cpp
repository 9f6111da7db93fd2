// SPDX-License-Identifier: BSD-3-Clause
#include "ops/register_native.h"

#include <c10/util/Exception.h>

#include <exception>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "core/driver.h"
#include "core/error.h"
#include "kernels/builds.h"
#include "kernels/program_store.h"
#include "ops/boxed.h"
#include "ops/native/native.h"
#include "ops/native/native_c.h"

namespace outboard {

namespace {

// The argument of a driver's kernel_register. It keeps the error of a refused kernel:
// the driver gets only its status.
struct Registration {
  std::string error;
};

ob_status add_with_query(void* context, const char* op, ob_operator_fn fn, ob_operator_fn query, void* user) {
  std::string& error = static_cast<Registration*>(context)->error;
  try {
    if (const std::string unknown = describe_unknown_operator(op); !unknown.empty()) {
      error = unknown;
      return OB_NOT_FOUND;
    }
    register_native_kernel(op, driver_kernel(fn, query, user));
    return OB_OK;
  } catch (const std::exception& thrown) {
    error = std::string("registering a kernel for ") + op + " failed: " + thrown.what();
    return OB_INTERNAL;
  }
}

ob_status add_kernel(void* context, const char* op, ob_operator_fn fn, void* user) {
  return add_with_query(context, op, fn, nullptr, user);
}

std::string_view text_of(const void* key, size_t size) {
  return {static_cast<const char*>(key), size};
}

// Nothing may be thrown through the driver.
void report_unkept(const std::exception& thrown) {
  TORCH_WARN("driver '", driver_name(), "' could not store data for later processes, or read it: ", thrown.what());
}

void keep(int32_t device, const void* key, size_t key_size, const void* bytes, size_t size) {
  try {
    const std::string full_key = kernels::store_key(static_cast<c10::DeviceIndex>(device), text_of(key, key_size));
    if (!full_key.empty()) {
      kernels::write_program(full_key, std::string(text_of(bytes, size)));
    }
  } catch (const std::exception& thrown) {
    report_unkept(thrown);
  }
}

// The bytes of packs, by device and key.
struct Provided {
  std::mutex mutex;
  std::map<std::pair<int32_t, std::string>, std::string> bytes;
};

Provided& provided() {
  static auto* const instance = new Provided;  // threads may outlive static destruction
  return *instance;
}

std::string find_provided(int32_t device, std::string_view key) {
  Provided& all = provided();
  const std::lock_guard lock(all.mutex);
  const auto found = all.bytes.find({device, std::string(key)});
  return found == all.bytes.end() ? std::string() : found->second;
}

ob_status recall(int32_t device, const void* key, size_t key_size, void* context, ob_take_fn take) {
  std::string bytes;
  try {
    const std::string full_key = kernels::store_key(static_cast<c10::DeviceIndex>(device), text_of(key, key_size));
    bytes = full_key.empty() ? "" : kernels::read_program(full_key);
    if (bytes.empty()) {
      bytes = find_provided(device, text_of(key, key_size));
    }
  } catch (const std::exception& thrown) {
    report_unkept(thrown);
  }
  if (bytes.empty()) {
    return OB_NOT_FOUND;
  }
  take(context, bytes.data(), bytes.size());
  return OB_OK;
}

ob_status build_in_background(ob_host_fn fn, void* user) {
  try {
    return kernels::start_task([fn, user] { fn(user); }) ? OB_OK : OB_UNAVAILABLE;
  } catch (const std::exception&) {  // no memory for the queue
    return OB_UNAVAILABLE;
  }
}

}  // namespace

void register_native_kernel(const std::string& op, NativeKernel kernel) {
  install_chain(route_native_kernel(op, std::move(kernel)));
}

void register_driver_kernels() {
  if (!driver().kernel_register) {
    return;
  }
  Registration registration;
  ob_registrar registrar{};
  registrar.struct_size = sizeof(registrar);
  registrar.context = &registration;
  registrar.add = add_kernel;
  registrar.add_with_query = add_with_query;
  registrar.keep = keep;
  registrar.recall = recall;
  registrar.build_in_background = build_in_background;
  const ob_status status = driver().kernel_register(driver().self, &registrar);
  if (status != OB_OK && !is_unimplemented(status) && !registration.error.empty()) {
    raise(ErrorKind::Registration, status, "kernel_register of driver '" + driver_name() + "': " + registration.error);
  }
  if (!is_unimplemented(status)) {
    check(status, "kernel_register", OB_HOST);
  }
}

void provide_kept(c10::DeviceIndex device, const std::string& key, std::string bytes) {
  Provided& all = provided();
  const std::lock_guard lock(all.mutex);
  all.bytes.insert_or_assign({device, key}, std::move(bytes));
}

}  // namespace outboard
