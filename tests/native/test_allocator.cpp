// SPDX-License-Identifier: BSD-3-Clause
// The allocators against a driver in this process: the sizes and the
// statistics of fixed cases, and fork.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/device.h"
#include "memory/block.h"
#include "memory/caching_allocator.h"
#include "memory/host_allocator.h"
#include "memory/management.h"
#include "memory/size_policy.h"
#include "tests/native/allocator_checks.h"
#include "tests/native/fake_driver.h"

namespace {

using namespace checks;

// ---------------------------------------------------------------------------------------------------------------------

// Compare with an ordered set: the smallest block that is large enough is found, whatever was
// inserted and removed before.
void test_free_index() {
  using outboard::memory::Block;
  std::mt19937_64 random(11);
  const auto some_units = [&]() -> uint64_t {
    switch (random() % 4) {
      case 0:
        return 1 + random() % 2100;
      case 1:
        return 2000 + random() % 100;  // around the end of the bins
      case 2:
        return 2049 + random() % 6000;
      default:
        return uint64_t{1} << (random() % 40) | (random() & 3);
    }
  };
  outboard::memory::FreeIndex index;
  std::vector<Block> blocks(600);
  std::set<std::pair<uint64_t, Block*>> free;
  for (int step = 0; step < 100'000; ++step) {
    Block* block = &blocks[random() % blocks.size()];
    if (block->state() == outboard::memory::BlockState::Free) {
      index.erase(block);
      free.erase({uint64_t{block->units}, block});
      block->set_state(outboard::memory::BlockState::Unused);
    } else {
      block->units = some_units();
      block->set_state(outboard::memory::BlockState::Free);
      index.insert(block);
      free.insert({uint64_t{block->units}, block});
    }
    const uint64_t wanted = some_units();
    const Block* found = index.best_fit(wanted << outboard::memory::kUnitShift);
    const auto expected = free.lower_bound({wanted, nullptr});
    CHECK((found == nullptr) == (expected == free.end()));
    CHECK(!found ||
          (found->units == expected->first && free.contains({uint64_t{found->units}, const_cast<Block*>(found)})));
  }
}

void test_sizes() {
  Stream& stream = stream_of(0, 0);
  CHECK(allocate(stream, 0).get() == nullptr);
  CHECK(allocate(stream, 0).device() == c10::Device(outboard::kDeviceType, 0));
  {
    DataPtr a = allocate(stream, 1);
    CHECK(stats_of(0).allocated_bytes[1].current == 512);
    CHECK(stats_of(0).requested_bytes[0].current == 1);
    CHECK(stats_of(0).reserved_bytes[0].current == 2 * MiB);
    CHECK(stats_of(0).inactive_split_bytes[0].current == static_cast<int64_t>(2 * MiB - 512));
    DataPtr b = allocate(stream, 513);
    CHECK(address_of(b) == address_of(a) + 512);
    CHECK(stats_of(0).allocated_bytes[0].current == 512 + 1024);
    DataPtr c = allocate(stream, 512);
    b.clear();
    CHECK(stats_of(0).inactive_split[0].current == 2);
    DataPtr d = allocate(stream, 1024);  // best fit: the hole
    CHECK(address_of(d) == address_of(a) + 512);
    check_consistent(0);
  }
  CHECK(stats_of(0).inactive_split[0].current == 0);  // joined into one
  {
    DataPtr large = allocate(stream, MiB + 1);
    CHECK(stats_of(0).reserved_bytes[2].current == static_cast<int64_t>(20 * MiB));
    DataPtr larger = allocate(stream, 11 * MiB + 1);
    CHECK(address_of(larger) == address_of(large) + MiB + 512);
    DataPtr own = allocate(stream, 10 * MiB + 1);
    CHECK(stats_of(0).reserved_bytes[2].current == static_cast<int64_t>(32 * MiB));
    CHECK(stats_of(0).allocated_bytes[2].allocated > 0);
    check_consistent(0);
  }
  CHECK(stats_of(0).num_device_alloc == 3);
  check_empty(0);
  CHECK(stats_of(0).num_device_free == 3);
  // Another stream has its own pool.
  DataPtr a = allocate(stream_of(0, 1), 100);
  a.clear();
  DataPtr b = allocate(stream_of(0, 2), 100);
  CHECK(stats_of(0).segment[0].current == 2);
  b.clear();
  allocator().resetPeakStats(0);
  CHECK(stats_of(0).reserved_bytes[0].peak == static_cast<int64_t>(4 * MiB));
  check_empty(0);
  allocator().resetAccumulatedStats(0);
  CHECK(stats_of(0).num_device_alloc == 0 && stats_of(0).allocation[0].allocated == 0);
  check_raises<c10::Error>([&] { allocator().getDeviceStats(7); }, "device index 7 is out of range");
}

void test_host_address() {
  DataPtr a = allocate(stream_of(0, 0), 100);
  void* host = nullptr;
  CHECK(outboard::host_address(a, 100, &host));
  CHECK(reinterpret_cast<uint64_t>(host) == address_of(a) + fake::kHostDelta);
  DataPtr foreign(a.get(), c10::Device(outboard::kDeviceType, 0));
  CHECK(outboard::host_address(foreign, 100, &host));
  CHECK(reinterpret_cast<uint64_t>(host) == address_of(a) + fake::kHostDelta);
  fake::driver().has_host_address = false;
  CHECK(!outboard::host_address(foreign, 100, &host));
  CHECK(outboard::host_address(a, 100, &host));  // queried once per segment
  DataPtr b = allocate(stream_of(0, 1), 100);
  CHECK(!outboard::host_address(b, 100, &host) && host == nullptr);
  fake::driver().has_host_address = true;
  CHECK(outboard::host_address(allocate(stream_of(0, 0), 0), 0, &host) && host == nullptr);

  std::memset(a.get(), 7, 100);
  DataPtr copy = allocator().clone(a.get(), 100);
  CHECK(std::memcmp(copy.get(), a.get(), 100) == 0);
  CHECK(allocator().raw_deleter() == nullptr);
  copy.clear();
  a.clear();
  b.clear();
  check_empty(0);
}

void test_record_stream() {
  fake::Driver& d = fake::driver();
  Stream& main = stream_of(0, 0);
  Stream& side = stream_of(0, 1);
  DataPtr a = allocate(main, 1000);
  const uint64_t address = address_of(a);
  outboard::record_stream(a, main);  // its own: nothing to do
  outboard::record_stream(a, side);
  outboard::record_stream(a, side);
  allocator().recordStream(a, outboard::to_c10(side));
  const uint64_t ticket = d.queue_work(side.handle, address, 1000);
  a.clear();
  CHECK(stats_of(0).allocation[0].current == 0 && stats_of(0).active[0].current == 1);
  DataPtr b = allocate(main, 1000);
  CHECK(address_of(b) != address);
  d.finish(side.handle, ticket);
  DataPtr c = allocate(main, 1000);  // polls, and finds it done
  CHECK(address_of(c) == address);
  check_consistent(0);

  // empty_cache waits for the work.
  outboard::record_stream(c, side);
  d.queue_work(side.handle, address, 1000);
  c.clear();
  b.clear();
  const auto syncs = stats_of(0).num_sync_all_streams;
  allocator().emptyCache();
  CHECK(stats_of(0).num_sync_all_streams == syncs + 1);
  CHECK(d.live_bytes(0) == 0);

  // A synchronization takes parked blocks back too, and a stream of another device counts.
  DataPtr e = allocate(main, 1000);
  outboard::record_stream(e, stream_of(1, 0));
  e.clear();
  CHECK(stats_of(0).active[0].current == 1);
  outboard::process_deferred(0);
  CHECK(stats_of(0).active[0].current == 0);

  // The next synchronization raises a failure of event_record, and the block comes back after it.
  DataPtr f = allocate(main, 1000);
  DataPtr kept = allocate(main, 1000);
  outboard::record_stream(f, side);
  f.clear();
  d.set_fault(1, OB_INTERNAL);
  DataPtr g = allocate(main, 1000);
  d.set_fault(0, OB_OK);
  CHECK(stats_of(0).active[0].current == 3);
  DataPtr h = allocate(main, 1000);  // does not try again
  CHECK(stats_of(0).active[0].current == 4);
  check_raises<c10::Error>([&] { outboard::process_deferred(0); }, "event_");
  outboard::process_deferred(0);
  CHECK(stats_of(0).active[0].current == 3);
  // Foreign memory is ignored.
  outboard::record_stream(DataPtr(main.device == 0 ? g.get() : nullptr, c10::Device(outboard::kDeviceType, 0)), side);
  g.clear();
  h.clear();
  kept.clear();
  check_empty(0);
}

// A released pool is in no statistics, because stats() copies the existing pools.
void test_private_pools() {
  Stream& stream = stream_of(0, 0);
  const auto pooled = [&](c10::MempoolId_t pool) {
    outboard::begin_allocate_thread_to_pool(0, pool);
    DataPtr data = allocate(stream, 1000);
    outboard::end_allocate_thread_to_pool(0, pool);
    return data;
  };
  for (int i = 0; i < 20; ++i) {
    const c10::MempoolId_t pool = outboard::new_mempool_id();
    pooled(pool).clear();
    outboard::release_pool(0, pool);
    allocator().emptyCache();
  }
#if OUTBOARD_TORCH_MINOR >= 13
  CHECK(stats_of(0).reserved_bytes_by_private_pools.empty());
#endif
  // Memory of a private pool may be in use on any stream, so all streams are waited for before it
  // is released.
  const c10::MempoolId_t pool = outboard::new_mempool_id();
  DataPtr data = pooled(pool);
  Stream& reader = stream_of(0, 3);
  fake::driver().queue_work(reader.handle, address_of(data), 1000);
  data.clear();
  outboard::release_pool(0, pool);
  allocator().emptyCache();  // the driver aborts where work still uses what it frees
  CHECK(fake::driver().live_bytes(0) == 0);
  // Of two routes to one pool, ending one leaves the other.
  const auto is_on = [](Stream& wanted) { return [&wanted](Stream& stream) { return &stream == &wanted; }; };
  const outboard::RouteId first = outboard::begin_allocate_to_pool(0, pool, is_on(stream));
  const outboard::RouteId second = outboard::begin_allocate_to_pool(0, pool, is_on(reader));
  outboard::end_allocate_to_pool(0, first);
  DataPtr common = allocate(stream, 1000);
  DataPtr routed = allocate(reader, 1000);
  const auto segments = outboard::memory_snapshot(0);
  for (const auto& segment : segments) {
    CHECK((segment.owner_private_pool_id == pool) == (segment.address == address_of(routed)));
  }
  outboard::end_allocate_to_pool(0, second);
  outboard::release_pool(0, pool);
  outboard::release_pool(0, pool);
  common.clear();
  routed.clear();
  check_empty(0);
}

void test_out_of_memory() {
  fake::Driver& d = fake::driver();
  Stream& stream = stream_of(0, 0);
  d.capacity[0] = 64 * MiB;
  std::vector<DataPtr> live;
  for (int i = 0; i < 3; ++i) {
    live.push_back(allocate(stream, 20 * MiB));
  }
  const std::string message =
      check_raises<c10::OutOfMemoryError>([&] { allocate(stream, 20 * MiB); }, "Tried to allocate 20.00 MiB");
  for (const char* part :
       {"fake out of memory", "fake:0", "total capacity of", "4.00 MiB is free", "has 60.00 MiB of it in use",
        "60.00 MiB is allocated by PyTorch", "0 bytes is reserved by PyTorch but unallocated", "PYTORCH_ALLOC_CONF"}) {
    if (message.find(part) == std::string::npos) {
      std::fprintf(stderr, "'%s' is not in: %s\n", part, message.c_str());
      std::abort();
    }
  }
  CHECK(stats_of(0).num_ooms == 1 && stats_of(0).num_alloc_retries == 1);
  check_raises<c10::OutOfMemoryError>([&] { allocate(stream, ~size_t{0}); }, "more than 256 TiB");
  check_raises<c10::OutOfMemoryError>([&] { allocate(stream, size_t{1} << 40); }, "Tried to allocate 1024.00 GiB");
  check_consistent(0);
  // The error is caught, and the program continues.
  live.pop_back();
  live.push_back(allocate(stream, 20 * MiB));
  // The cache of the stream, then that of others, makes room.
  live.pop_back();
  live.push_back(allocate(stream, 22 * MiB));
  live.pop_back();
  live.push_back(allocate(stream_of(0, 1), 22 * MiB));
  // Parked blocks are waited for.
  outboard::record_stream(live.back(), stream_of(0, 2));
  d.queue_work(stream_of(0, 2).handle, address_of(live.back()), 22 * MiB);
  live.pop_back();
  live.push_back(allocate(stream, 22 * MiB));
  check_consistent(0);
  CHECK(stats_of(0).num_ooms == 3);
  live.clear();
  check_empty(0);
  d.capacity[0] = uint64_t{4} << 30;
}

// A thread is freeing the cache while another finds no memory: the second waits for it.
void test_allocation_waits_for_reclaim() {
  fake::Driver& d = fake::driver();
  Stream& stream = stream_of(0, 0);
  d.capacity[0] = 64 * MiB;
  allocate(stream, 60 * MiB).clear();
  std::mutex mutex;
  std::condition_variable changed;
  bool is_freeing = false;
  int refusals = 0;
  d.on_mem_free = [&] {
    std::unique_lock lock(mutex);
    is_freeing = true;
    changed.notify_all();
    changed.wait(lock, [&] { return refusals >= 2; });
  };
  d.on_refusal = [&] {
    const std::lock_guard lock(mutex);
    ++refusals;
    changed.notify_all();
  };
  std::thread freer([] { allocator().emptyCache(); });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_freeing; });
  }
  DataPtr a = allocate(stream, 50 * MiB);
  CHECK(a.get() != nullptr && refusals >= 2);
  freer.join();
  d.on_mem_free = nullptr;
  d.on_refusal = nullptr;
  a.clear();
  check_empty(0);
  d.capacity[0] = uint64_t{4} << 30;
}

void test_bad_driver() {
  fake::Driver& d = fake::driver();
  Stream& stream = stream_of(0, 0);
  d.change_address = [](uint64_t) { return uint64_t{0}; };
  check_raises<c10::Error>([&] { allocate(stream, 100); }, "mem_alloc on device 0 returned OK with a null address");
  d.change_address = [](uint64_t address) { return address + 8; };
  check_raises<c10::Error>([&] { allocate(stream, 100); }, "must be aligned to 512 bytes");
  d.change_address = nullptr;
  CHECK(d.live_bytes(0) == 0);
  // A failure of mem_free is raised, and the free is tried again later.
  allocate(stream, 100).clear();
  d.set_fault(2, OB_INTERNAL);  // after stream_synchronize
  check_raises<c10::Error>([&] { allocator().emptyCache(); }, "mem_free on device 0 failed with INTERNAL");
  d.set_fault(0, OB_OK);
  CHECK(d.live_bytes(0) == 2 * MiB && stats_of(0).reserved_bytes[0].current == static_cast<int64_t>(2 * MiB));
  DataPtr a = allocate(stream, 100);
  CHECK(stats_of(0).segment[0].current == 2);  // the first is not used again
  a.clear();
  check_empty(0);
  // Double free.
  DataPtr b = allocate(stream, 100);
  const auto deleter = b.get_deleter();
  void* context = b.release_context();
  deleter(context);
  deleter(context);
  check_raises<c10::Error>([&] { outboard::process_deferred(0); }, "freed twice");
  check_empty(0);
}

void test_settings() {
  Stream& stream = stream_of(0, 0);
  // Blocks from 32 MiB on are not split, and not used for smaller requests.
  set_config("max_split_size_mb:32");
  DataPtr a = allocate(stream, 40 * MiB);
  const uint64_t address = address_of(a);
  CHECK(stats_of(0).oversize_allocations.current == 1 && stats_of(0).oversize_segments.current == 1);
  CHECK(stats_of(0).max_split_size == static_cast<int64_t>(32 * MiB));
  a.clear();
  a = allocate(stream, 8 * MiB);
  CHECK(address_of(a) != address);
  DataPtr b = allocate(stream, 38 * MiB);
  CHECK(address_of(b) == address && stats_of(0).allocated_bytes[0].current == static_cast<int64_t>(48 * MiB));
  a.clear();
  b.clear();
  set_config("max_split_size_mb:1000000");
  check_empty(0);

  set_config("roundup_power2_divisions:4");
  CHECK(outboard::memory::block_size_for(1200 * KiB) == 1280 * KiB);
  CHECK(outboard::memory::block_size_for(4 * MiB) == 4 * MiB);
  CHECK(outboard::memory::block_size_for(5 * MiB + 1) == 6 * MiB);
  CHECK(outboard::memory::block_size_for(600) == 1024);
  set_config("roundup_power2_divisions:1");

  // Above half of the device's memory, the longest unused segments are released first.
  fake::driver().capacity[2] = 100 * MiB;
  Stream& other = stream_of(2, 0);
  set_config("garbage_collection_threshold:0.5");
  {
    DataPtr c = allocate(other, 30 * MiB);
    DataPtr d = allocate(other, 26 * MiB);
  }
  CHECK(stats_of(2).reserved_bytes[0].current == static_cast<int64_t>(56 * MiB));
  DataPtr e = allocate(other, 32 * MiB);
  CHECK(stats_of(2).reserved_bytes[0].current <= static_cast<int64_t>(62 * MiB));
  CHECK(stats_of(2).num_device_free == 1);
  e.clear();
  set_config("garbage_collection_threshold:0.99");
  check_empty(2);
  fake::driver().capacity[2] = uint64_t{4} << 30;
}

void test_pinned() {
  fake::Driver& d = fake::driver();
  at::HostAllocator& host = outboard::host_allocator();
  Stream& stream = stream_of(0, 1);
  DataPtr a = host.allocate(1000);
  auto* bytes = static_cast<char*>(a.get());
  CHECK(a.device().is_cpu());
  CHECK(outboard::is_pinned(bytes) && outboard::is_pinned(bytes + 999) && !outboard::is_pinned(bytes + 1024));
  CHECK(outboard::is_host_block(bytes + 500) && !outboard::is_pinned(&d));
  char foreign = 0;
  CHECK(!outboard::record_host_block(&foreign, a, stream));
  CHECK(outboard::record_host_block(bytes + 500, a, stream));
  const uint64_t ticket = d.queue_work(stream.handle, 0, 1);
  a.clear();
  DataPtr b = host.allocate(1000);
  CHECK(b.get() != bytes);
  d.finish(stream.handle, ticket);
  DataPtr c = host.allocate(1000);
  CHECK(c.get() == bytes);
  // A view of a wrapped storage: found by its address.
  DataPtr wrapped(bytes, c10::DeviceType::CPU);
  CHECK(outboard::record_host_block(bytes + 1, wrapped, stream));
  b.clear();
  c.clear();
  outboard::process_deferred(0);
  host.empty_cache();
  CHECK(d.host_memory.empty() && !outboard::is_pinned(bytes));
  // A failing host_free is raised and tried again.
  host.allocate(100).clear();
  d.set_fault(1, OB_INTERNAL);
  check_raises<c10::Error>([&] { host.empty_cache(); }, "host_free failed with INTERNAL");
  d.set_fault(0, OB_OK);
  CHECK(d.host_memory.size() == 1);
  host.empty_cache();
  CHECK(d.host_memory.empty());
  // A failure of host_alloc is raised. For lack of memory, the cache is freed first.
  d.set_fault(1, OB_INTERNAL);
  check_raises<c10::Error>([&] { host.allocate(100); }, "host_alloc failed with INTERNAL");
  d.set_fault(1, OB_OUT_OF_MEMORY);
  host.allocate(100).clear();
  // A failure of event_record in a free is raised at the next synchronization. The block is not
  // reused before.
  DataPtr e = host.allocate(100);
  const void* first = e.get();
  outboard::record_host_block(first, e, stream);
  e.clear();
  d.set_fault(1, OB_INTERNAL);
  DataPtr f = host.allocate(100);
  d.set_fault(0, OB_OK);
  CHECK(f.get() != first);
  check_raises<c10::Error>([&] { outboard::process_deferred(0); }, "event_");
  outboard::process_deferred(0);
  f.clear();
  CHECK(host.get_stats().active_requests.current >= 0);
  outboard::release_host_memory();
  CHECK(d.host_memory.empty());
#if OUTBOARD_TORCH_MINOR >= 13
  set_config("pinned_max_round_threshold_mb:1");
  host.allocate(3 * MiB).clear();
  DataPtr g = host.allocate(3 * MiB + 4096);
  CHECK(outboard::is_pinned(static_cast<char*>(g.get()) + 3 * MiB + 4095));
  g.clear();
#endif
  host.empty_cache();
  CHECK(d.host_memory.empty());
}

// In a forked child deleters do nothing, and use raises.
void test_fork() {
  DataPtr a = allocate(stream_of(0, 0), 1000);
  DataPtr pinned = outboard::host_allocator().allocate(1000);
  outboard::record_stream(a, stream_of(0, 1));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    a.clear();
    pinned.clear();
    fake::driver().on_entry = [](int32_t) { fake::broken("an entry in a forked child"); };
    check_raises<c10::Error>([] { allocate(outboard::default_stream(0), 10); }, "spawn");
    check_raises<c10::Error>([] { outboard::host_allocator().allocate(10); }, "spawn");
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  a.clear();
  pinned.clear();
  outboard::host_allocator().empty_cache();
  check_empty(0);
}

// Last: the devices are closed after it.
void test_release() {
  DataPtr a = allocate(stream_of(0, 0), 1000);
  DataPtr b = allocate(stream_of(0, 0), 30 * MiB);
  outboard::record_stream(b, stream_of(0, 1));
  b.clear();
  outboard::release_device_memory(0);
  CHECK(fake::driver().live_bytes(0) == 0);
  a.clear();
  check_raises<c10::Error>([] { allocate(stream_of(0, 0), 10); }, "was released at the end");
}

}  // namespace

int main() {
  install_fake();
  run("free index", test_free_index);
  run("sizes", test_sizes);
  run("host address", test_host_address);
  run("record_stream", test_record_stream);
  run("private pools", test_private_pools);
  run("out of memory", test_out_of_memory);
  run("allocation waits for reclaim", test_allocation_waits_for_reclaim);
  run("bad driver", test_bad_driver);
  run("settings", test_settings);
  run("pinned", test_pinned);
  run("fork", test_fork);
  run("release", test_release);
  std::printf("passed\n");
  return 0;
}
