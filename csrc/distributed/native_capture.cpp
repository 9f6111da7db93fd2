// SPDX-License-Identifier: BSD-3-Clause
// Native calls in graphs. A call is captured as commands that queue its parts with the driver in
// each replay, where the group's watcher polls them like any call.
#include <c10/util/Exception.h>

#include "core/capture.h"
#include "distributed/native.h"

namespace outboard {

namespace {

class CollectiveCommand final : public DriverCommand {
 public:
  CollectiveCommand(NativeGroup& group, std::shared_ptr<const void> owner, Communicator& communicator,
                    NativeParts parts, const NativeCallInfo& info)
      : group_(group), owner_(std::move(owner)), communicator_(communicator), parts_(std::move(parts)), info_(info) {}
  void queue(Stream& stream) override { group_.replay(communicator_, parts_, info_, stream); }
  std::string describe() const override { return c10::str(info_.kind.name, " of ", info_.bytes, " bytes"); }

 private:
  NativeGroup& group_;
  const std::shared_ptr<const void> owner_;
  Communicator& communicator_;  // of the group, until the group ends
  const NativeParts parts_;
  const NativeCallInfo info_;
};

}  // namespace

bool NativeGroup::capture(Communicator& communicator, const NativePost& post, Staging& staging,
                          const NativeCallInfo& info, const std::shared_ptr<const void>& owner) {
  Stream& stream = *staging.out_stream();
  NativeCall call(communicator, stream, info, {});
  call.capture([&](NativeParts parts) {
    Capture* const capture = capture_of(stream);
    TORCH_INTERNAL_ASSERT(capture != nullptr, info.kind.name, ": the capture ended meanwhile");
    capture->add(stream, std::make_unique<CollectiveCommand>(*this, owner, communicator, std::move(parts), info));
  });
  const bool is_done = post(call, staging.in(), staging.out());
  if (is_done) {
    staging.queue_results(info.kind.title);
  }
  return is_done;
}

void NativeGroup::replay(Communicator& communicator, const NativeParts& parts, const NativeCallInfo& info,
                         Stream& stream) {
  failure_.check(info.kind.name);  // a group that has ended has no communicators
  auto staging =
      std::make_shared<Staging>(Transport::Native, CallStreams{&stream, &stream, &stream}, Tensors(), Tensors(),
                                /*is_in_place=*/true);
  {
    const std::lock_guard queueing(communicator.mutex);
    NativeCall call(communicator, stream, info, make_timeout_check(info.kind, info.timeout));
    guarded(info.kind, info.sequence, info.timeout, [&] {
      if (parts.is_grouped) {
        call.begin();
      }
      for (const ob_collective& part : parts.list) {
        if (!call.add(part)) {
          C10_THROW_ERROR(DistBackendError, "the driver no longer supports it");
        }
      }
      if (parts.is_grouped) {
        call.end();
      }
      staging->queue_results(info.kind.title);
    });
  }
  watch(c10::make_intrusive<DistributedWork>(rank_, info.kind, info.sequence, staging, Tensors(), nullptr), staging,
        info.timeout);
}

}  // namespace outboard
