#include "libffrecord/base/fork_generation.h"

#include <pthread.h>

#include <atomic>

#include "libffrecord/base/assert.h"

namespace ffrecord {
namespace {

std::atomic<std::uint32_t> generation{0};

}  // namespace

std::uint32_t ForkGeneration() noexcept {
  static const bool registered = [] {
    return ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); }) == 0;
  }();
  FFR_ASSERT(registered);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace ffrecord
