// SPDX-License-Identifier: BSD-3-Clause
// The device guard behind torch.Stream, torch.Event, torch.accelerator and the autograd engine.
#include "torch/guard.h"

#include <c10/core/DeviceCapability.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <memory>

#include "core/capture.h"
#include "core/device.h"
#include "core/error.h"
#include "core/event.h"
#include "core/stream.h"
#include "core/sync_debug.h"
#include "memory/caching_allocator.h"
#include "torch/autograd_threads.h"

namespace outboard {

namespace {

// A driver's dtype bits and torch's capability bits are both indexed by ScalarType.
static_assert(OB_UINT8 == static_cast<int>(c10::ScalarType::Byte));
static_assert(OB_INT8 == static_cast<int>(c10::ScalarType::Char));
static_assert(OB_INT16 == static_cast<int>(c10::ScalarType::Short));
static_assert(OB_INT32 == static_cast<int>(c10::ScalarType::Int));
static_assert(OB_INT64 == static_cast<int>(c10::ScalarType::Long));
static_assert(OB_FLOAT16 == static_cast<int>(c10::ScalarType::Half));
static_assert(OB_FLOAT32 == static_cast<int>(c10::ScalarType::Float));
static_assert(OB_FLOAT64 == static_cast<int>(c10::ScalarType::Double));
static_assert(OB_COMPLEX32 == static_cast<int>(c10::ScalarType::ComplexHalf));
static_assert(OB_COMPLEX64 == static_cast<int>(c10::ScalarType::ComplexFloat));
static_assert(OB_COMPLEX128 == static_cast<int>(c10::ScalarType::ComplexDouble));
static_assert(OB_BOOL == static_cast<int>(c10::ScalarType::Bool));
static_assert(OB_BFLOAT16 == static_cast<int>(c10::ScalarType::BFloat16));
static_assert(OB_FLOAT8_E5M2 == static_cast<int>(c10::ScalarType::Float8_e5m2));
static_assert(OB_FLOAT8_E4M3FN == static_cast<int>(c10::ScalarType::Float8_e4m3fn));
static_assert(OB_UINT16 == static_cast<int>(c10::ScalarType::UInt16));
static_assert(OB_UINT32 == static_cast<int>(c10::ScalarType::UInt32));
static_assert(OB_UINT64 == static_cast<int>(c10::ScalarType::UInt64));

// An index of -1 means the current device.
c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : current_device();
}

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    return {kDeviceType, exchange_device(device.index())};
  }
  c10::Device getDevice() const override { return {kDeviceType, current_device()}; }
  void setDevice(c10::Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_device_unchecked(device.index()); }

  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = index_of(device);
    check_device_index(index);
    return to_c10(current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return to_c10(default_stream(index_of(device))); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const override {
    return to_c10(pool_stream(index_of(device), is_high_priority ? -1 : 0));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return to_c10(pool_stream(index_of(device), priority));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    Stream& next = from_c10(stream);
    const c10::Stream previous = to_c10(current_stream(next.device));
    set_current_stream(next);
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(handle_for_caller(from_c10(stream)));
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device_index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device_index == -1 || device_index == stream.device_index(), "Event device index ",
                static_cast<int>(device_index), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    Stream& target = from_c10(stream);
    if (*event) {
      static_cast<Event*>(*event)->record(target);
      return;
    }
    auto fresh = std::make_unique<Event>(flag == c10::EventFlag::BACKEND_DEFAULT ? uint32_t{OB_EVENT_TIMING} : 0u);
    fresh->record(target);
    *event = fresh.release();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) {
      static_cast<Event*>(event)->block(from_c10(stream));
    }
  }
  bool queryEvent(void* event) const override { return !event || static_cast<Event*>(event)->query(); }
  void synchronizeEvent(void* event) const override {
    if (event) {
      static_cast<Event*>(event)->synchronize(Interruptible::Yes);
    }
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    return static_cast<Event*>(start)->elapsed_ms(*static_cast<Event*>(end));
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return hides_devices() ? c10::DeviceIndex{0} : static_cast<c10::DeviceIndex>(device_count());
  }
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    c10::DeviceCapability capability;
    for (const c10::ScalarType quantized : {c10::kQInt8, c10::kQUInt8, c10::kQInt32, c10::kQUInt4x2, c10::kQUInt2x4}) {
      capability.capability_data.capability_bits &= ~(uint64_t{1} << static_cast<int>(quantized));
    }
    if (const uint64_t dtypes = device_properties(index_of(device)).dtypes) {
      capability.capability_data.capability_bits &= dtypes;
    }
    return capability;
  }

#if OUTBOARD_TORCH_MINOR >= 13
  bool isStreamCapturing(const c10::Stream& stream) const override { return capture_of(from_c10(stream)) != nullptr; }
#endif
  bool queryStream(const c10::Stream& stream) const override { return query_stream(from_c10(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override {
    note_sync("synchronize() of a stream");
    synchronize_stream(from_c10(stream), Interruptible::Yes);
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    synchronize_device(index < 0 ? current_device() : index, Interruptible::Yes);
  }
  void recordDataPtrOnStream(const c10::DataPtr& ptr, const c10::Stream& stream) const override {
    record_stream(ptr, from_c10(stream));
  }
};

}  // namespace

void register_guard() {
  static const GuardImpl guard;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(kDeviceType)].store(&guard);
}

}  // namespace outboard
