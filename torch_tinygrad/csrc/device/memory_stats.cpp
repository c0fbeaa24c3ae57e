#include "device/memory_stats.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <string>

#include "device/host_memory.h"
#include "device/storage.h"
#include "python/python.h"

namespace tiny {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr size_t kAll = 0, kSmall = 1, kLarge = 2, kLargestSmall = size_t{1} << 20;

struct Counters {
  std::mutex mutex;
  StatArray buffers, bytes;
  size_t limit = std::numeric_limits<size_t>::max();
};
Counters& counters(c10::DeviceIndex device) {
  static auto* all = new Counters[kMaxDevices];  // never destroyed: buffers may outlive every static object
  return all[device];
}

void reset(StatArray& stats, void (Stat::*how)()) {
  for (Stat& stat : stats) (stat.*how)();
}

std::optional<size_t> number_in(const char* path) {
  std::ifstream file(path);
  size_t number;
  if (file >> number) return number;
  return std::nullopt;  // no such file, or "max"
}

// The number of a line such as "MemAvailable:   1234 kB".
std::optional<size_t> line_of(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    size_t kilobytes;
    if (word == name && file >> kilobytes) return kilobytes * 1024;
  }
  return std::nullopt;
}

// Of the system, or of the container this process is in.
std::pair<size_t, size_t> host_memory_info() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
  size_t free = line_of("/proc/meminfo", "MemAvailable:").value_or(total);
  const std::pair<const char*, const char*> groups[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
  for (const auto& [most, used] : groups) {
    const auto limit = number_in(most);
    if (!limit || *limit >= total) continue;
    total = *limit;
    free = std::min(free, total - std::min(total, number_in(used).value_or(0)));
  }
  return {free, total};
}

}  // namespace

void count_buffer(c10::DeviceIndex device, int64_t nbytes) {
  Counters& c = counters(device);
  const bool made = nbytes >= 0;
  const auto size = static_cast<size_t>(made ? nbytes : -nbytes);
  std::lock_guard<std::mutex> guard(c.mutex);
  for (const size_t pool : {kAll, size < kLargestSmall ? kSmall : kLarge}) {
    made ? c.buffers[pool].increase(1) : c.buffers[pool].decrease(1);
    made ? c.bytes[pool].increase(size) : c.bytes[pool].decrease(size);
  }
}

DeviceStats device_stats(c10::DeviceIndex device) {
  Counters& c = counters(device);
  DeviceStats stats;
  {
    std::lock_guard<std::mutex> guard(c.mutex);
    stats.allocation = stats.active = c.buffers;
    stats.allocated_bytes = stats.active_bytes = stats.requested_bytes = stats.reserved_bytes = c.bytes;
  }
  if (!shares_host_memory()) return stats;
  const HostMemoryStats host = host_memory_stats();
  stats.segment[kAll] = host.mappings;
  stats.reserved_bytes = {};
  stats.reserved_bytes[kAll] = host.reserved;
  stats.num_alloc_retries = host.retries;
  stats.num_ooms = host.failures;
  stats.num_device_alloc = host.mappings.allocated;
  stats.num_device_free = host.mappings.freed;
  return stats;
}

void reset_peak(c10::DeviceIndex device) {
  Counters& c = counters(device);
  {
    std::lock_guard<std::mutex> guard(c.mutex);
    reset(c.buffers, &Stat::reset_peak);
    reset(c.bytes, &Stat::reset_peak);
  }
  reset_host_memory_stats(&Stat::reset_peak);
}

void reset_accumulated(c10::DeviceIndex device) {
  Counters& c = counters(device);
  {
    std::lock_guard<std::mutex> guard(c.mutex);
    reset(c.buffers, &Stat::reset_accumulated);
    reset(c.bytes, &Stat::reset_accumulated);
  }
  reset_host_memory_stats(&Stat::reset_accumulated);
}

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  return shares_host_memory() ? host_memory_info() : device_memory_info(device);
}

void set_memory_limit(c10::DeviceIndex device, size_t nbytes) {
  if (shares_host_memory()) {
    limit_host_memory(nbytes);
    return;
  }
  std::lock_guard<std::mutex> guard(counters(device).mutex);
  counters(device).limit = nbytes;
}

void check_memory_limit(c10::DeviceIndex device, size_t nbytes) {
  Counters& c = counters(device);
  std::lock_guard<std::mutex> guard(c.mutex);
  const auto used = static_cast<size_t>(c.bytes[kAll].current);
  TORCH_CHECK_WITH(OutOfMemoryError, used + nbytes <= c.limit, "tiny: out of memory. Tried to allocate ", nbytes, " bytes beside ", used,
                   ", and this process may have ", c.limit, " (set_per_process_memory_fraction)");
}

}  // namespace tiny
