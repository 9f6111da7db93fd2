// SPDX-License-Identifier: BSD-3-Clause
// Memory history and snapshots, in the format of PyTorch's memory visualiser.
#include "memory/history.h"

#include <c10/core/AllocatorConfig.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <unordered_map>
#include <vector>

#include "bindings/method.h"
#include "core/device.h"
#include "core/stream.h"

namespace outboard::bindings {

namespace {

namespace py = pybind11;
using Context = std::shared_ptr<c10::GatheredContext>;

std::shared_ptr<c10::GatheredContext> gather_python() {
  return python_is_gone() ? nullptr : torch::CapturedTraceback::gather(true, true, false);
}
std::shared_ptr<c10::GatheredContext> gather_all() {
  return python_is_gone() ? nullptr : torch::CapturedTraceback::gather(true, true, true);
}

void record_history(bool is_on, bool is_traced, int64_t when, bool with_cpp, uint64_t max_entries, uint64_t skipped,
                    bool is_cleared) {
  record_memory_history({is_on, is_traced, static_cast<RecordContext>(when), with_cpp ? gather_all : gather_python,
                         static_cast<size_t>(max_entries), static_cast<uint32_t>(skipped), is_cleared});
}

// Stacks are only noted here. They are symbolized together at the end,
// because many entries share one.
class Stacks {
 public:
  void want(const py::dict& entry, const Context& context) {
    if (auto* traceback = dynamic_cast<torch::CapturedTraceback*>(context.get())) {
      const auto [place, is_new] = places_.try_emplace(traceback, tracebacks_.size());
      if (is_new) {
        tracebacks_.push_back(traceback);
      }
      wanted_.emplace_back(entry, place->second);
    } else {
      entry["frames"] = py::list();
    }
  }
  void fill() {
    const torch::SymbolizedTracebacks symbolized = torch::symbolize(tracebacks_);
    std::vector<py::dict> frames;
    for (const auto& frame : symbolized.all_frames) {
      py::dict& entry = frames.emplace_back();
      entry["name"] = frame.funcname;
      entry["filename"] = frame.filename;
      entry["line"] = frame.lineno;
    }
    std::vector<py::list> stacks;
    for (const auto& traceback : symbolized.tracebacks) {
      py::list& stack = stacks.emplace_back();
      for (const uint64_t frame : traceback) {
        stack.append(frames.at(frame));
      }
    }
    for (auto& [entry, place] : wanted_) {
      entry["frames"] = stacks.at(place);
    }
  }

 private:
  std::unordered_map<torch::CapturedTraceback*, size_t> places_;
  std::vector<torch::CapturedTraceback*> tracebacks_;
  std::vector<std::pair<py::dict, size_t>> wanted_;
};

int64_t stream_id(const void* stream) {
  return stream ? static_cast<const Stream*>(stream)->id : 0;
}

py::dict to_dict(const SegmentInfo& segment, Stacks& stacks) {
  py::dict result;
  result["device"] = static_cast<int>(segment.device);
  result["address"] = segment.address;
  result["total_size"] = segment.total_size;
  result["allocated_size"] = segment.allocated_size;
  result["active_size"] = segment.active_size;
  result["requested_size"] = segment.requested_size;
  result["stream"] = stream_id(segment.stream);
  result["segment_type"] = segment.is_large ? "large" : "small";
  result["segment_pool_id"] = py::make_tuple(segment.owner_private_pool_id.first, segment.owner_private_pool_id.second);
  result["is_expandable"] = segment.is_expandable;
  stacks.want(result, segment.context_when_allocated);
  py::list blocks;
  size_t address = segment.address;
  for (const auto& info : segment.blocks) {
    py::dict block;
    block["address"] = address;
    block["size"] = info.size;
    block["requested_size"] = info.requested_size;
    block["state"] = info.allocated ? "active_allocated" : info.active ? "active_pending_free" : "inactive";
    stacks.want(block, info.context_when_allocated);
    blocks.append(block);
    address += info.size;
  }
  result["blocks"] = blocks;
  return result;
}

const char* name_of(TraceEntry::Action action) {
  switch (action) {
    case TraceEntry::ALLOC:
      return "alloc";
    case TraceEntry::FREE_REQUESTED:
      return "free_requested";
    case TraceEntry::FREE_COMPLETED:
      return "free_completed";
    case TraceEntry::SEGMENT_ALLOC:
      return "segment_alloc";
    case TraceEntry::SEGMENT_FREE:
      return "segment_free";
    case TraceEntry::SEGMENT_MAP:
      return "segment_map";
    case TraceEntry::SEGMENT_UNMAP:
      return "segment_unmap";
    case TraceEntry::SNAPSHOT:
      return "snapshot";
    case TraceEntry::OOM:
      return "oom";
    default:  // torch 2.15 has one more action, which is never recorded here
      return "unknown";
  }
}

py::dict to_dict(const TraceEntry& entry, Stacks& stacks) {
  py::dict result;
  result["action"] = name_of(entry.action_);
  result[entry.action_ == TraceEntry::OOM ? "device_free" : "addr"] = entry.addr_;
  result["size"] = entry.size_;
  result["stream"] = stream_id(entry.stream_);
  result["time_us"] = entry.time_.t_;
  result["pool_id"] = py::make_tuple(entry.mempool_.first, entry.mempool_.second);
  result["compile_context"] = entry.compile_context_;
  result["user_metadata"] = entry.user_metadata_;
  stacks.want(result, entry.context_);
  return result;
}

// {"segments": […], "device_traces": [[…], …]}; without traces if the argument is false.
PyObject* take_snapshot(bool with_traces) {
  std::vector<MemorySnapshot> snapshots;
  unlocked_call([&] {
    for (int i = 0; i < device_count(); ++i) {
      snapshots.push_back(memory_history_snapshot(static_cast<c10::DeviceIndex>(i), with_traces));
    }
  });
  Stacks stacks;
  py::list segments;
  py::list traces;
  for (const MemorySnapshot& snapshot : snapshots) {
    for (const SegmentInfo& segment : snapshot.segments) {
      segments.append(to_dict(segment, stacks));
    }
    py::list trace;
    for (const TraceEntry& entry : snapshot.trace) {
      trace.append(to_dict(entry, stacks));
    }
    traces.append(trace);
  }
  stacks.fill();
  py::dict result;
  result["segments"] = segments;
  result["device_traces"] = traces;
  py::dict settings;
  settings["PYTORCH_ALLOC_CONF"] = c10::CachingAllocator::getAllocatorSettings();
  result["allocator_settings"] = settings;
  return result.release().ptr();
}

}  // namespace

PyMethodDef memory_history_methods[] = {
    unlocked<"record_memory_history", record_history>(
        "Start or stop recording: (is_on, is_traced, when, with_cpp, max_entries, skipped actions, is_cleared)."),
    method<"memory_snapshot", take_snapshot>("Return the segments and, if the argument is True, the recorded history."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings
