#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <utility>

#include "libffrecord/base/random.h"

namespace ffrecord {

// The waits between the tries of one request. Doubles from wait to wait; half of it by chance, so
// that many clients do not come back together.
class BackOff {
 public:
  using Duration = std::chrono::milliseconds;

  // At least as long as the store asks for.
  Duration Next(Duration asked_for = {}) {
    const Duration whole = std::exchange(next_, std::min(2 * next_, kMax));
    std::uniform_int_distribution<std::int64_t> chance(whole.count() / 2, whole.count());
    return std::max(Duration(chance(random_)), asked_for);
  }

 private:
  static constexpr Duration kFirst{50};
  static constexpr Duration kMax{3000};

  Duration next_ = kFirst;
  std::minstd_rand random_{static_cast<std::uint32_t>(RandomNumber())};
};

}  // namespace ffrecord
