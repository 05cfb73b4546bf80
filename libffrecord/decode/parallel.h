#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace ffrecord {

// Calls `work(claim)` in up to `threads` threads, the caller's among them, and waits for all.
// `claim()` gives each of [0, count) once, then `count`. Where the system refuses a thread, fewer
// do the same. `work` must not throw.
template <class Work>
void ParallelFor(std::size_t count, std::uint32_t threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto claim = [&] { return std::min(count, next.fetch_add(1, std::memory_order_relaxed)); };
  std::vector<std::jthread> others;
  const std::size_t wanted = std::min<std::size_t>(count, threads);
  others.reserve(wanted);
  try {
    while (others.size() + 1 < wanted) others.emplace_back([&] { work(claim); });
  } catch (const std::system_error&) {
    // The threads that there are do it all.
  }
  work(claim);
}

}  // namespace ffrecord
