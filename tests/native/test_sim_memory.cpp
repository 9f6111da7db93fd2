// SPDX-License-Identifier: BSD-3-Clause
// The simulated device's memory: what the host may touch, limits, mapping, strided
// copies and fills, other processes.
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "check.h"

namespace {

sigjmp_buf after_fault;

// Return true if a segmentation fault stops `body`.
template <class Body>
bool faults(Body&& body) {
  struct sigaction before = {};
  struct sigaction action = {};
  action.sa_handler = [](int) { siglongjmp(after_fault, 1); };
  CHECK(sigaction(SIGSEGV, &action, &before) == 0);
  volatile bool is_stopped = true;
  if (sigsetjmp(after_fault, 1) == 0) {
    body();
    is_stopped = false;
  }
  CHECK(sigaction(SIGSEGV, &before, nullptr) == 0);
  return is_stopped;
}

template <class T>
void touch(uint64_t address) {
  volatile T* pointer = reinterpret_cast<volatile T*>(address);
  *pointer = *pointer;
}

TEST(stray_host_access_faults) {
  const Library driver(path, {{"memory", "64MiB"}, {"single_mapping", "0"}});
  driver.open();
  const uint64_t memory = driver.alloc(8192);
  const uint64_t host = address_of(driver.host<char>(memory, 8192));
  CHECK(host != memory);
  CHECK(address_of(driver.host<char>(memory + 100, 1)) - (memory + 100) == host - memory);
  touch<char>(host);
  touch<char>(host + 8191);
  CHECK(faults([&] { touch<char>(memory); }));
  CHECK(faults([&] { touch<char>(memory + 8191); }));
  CHECK(!faults([&] { touch<char>(host); }));
  CHECK(faults([&] { touch<char>(host + 8192); }));  // overrun
  CHECK_OK(driver->mem_free(driver.self(), 0, memory));
  CHECK(faults([&] { touch<char>(host); }));  // use after free
  const uint64_t reserved = [&] {
    uint64_t address = 0;
    CHECK_OK(driver->mem_reserve(driver.self(), 0, 4 << 20, &address));
    return address;
  }();
  const uint64_t offset = host - memory;
  CHECK(faults([&] { touch<char>(reserved + offset); }));
  CHECK_OK(driver->mem_map(driver.self(), 0, reserved, 2 << 20));
  CHECK(!faults([&] { touch<char>(reserved + offset); }));
  CHECK(faults([&] { touch<char>(reserved + offset + (2 << 20)); }));
}

TEST(limits_hold) {
  const Library driver(path, {{"memory", "64MiB"}});
  driver.open();
  uint64_t free = 0, total = 0, out = 0;
  CHECK_OK(driver->mem_info(driver.self(), 0, &free, &total));
  CHECK(free == 64 << 20 && total == 64 << 20);
  const uint64_t a = driver.alloc(48 << 20);
  CHECK_OK(driver->mem_info(driver.self(), 0, &free, &total));
  CHECK(free == 16 << 20);
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, 17 << 20, &out), OB_OUT_OF_MEMORY);
  CHECK(driver.error_has("tried to allocate 17.00 MiB (17825792 bytes)"));
  CHECK(driver.error_has("16.00 MiB (16777216 bytes) of 64.00 MiB"));
  const uint64_t b = driver.alloc(16 << 20);
  CHECK_STATUS(driver->mem_alloc(driver.self(), 0, 1, &out), OB_OUT_OF_MEMORY);
  CHECK_OK(driver->mem_free(driver.self(), 0, a));
  CHECK_OK(driver->mem_free(driver.self(), 0, b));
  CHECK_OK(driver->mem_info(driver.self(), 0, &free, &total));
  CHECK(free == total);
}

TEST(addresses_are_apart) {
  const Library driver(path, {{"memory", "256MiB"}});
  driver.open();
  uint64_t random = 5;
  struct Block {
    uint64_t address, bytes;
    unsigned char mark;
  };
  std::vector<Block> blocks;
  const auto is_whole = [&](const Block& block) {
    const unsigned char* host = driver.host<unsigned char>(block.address, block.bytes);
    return host[0] == block.mark && host[block.bytes - 1] == block.mark && host[block.bytes / 2] == block.mark;
  };
  for (int i = 0; i < 3000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    if (blocks.size() > 40 || (blocks.size() > 5 && (random >> 60) < 7)) {
      const size_t victim = (random >> 33) % blocks.size();
      CHECK(is_whole(blocks[victim]));
      CHECK_OK(driver->mem_free(driver.self(), 0, blocks[victim].address));
      blocks.erase(blocks.begin() + static_cast<long>(victim));
    } else {
      const uint64_t bytes = (random >> 40) % (3 << 20) + 1;
      const Block block = {driver.alloc(bytes), bytes, static_cast<unsigned char>(i)};
      unsigned char* host = driver.host<unsigned char>(block.address, bytes);
      if (i % 16 == 0) CHECK(std::all_of(host, host + bytes, [](unsigned char c) { return c == 0; }));
      host[0] = host[bytes - 1] = host[bytes / 2] = block.mark;
      blocks.push_back(block);
    }
  }
  for (const Block& block : blocks) {
    CHECK(is_whole(block));
    CHECK_OK(driver->mem_free(driver.self(), 0, block.address));
  }
  uint64_t free = 0, total = 0;
  CHECK_OK(driver->mem_info(driver.self(), 0, &free, &total));
  CHECK(free == total);
}

TEST(poison_fills) {
  const Library driver(path, {{"memory", "64MiB"}, {"poison", "1"}});
  driver.open();
  for (int i = 0; i < 2; ++i) {
    const uint64_t memory = driver.alloc(10'000);
    uint16_t* host = driver.host<uint16_t>(memory, 10'000);
    CHECK(std::all_of(host, host + 5'000, [](uint16_t word) { return word == 0x7FF0; }));
    std::fill(host, host + 5'000, uint16_t{1});
    CHECK_OK(driver->mem_free(driver.self(), 0, memory));
  }
}

TEST(mapping_works) {
  const Library driver(path, {{"memory", "64MiB"}});
  driver.open();
  constexpr uint64_t kUnit = 2 << 20;
  ob_device_properties properties = {};
  properties.struct_size = sizeof properties;
  CHECK_OK(driver->device_properties(driver.self(), 0, &properties));
  CHECK(properties.mem_granularity == kUnit);
  uint64_t base = 0, other = 0, free = 0, total = 0;
  CHECK_STATUS(driver->mem_reserve(driver.self(), 0, 1000, &base), OB_INVALID_ARGUMENT);
  CHECK_OK(driver->mem_reserve(driver.self(), 0, 64 * kUnit, &base));  // more than the memory
  CHECK_OK(driver->mem_reserve(driver.self(), 0, 64 * kUnit, &other));
  CHECK(base % kUnit == 0 && (other >= base + 64 * kUnit || base >= other + 64 * kUnit));
  CHECK_OK(driver->mem_info(driver.self(), 0, &free, &total));
  CHECK(free == total);
  CHECK_OK(driver->mem_map(driver.self(), 0, base, 2 * kUnit));
  CHECK_OK(driver->mem_map(driver.self(), 0, base + 3 * kUnit, kUnit));
  CHECK_OK(driver->mem_info(driver.self(), 0, &free, &total));
  CHECK(total - free == 3 * kUnit);
  CHECK_STATUS(driver->mem_map(driver.self(), 0, base + kUnit, kUnit), OB_FAILED_PRECONDITION);
  CHECK_STATUS(driver->mem_map(driver.self(), 0, base + 1, kUnit), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->mem_map(driver.self(), 0, base + 63 * kUnit, 2 * kUnit), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->mem_map(driver.self(), 0, other, 64 * kUnit), OB_OUT_OF_MEMORY);
  CHECK_STATUS(driver->mem_unmap(driver.self(), 0, base + 2 * kUnit, kUnit), OB_FAILED_PRECONDITION);
  uint64_t host = 0;
  CHECK_OK(driver->host_address(driver.self(), 0, base, 2 * kUnit, &host));
  CHECK_STATUS(driver->host_address(driver.self(), 0, base, 3 * kUnit, &host), OB_OUT_OF_RANGE);
  CHECK_STATUS(driver->mem_free(driver.self(), 0, base), OB_INVALID_ARGUMENT);
  char* bytes = driver.host<char>(base, 2 * kUnit);
  bytes[kUnit] = 7;
  CHECK_STATUS(driver->mem_release(driver.self(), 0, base, 64 * kUnit), OB_FAILED_PRECONDITION);
  CHECK_OK(driver->mem_unmap(driver.self(), 0, base, 2 * kUnit));
  CHECK_OK(driver->mem_map(driver.self(), 0, base + kUnit, kUnit));
  CHECK(bytes[kUnit] == 0);  // new memory
  CHECK_OK(driver->mem_unmap(driver.self(), 0, base + kUnit, kUnit));
  CHECK_OK(driver->mem_unmap(driver.self(), 0, base + 3 * kUnit, kUnit));
  CHECK_STATUS(driver->mem_release(driver.self(), 0, base, 63 * kUnit), OB_INVALID_ARGUMENT);
  CHECK_OK(driver->mem_release(driver.self(), 0, base, 64 * kUnit));
  CHECK_STATUS(driver->mem_release(driver.self(), 0, base, 64 * kUnit), OB_INVALID_ARGUMENT);
  CHECK_OK(driver->mem_release(driver.self(), 0, other, 64 * kUnit));
  CHECK_OK(driver->device_close(driver.self(), 0));
}

TEST(host_memory_is_tracked) {
  const Library driver(path);
  void* pointer = nullptr;
  CHECK_OK(driver->host_alloc(driver.self(), 1000, &pointer));
  CHECK(address_of(pointer) % 64 == 0);
  std::memset(pointer, 1, 1000);
  CHECK_STATUS(driver->host_unregister(driver.self(), pointer), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->host_register(driver.self(), static_cast<char*>(pointer) + 999, 10), OB_ALREADY_EXISTS);
  CHECK_OK(driver->host_free(driver.self(), pointer));
  CHECK_STATUS(driver->host_free(driver.self(), pointer), OB_INVALID_ARGUMENT);
  char own[256] = {};
  CHECK_OK(driver->host_register(driver.self(), own, 100));
  CHECK_STATUS(driver->host_register(driver.self(), own + 50, 100), OB_ALREADY_EXISTS);
  CHECK_OK(driver->host_register(driver.self(), own + 100, 100));
  CHECK_STATUS(driver->host_free(driver.self(), own), OB_INVALID_ARGUMENT);
  CHECK_OK(driver->host_unregister(driver.self(), own));
  CHECK_OK(driver->host_unregister(driver.self(), own + 100));
  CHECK_STATUS(driver->host_unregister(driver.self(), own), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->host_register(driver.self(), nullptr, 100), OB_INVALID_ARGUMENT);
}

TEST(copies_reach_peers) {
  const Library driver(path, {{"memory", "64MiB"}});
  driver.open(0);
  driver.open(1);
  int32_t can_access = 0;
  CHECK_OK(driver->peer_access(driver.self(), 0, 1, &can_access));
  CHECK(can_access == 1);
  CHECK_STATUS(driver->peer_access(driver.self(), 0, 2, &can_access), OB_INVALID_ARGUMENT);
  const uint64_t a = driver.alloc(4096, 0);
  const uint64_t b = driver.alloc(4096, 1);
  std::memset(driver.host<char>(a, 4096, 0), 5, 4096);
  const uint64_t stream = driver.stream(1);
  CHECK_OK(driver.copy(stream, b, 1, a, 0, 4096, 1));
  CHECK_OK(driver.sync(stream, 1));
  CHECK(driver.host<char>(b, 4096, 1)[4095] == 5);
  // A stream of a third party, a stream of another device, addresses of the wrong device.
  const uint64_t elsewhere = driver.stream(0);
  CHECK_STATUS(driver.copy(elsewhere, b, 1, b, 1, 64, 0), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver.copy(stream, b, 1, a, 0, 64, 0), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver.copy(stream, a, 1, a, 0, 64, 1), OB_INVALID_ARGUMENT);
  uint64_t host = 0;
  CHECK_STATUS(driver->host_address(driver.self(), 0, b, 64, &host), OB_INVALID_ARGUMENT);
  CHECK(host == 0);
}

TEST(fills_repeat_patterns) {
  const Library driver(path, {{"memory", "64MiB"}});
  driver.open();
  const uint64_t stream = driver.stream();
  const uint64_t memory = driver.alloc(1 << 20);
  const unsigned char pattern[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  unsigned char* host = driver.host<unsigned char>(memory, 1 << 20);
  for (const uint32_t size : {1u, 2u, 4u, 8u, 16u}) {
    for (const uint64_t count : {1u, 2u, 3u, 1000u, 33'333u}) {
      std::memset(host, 0xEE, 1 << 20);
      CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory + 3, pattern, size, count));
      CHECK_OK(driver.sync(stream));
      bool is_right = host[2] == 0xEE && host[3 + size * count] == 0xEE;
      for (uint64_t i = 0; i < size * count; ++i) is_right = is_right && host[3 + i] == pattern[i % size];
      CHECK(is_right);
    }
  }
  CHECK_OK(driver->fill_async(driver.self(), 0, stream, memory, pattern, 4, 0));
  CHECK_STATUS(driver->fill_async(driver.self(), 0, stream, memory, pattern, 3, 1), OB_INVALID_ARGUMENT);
  CHECK_STATUS(driver->fill_async(driver.self(), 0, stream, memory, pattern, 16, UINT64_MAX / 2), OB_OUT_OF_RANGE);
  CHECK_STATUS(driver->fill_async(driver.self(), 0, stream, memory, pattern, 1, (1 << 20) + 1), OB_OUT_OF_RANGE);
}

// Random shapes, strides and element sizes against the plain loop.
TEST(strided_copies_are_right) {
  const Library driver(path, {{"memory", "64MiB"}});
  driver.open();
  const uint64_t stream = driver.stream();
  constexpr int64_t kBytes = 1 << 20;
  const uint64_t dst = driver.alloc(kBytes);
  const uint64_t src = driver.alloc(kBytes);
  unsigned char* to = driver.host<unsigned char>(dst, kBytes);
  unsigned char* from = driver.host<unsigned char>(src, kBytes);
  uint64_t random = 11;
  const auto draw = [&](int64_t count) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((random >> 33) % static_cast<uint64_t>(count));
  };
  std::vector<unsigned char> expected(kBytes);
  for (int round = 0; round < 400; ++round) {
    for (int64_t i = 0; i < kBytes; i += 7) from[i] = static_cast<unsigned char>(draw(256));
    std::memset(to, 0, kBytes);
    std::fill(expected.begin(), expected.end(), static_cast<unsigned char>(0));
    const int64_t element = int64_t{1} << draw(5);
    const uint32_t ndim = static_cast<uint32_t>(draw(5) + 1);
    std::vector<int64_t> sizes(ndim), to_strides(ndim), from_strides(ndim);
    int64_t elements = 1;
    for (int64_t& size : sizes) {
      size = draw(40) == 0 ? 70 : draw(7) + (draw(30) != 0);
      if (elements * size > 4000) size = 1;
      elements *= size;
    }
    // Dense strides in a random order of the dimensions, sometimes
    // with gaps; the source may repeat.
    const auto lay_out = [&](std::vector<int64_t>* strides, bool may_repeat) {
      std::vector<uint32_t> order(ndim);
      for (uint32_t i = 0; i < ndim; ++i) order[i] = i;
      for (uint32_t i = ndim; i > 1; --i) std::swap(order[i - 1], order[static_cast<size_t>(draw(i))]);
      int64_t stride = 1;
      for (const uint32_t dim : order) {
        (*strides)[dim] = may_repeat && draw(6) == 0 ? 0 : stride;
        stride *= std::max<int64_t>(sizes[dim], 1);
        if (draw(4) == 0) stride += 1;
      }
    };
    lay_out(&to_strides, false);
    lay_out(&from_strides, true);
    int64_t from_begin = 0;
    for (uint32_t i = 0; i < ndim; ++i) {
      if (sizes[i] > 0 && draw(5) == 0) {  // backwards
        from_begin += (sizes[i] - 1) * from_strides[i];
        from_strides[i] = -from_strides[i];
      }
    }
    std::vector<int64_t> index(ndim);
    for (int64_t n = 0; n < elements; ++n) {
      int64_t rest = n;
      int64_t to_offset = 0;
      int64_t from_offset = from_begin;
      for (uint32_t i = 0; i < ndim; ++i) {
        to_offset += rest % sizes[i] * to_strides[i];
        from_offset += rest % sizes[i] * from_strides[i];
        rest /= sizes[i];
      }
      std::memcpy(&expected[static_cast<size_t>(to_offset * element)], from + from_offset * element,
                  static_cast<size_t>(element));
    }
    const ob_copy_nd copy = {sizeof(ob_copy_nd),
                             dst,
                             src + static_cast<uint64_t>(from_begin * element),
                             0,
                             0,
                             static_cast<uint32_t>(element),
                             ndim,
                             sizes.data(),
                             to_strides.data(),
                             from_strides.data()};
    CHECK_OK(driver->copy_nd_async(driver.self(), 0, stream, &copy));
    CHECK_OK(driver.sync(stream));
    if (!CHECK(std::memcmp(to, expected.data(), kBytes) == 0)) break;
  }
  const int64_t sizes[] = {1000, 1000};
  const int64_t strides[] = {2000, 1};
  const int64_t huge[] = {INT64_MAX / 2, 1};
  ob_copy_nd copy = {sizeof(ob_copy_nd), dst, src, 0, 0, 4, 2, sizes, strides, strides};
  CHECK_STATUS(driver->copy_nd_async(driver.self(), 0, stream, &copy), OB_OUT_OF_RANGE);
  copy.dst_strides = huge;
  CHECK_STATUS(driver->copy_nd_async(driver.self(), 0, stream, &copy), OB_OUT_OF_RANGE);
  copy.element_size = 3;
  CHECK_STATUS(driver->copy_nd_async(driver.self(), 0, stream, &copy), OB_INVALID_ARGUMENT);
}

TEST(memory_goes_to_other_processes) {
  {
    const Library plain(path, {{"memory", "64MiB"}});
    CHECK(plain->ipc_export == nullptr && plain->ipc_open == nullptr && plain->ipc_close == nullptr);
  }
  const Library driver(path, {{"memory", "64MiB"}, {"ipc", "1"}});
  driver.open();
  const uint64_t memory = driver.alloc(3 << 20);
  int* host = driver.host<int>(memory, 3 << 20);
  host[1000] = 41;
  char handle[256];
  size_t size = 1;
  CHECK_STATUS(driver->ipc_export(driver.self(), 0, memory, handle, &size), OB_OUT_OF_RANGE);
  CHECK(size > 1 && size <= sizeof handle);
  CHECK_OK(driver->ipc_export(driver.self(), 0, memory, handle, &size));
  CHECK_STATUS(driver->ipc_export(driver.self(), 0, memory + 512, handle, &size), OB_INVALID_ARGUMENT);
  const pid_t child = fork();
  if (child == 0) {
    // Use a new table, so that no function of the parent's table is called.
    const Library mine(path, {{"memory", "64MiB"}, {"ipc", "1"}, {"schedule", "inline"}});
    mine.open();
    uint64_t address = 0;
    CHECK_OK(mine->ipc_open(mine.self(), 0, handle, size, &address));
    int* shared = mine.host<int>(address, 3 << 20);
    CHECK(shared[1000] == 41);
    shared[1000] = 42;
    uint64_t free = 0, total = 0;
    CHECK_OK(mine->mem_info(mine.self(), 0, &free, &total));
    CHECK(free == total);
    CHECK_OK(mine->ipc_close(mine.self(), 0, address));
    CHECK_STATUS(mine->ipc_close(mine.self(), 0, address), OB_INVALID_ARGUMENT);
    uint64_t host_address = 0;
    CHECK(mine->host_address(mine.self(), 0, address, 64, &host_address) != OB_OK);
    _exit(failed_checks.load() == 0 ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(host[1000] == 42);
  CHECK_OK(driver->mem_free(driver.self(), 0, memory));
  const uint64_t again = driver.alloc(3 << 20);
  CHECK(driver.host<int>(again, 3 << 20)[1000] == 0);
  uint64_t address = 0;
  CHECK_STATUS(driver->ipc_open(driver.self(), 0, "nonsense", 8, &address), OB_INVALID_ARGUMENT);
}

}  // namespace

int main(int argc, char** argv) {
  return run_tests(argc, argv);
}
