// SPDX-License-Identifier: BSD-3-Clause
// The driver's objects: devices, streams, events, programs, kernels.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "activity.h"
#include "enumerate.h"
#include "spirv.h"
#include "torch_outboard/support/error.h"
#include "torch_outboard/support/handles.h"
#include "torch_outboard/support/lookup.h"
#include "torch_outboard/support/ranges.h"

namespace vulkan {

using support::fail;

struct Device;
struct Graph;
struct Stream;

// A buffer with memory and an address of its own.
struct Buffer {
  VkBuffer buffer = nullptr;
  VkDeviceMemory memory = nullptr;
  uint64_t address = 0;
  uint64_t bytes = 0;
  char* host = nullptr;  // where the host sees it, or null
};

// Memory that the host writes and the device reads, or the other way: arguments, patterns, small
// copies.
struct Chunk {
  Buffer buffer;
  uint64_t used = 0;
};

// A stream's counter on the device, which a batch of its work raises by one. The device does not
// see values of batches that the host does: they are done before they count as submitted. Or,
// without a semaphore, an event of the host, which raises it to 1.
struct Timeline {
  explicit Timeline(Device& owner) : device(owner) {}
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  Device& device;
  VkSemaphore semaphore = nullptr;
  std::atomic<uint64_t> submitted{0};  // the device reaches this value by itself
  std::atomic<uint64_t> done{0};       // the highest value that was seen
};

// What an event's record stands for.
struct Record {
  ~Record();
  Point point;
  bool is_captured = false;      // it has neither a point nor a time
  std::weak_ptr<Graph> capture;  // that the stream took part in
  int64_t query = -1;  // of the device's queries, whose timestamp is the record's; -1: none
};

// A call of host_callback.
struct HostCall {
  ob_host_fn fn = nullptr;
  void* user = nullptr;
  std::unique_ptr<ob_activity> record;  // for a profile; null: none
};

// Commands of one stream that are submitted together, or calls that the host makes together. The
// stream owns it until the device, or the host, is through.
struct Batch {
  Stream* stream = nullptr;
  uint64_t value = 0;  // of the stream's timeline, once it is done
  VkCommandBuffer commands = nullptr;
  std::vector<HostCall> calls;  // none if there are commands
  uint32_t count = 0;           // of commands or calls
  VkPipeline bound = nullptr;
  std::vector<Point> waits;
  std::vector<std::unique_ptr<Chunk>> chunks;
  std::vector<std::shared_ptr<const Graph>> graphs;  // whose commands these execute
};

// Where calls record: in a stream, or in the graph that it captures.
struct Recorder {
  VkCommandPool pool = nullptr;
  std::unique_ptr<Batch> open;
  std::vector<VkCommandBuffer> free_commands;
};

// What a stream captures, and then an executable graph too. Its batches are never submitted:
// a launch executes their commands from a batch of its stream, and queues their calls. Streams that
// join the capture add to the same list, which runs from one end to the other.
struct Graph : Recorder {
  Graph(Device& owner, const Stream& stream) : device(owner), origin(stream) {}
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Device& device;
  const Stream& origin;  // compared only
  std::mutex mutex;      // guards what follows, and the recorder; taken after a stream's
  std::vector<Stream*> streams;
  bool is_ended = false;  // from here on it does not change
  std::vector<std::unique_ptr<Batch>> steps;
  ob_status failure = OB_OK;
  std::string failure_text;
};

struct Stream : Recorder {
  int32_t index = -1;  // of the device
  uint64_t handle = 0;
  Device* device = nullptr;
  VkQueue queue = nullptr;
  std::shared_ptr<Timeline> timeline;
  std::mutex staging_mutex;  // held over a copy with ordinary host memory; taken before `mutex`
  std::unique_ptr<Chunk> staging[2];

  std::atomic<bool> is_dirty{false};  // the submitter was told of the open batch
  std::mutex mutex;                   // guards what follows, and the recorder
  std::shared_ptr<Graph> graph;       // that it captures, or null
  uint64_t closed = 0;  // the value of the last batch that was closed
  std::deque<std::unique_ptr<Batch>> in_flight;  // closed batches, until they are done
  std::vector<std::unique_ptr<Chunk>> free_chunks;
  ob_status failure = OB_OK;  // of a submission, until a wait tells it
  std::string failure_text;

  std::mutex call_mutex;  // guards what follows; nothing is taken while it is held
  std::condition_variable call_changed;
  std::deque<Batch*> batches_with_calls;  // whose calls are to be made, in their order
  bool is_ending = false;
  std::thread caller;  // makes the calls; started by the first
};

// Holds the mutexes of a stream, and of the graph that it captures.
class StreamLock {
 public:
  explicit StreamLock(Stream& stream) : of_stream_(stream.mutex) {
    if (stream.graph != nullptr) of_graph_ = std::unique_lock(stream.graph->mutex);
  }

 private:
  std::unique_lock<std::mutex> of_stream_;
  std::unique_lock<std::mutex> of_graph_;
};

struct Event {
  int32_t device = -1;
  bool is_timing = false;
  bool is_host = false;  // the host completes it
  std::mutex mutex;
  std::shared_ptr<Record> record;  // the latest; null: never recorded
};

struct Program {
  int32_t device = -1;
  std::string options;
  bool is_text = false;  // it was compiled here
  std::vector<uint32_t> words;
  VkShaderModule module = nullptr;
  std::map<std::string, Entry> entries;
  std::mutex mutex;
  std::map<std::string, uint64_t> kernels;
};

struct Kernel {
  std::string name;
  int32_t device = -1;
  VkShaderModule module = nullptr;
  Entry entry;
  std::mutex mutex;
  // By the group's size and the bytes of each local argument.
  std::map<std::vector<uint32_t>, VkPipeline> pipelines;
};

struct Device {
  int32_t index = -1;
  FoundDevice found;
  VkDevice device = nullptr;
  DeviceApi api;
  std::vector<VkQueue> queues;
  std::atomic<uint32_t> next_queue{0};
  VkPipelineLayout layout = nullptr;
  uint32_t local_type = 0;  // of memory
  uint32_t host_type = 0;
  bool is_mapped = false;                // the host reaches local memory
  bool addresses_host_memory = false;
  uint64_t max_allocation = 0;
  uint64_t total_memory = 0;
  std::atomic<uint64_t> allocated{0};
  std::atomic<bool> is_lost{false};
  support::Ranges memory;  // owners are Buffers
  Activities* activities = nullptr;  // the driver's

  std::mutex query_mutex;
  std::vector<VkQueryPool> query_pools;
  std::vector<int64_t> free_queries;
  std::vector<std::pair<Point, int64_t>> used_queries;  // free once the point is reached

  // The submitter: streams whose open batches it is to close, batches in the order of their
  // closing.
  std::mutex list_mutex;  // guards what follows; nothing is taken while it is held
  std::condition_variable list_changed;
  std::condition_variable progressed;  // something was submitted, or done by the host
  std::vector<Stream*> dirty;
  std::vector<Stream*> closing_streams;  // by the submitter, which changes it alone
  std::vector<Batch*> closed;
  std::vector<std::unique_ptr<Stream>> retired;
  bool is_closing = false;
  bool is_submitter_asleep = false;
  bool is_signalled = false;  // an event of the host was
  bool needs_polling = false;  // something pending waits for what nobody announces
  std::thread submitter;
  std::mutex submit_mutex;       // held over submissions, so also guards the queues
  std::deque<Batch*> pending;    // under submit_mutex

  uint64_t own_stream = 0;  // for the driver's own copies
  std::mutex own_mutex;
  bool has_own_failed = false;
  uint64_t own_program = 0;  // of the driver's own kernels
  std::map<std::string, uint64_t> own_kernels;
};

// A block of host_alloc.
struct HostBlock {
  int32_t device = -1;  // -1: ordinary memory
  Buffer buffer;
};

struct Driver : support::LateDriver<Options, Api, Enumeration, Device, Stream, Event, Program, Kernel, kMaxDevices,
                                    &Stream::index> {
  using LateDriver::LateDriver;

  // Find the devices of this process, once; not before a device is to be opened.
  ob_status find_devices(int32_t index, const FoundDevice** out_found);

  Activities activities;
  std::mutex open_mutex;  // held while a device is opened
  support::Ranges host_memory;  // owners are HostBlocks
  support::Handles<std::shared_ptr<Graph>, 5> graphs;
  support::Handles<std::shared_ptr<Graph>, 6> executables;
};

// "device 0 (NVIDIA H200)"
std::string where(const Device& device);

// Memory.
// Return a bit for each type of memory in which buffers may lie.
ob_status find_memory_types(Device& device, uint32_t* out_types);
ob_status make_buffer(Device& device, uint64_t bytes, uint32_t type, bool is_mapped, Buffer* out_buffer);
void free_buffer(Device& device, Buffer& buffer);

// Batches: what follows up to `close` is called with the stream held. In a capture, `open_batch`
// and `add_call` return and fill batches of the graph.
// Return the batch that takes the next command. It is not the one before if that has calls.
ob_status open_batch(Stream& stream, Batch** out_batch);
// Count a command, and let all later ones wait for it.
void end_command(Stream& stream, Batch& batch);
// Find memory for the batch that the host sees.
ob_status reserve(Stream& stream, Batch& batch, uint64_t bytes, Chunk** out_chunk, uint64_t* out_offset);
// Add a call of the host. It is made when the work before it is done, and the work after it waits.
ob_status add_call(Stream& stream, ob_host_fn fn, void* user);
// Hand the open batch to the submitter. Return the value that the stream's timeline then reaches.
uint64_t close(Stream& stream);
// Say that nobody can wait for a stream, if it captures.
ob_status refuse_in_capture(const Stream& stream);
// End the graph's open batch. Call it with the graph's mutex held.
void end_step(Graph& graph);
// Make a stream take part in the capture of a record that it waits for.
ob_status join(Stream& stream, const Record& record);
// Tell the submitter of an open batch. Call it without the mutex.
void notify(Stream& stream);

ob_status make_stream(Device& device, std::unique_ptr<Stream>* out_stream);
void destroy_stream(Stream& stream);
// Let the submitter submit what was closed.
void wake_submitter(Device& device);
// Let it, and all who wait, look again at what waits for the host.
void notify_host_progress(Device& device);
// Submit what can be submitted, in this thread.
void submit_ready_batches(Device& device);
void run_submitter(Device& device);
// Make a stream's calls of the host, until the stream ends.
void run_caller(Stream& stream);
// Return whether a timeline has reached a value.
bool has_reached(const Point& point);
ob_status wait_for(const Point& point);
// Return a stream's failure, once.
ob_status take_failure(Stream& stream);
// Wait for all of a stream's work.
ob_status drain(Stream& stream);

// Write a timestamp behind what a batch has. Call it with the stream's mutex held.
ob_status write_query(Stream& stream, Batch& batch, int64_t* out_query);
// Read a timestamp that was written, in ticks of the device's clock.
ob_status read_query(Device& device, int64_t query, uint64_t* out_ticks);
// Return `to - from` in nanoseconds, across the wrap of a clock that has fewer than 64 bits.
double nanoseconds(const Device& device, uint64_t from, uint64_t to);
// Read the device's clock and the host's at one moment: by VK_KHR_calibrated_timestamps, else by a
// timestamp that the host waits for, which may seem some 10 us late.
ob_status compare_clocks(Driver& driver, Device& device, Clocks* out_clocks);

// Build from Slang, or from SPIR-V. `is_binary`: from bytes of program_binary.
enum class Language : uint8_t { kSlang, kSpirv, kBinary };
ob_status program_build(Driver& driver, Device& device, const std::string& source, const std::string& given,
                        Language language, uint64_t* out_program);
ob_status kernel_get(Driver& driver, int32_t device, uint64_t program, const char* name, uint64_t* out_kernel);
// `work` is what a profile shows; the kernel's name stands for an empty one.
ob_status launch(Driver& driver, Device& device, Stream& stream, const ob_launch& given, Work work);
void destroy_program(Driver& driver, Device& device, Program& program);

void fill_device_entries(ob_driver* table);
void fill_memory_entries(ob_driver* table);
void fill_stream_entries(ob_driver* table);
void fill_event_entries(ob_driver* table);
void fill_copy_entries(ob_driver* table);
void fill_program_entries(ob_driver* table);
void fill_activity_entries(ob_driver* table);
void fill_graph_entries(ob_driver* table);

}  // namespace vulkan
