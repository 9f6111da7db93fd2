// SPDX-License-Identifier: BSD-3-Clause
// ATen's hooks of an accelerator as a whole.
#include "torch/hooks.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <limits>
#include <string>

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/process.h"
#include "core/queue.h"
#include "core/stream.h"
#include "memory/caching_allocator.h"
#include "memory/host_allocator.h"
#include "memory/sharing.h"
#include "torch/generator.h"

namespace outboard {

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    check_device_index(device);
    return is_open(device);
  }
  // Devices open at their first use; this only refuses a bad fork.
  void init() const override {
    if (in_bad_fork()) {
      ensure_open(current_device());
    }
  }

  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchange_device(device);
  }

  c10::Device getDeviceFromPtr(void* pointer) const override {
    const c10::DeviceIndex device = device_of_address(reinterpret_cast<uint64_t>(pointer));
    if (device < 0) {
      char address[32];
      std::snprintf(address, sizeof(address), "0x%" PRIx64, reinterpret_cast<uint64_t>(pointer));
      raise(ErrorKind::InvalidArgument, OB_NOT_FOUND,
            std::string("no device owns the memory at ") + address +
                ": for foreign memory, pass its device as from_blob's `device` or `target_device`");
    }
    return {kDeviceType, device};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }

  bool isPinnedPtr(const void* pointer) const override { return is_host_block(pointer) || is_pinned(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &host_allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t new_bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
    TORCH_CHECK_VALUE(new_bytes <= static_cast<size_t>(std::numeric_limits<int64_t>::max()),
                      "a storage can't have a negative size: ", static_cast<int64_t>(new_bytes),
                      " bytes were requested");
    const c10::DeviceIndex device = impl->device().index();
    Stream& stream = current_stream(device);
    c10::DataPtr data = allocate(stream, new_bytes);
    if (const size_t kept = std::min(new_bytes, impl->nbytes()); kept > 0 && impl->data() != nullptr) {
      ob_copy copy{};
      copy.struct_size = sizeof(copy);
      copy.dst = reinterpret_cast<uint64_t>(data.get());
      copy.src = reinterpret_cast<uint64_t>(impl->data());
      copy.bytes = kept;
      copy.dst_device = device;
      copy.src_device = device;
      queue_copy(stream, copy);
    }
    // The old block returns to its stream's pool. If that is another stream, its
    // reuse must wait for this copy.
    record_stream(impl->data_ptr(), stream);
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(new_bytes);
  }
};

}  // namespace

void register_hooks() {
  at::RegisterPrivateUse1HooksInterface(new Hooks());  // torch keeps it permanently
  // Torch pins host memory only for initialized device types, whatever isPinnedPtr
  // returns. A driver's own pinned memory and registered memory exist without a request
  // by torch, so initialize it here.
  at::globalContext().lazyInitDevice(kDeviceType);
}

}  // namespace outboard
