#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <utility>

#include "libffrecord/base/random.h"

namespace ffrecord {

// The waits between the tries of one request. A wait is a random half to whole of a step, which
// doubles from wait to wait: so clients that failed together do not come back together.
class BackOff {
 public:
  using Duration = std::chrono::milliseconds;
  struct Steps {
    Duration first;
    Duration longest;
  };
  static constexpr Steps kOfStores{Duration(50), Duration(3'000)};
  static constexpr Steps kOfDaemons{Duration(10), Duration(1'000)};

  explicit BackOff(const Steps& steps, std::uint64_t seed = RandomNumber())
      : step_(steps.first), longest_(steps.longest), random_(seed) {}

  // `at_least`: how long the other end wants to be left alone; the wait is added to it.
  Duration Next(Duration at_least = {}) {
    const Duration whole = std::exchange(step_, std::min(2 * step_, longest_));
    std::uniform_int_distribution<std::int64_t> chance(whole.count() / 2, whole.count());
    return at_least + Duration(chance(random_));
  }

 private:
  Duration step_;
  Duration longest_;
  std::minstd_rand random_;
};

}  // namespace ffrecord
