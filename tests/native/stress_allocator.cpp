// SPDX-License-Identifier: BSD-3-Clause
// Many threads on the streams of four devices at once, for as many seconds as the first
// argument says: to be run plain, with -fsanitize=thread and with -fsanitize=address. The
// second argument is the number of threads, the third the seed. The last third of the
// time is with expandable segments.
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "memory/history.h"
#include "memory/management.h"
#include "memory/sharing.h"
#include "tests/native/allocator_checks.h"

namespace {

using namespace checks;
using Clock = std::chrono::steady_clock;

constexpr int kStreams = 8;
constexpr size_t kSlots = 512;

// A live block, and the values that its owner wrote at both ends. A second owner of the same bytes
// would overwrite them.
struct Live {
  DataPtr ptr;
  size_t bytes = 0;
  uint64_t mark = 0;

  void write() {
    std::memcpy(ptr.get(), &mark, sizeof(mark));
    std::memcpy(static_cast<char*>(ptr.get()) + bytes - sizeof(mark), &mark, sizeof(mark));
  }
  void check() const {
    uint64_t first = 0;
    uint64_t last = 0;
    std::memcpy(&first, ptr.get(), sizeof(first));
    std::memcpy(&last, static_cast<const char*>(ptr.get()) + bytes - sizeof(last), sizeof(last));
    CHECK(first == mark && last == mark);
  }
};

struct Shared {
  std::vector<std::mutex> locks{kSlots};
  std::vector<Live> slots{kSlots};
  std::atomic<uint64_t> operations{0};
  std::atomic<uint64_t> ooms{0};
  std::atomic<uint64_t> marks{1};
};

size_t some_size(std::mt19937_64& random) {
  const uint64_t scale = random() % 64;
  const size_t most = scale == 0 ? 12 * MiB : scale < 6 ? MiB : 16 * KiB;
  return 2 * sizeof(uint64_t) + random() % most;
}

// One thread's work, until the time is up. Most blocks that it frees were allocated by another
// thread.
void work(Shared& shared, uint64_t seed, Clock::time_point end) {
  fake::Driver& d = fake::driver();
  std::mt19937_64 random(seed);
  uint64_t count = 0;
  for (; Clock::now() < end; ++count) {
    const int device = static_cast<int>(random() % fake::kDevices);
    const auto index = static_cast<c10::DeviceIndex>(device);
    Stream& stream = stream_of(device, static_cast<int>(random() % kStreams));
    Live live;
    try {
      if (random() % 8 != 0) {
        live.bytes = some_size(random);
        live.ptr = allocate(stream, live.bytes);
        CHECK(!d.is_in_use(device, address_of(live.ptr), live.bytes, stream.handle));
        live.mark = shared.marks.fetch_add(1);
        live.write();
      }
      if (live.ptr && random() % 4 == 0) {
        Stream& other = stream_of(device, static_cast<int>(random() % kStreams));
        outboard::record_stream(live.ptr, other);
        d.queue_work(other.handle, address_of(live.ptr), live.bytes);
      }
      switch (random() % 512) {
        case 0:
          allocator().emptyCache();
          break;
        case 1:
          static_cast<void>(outboard::memory_history_snapshot(index));
          break;
        case 2: {
          const c10::MempoolId_t pool = outboard::new_mempool_id();
          outboard::begin_allocate_thread_to_pool(index, pool);
          try {
            allocate(stream, some_size(random)).clear();
          } catch (const c10::OutOfMemoryError&) {
            ++shared.ooms;
          }
          outboard::end_allocate_thread_to_pool(index, pool);
          outboard::release_pool(index, pool);
          break;
        }
        case 3:
          CHECK(!live.ptr || outboard::device_of_address(address_of(live.ptr)) == index);
          break;
        default:
          break;
      }
      if (random() % 16 == 0) {
        outboard::process_deferred(index);
        d.finish_all(stream.handle);
      }
    } catch (const c10::OutOfMemoryError&) {
      ++shared.ooms;
    }
    const size_t slot = random() % kSlots;
    {
      const std::lock_guard lock(shared.locks[slot]);
      std::swap(shared.slots[slot], live);
    }
    if (live.ptr) {
      live.check();
    }
  }
  shared.operations += count;
}

void run(const char* name, int thread_count, uint64_t seed, double seconds) {
  Shared shared;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::vector<std::thread> threads;
  for (int t = 0; t < thread_count; ++t) {
    threads.emplace_back(work, std::ref(shared), seed + static_cast<uint64_t>(t), end);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int device = 0; device < fake::kDevices; ++device) {
    outboard::process_deferred(static_cast<c10::DeviceIndex>(device));
    check_consistent(device);
  }
  shared.slots.clear();
  int64_t segments = 0;
  for (int device = 0; device < fake::kDevices; ++device) {
    segments += stats_of(device).num_device_alloc;
    check_empty(device);
  }
  std::printf(
      "%s: %d threads, %d streams on each of %d devices, %.0f s, seed %llu: %llu operations, %llu out of memory,"
      " %lld segments or ranges taken\n",
      name, thread_count, kStreams, fake::kDevices, seconds, static_cast<unsigned long long>(seed),
      static_cast<unsigned long long>(shared.operations.load()), static_cast<unsigned long long>(shared.ooms.load()),
      static_cast<long long>(segments));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::stod(argv[1]) : 10;
  const int threads = argc > 2 ? std::stoi(argv[2]) : 64;
  const uint64_t seed = argc > 3 ? std::stoull(argv[3]) : std::random_device()();
  outboard::install_driver("fake", fake::table());
  outboard::set_after_wait(outboard::process_deferred);  // as register_with_torch does
  for (auto& capacity : fake::driver().capacity) {
    capacity = 192 * MiB;  // live memory is about as much, so memory runs short now and then
  }
  // If a lock were held during an entry, the program would hang here.
  fake::driver().on_entry = [](int32_t device) {
    if (device >= 0) {
      static_cast<void>(allocator().getDeviceStats(static_cast<c10::DeviceIndex>(device)));
    }
  };
  run("fixed segments", threads, seed, seconds * 2 / 3);
  set_config("expandable_segments:True");
  run("expandable segments", threads, seed + 1000, seconds / 3);
  std::printf("passed\n");
  return 0;
}
