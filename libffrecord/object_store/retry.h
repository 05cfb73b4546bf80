#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <random>
#include <utility>

#include "libffrecord/base/random.h"
#include "libffrecord/net/http/http.h"

namespace ffrecord::object_store {

// Doubles from wait to wait; half of it by chance, so that many clients do not come back together.
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

// What the header Retry-After asks for, in seconds; 0 without one. A date is not understood.
inline BackOff::Duration RetryAfter(const net::HttpResponse& response) {
  const auto found = response.headers.find("retry-after");
  std::uint32_t seconds = 0;
  if (found != response.headers.end()) {
    const std::string& text = found->second;
    std::from_chars(text.data(), text.data() + text.size(), seconds);
  }
  constexpr std::uint32_t kSecondsMax = 3600;
  return std::chrono::seconds(std::min(seconds, kSecondsMax));
}

// Whether a status is one of a server that may answer otherwise in a moment.
inline bool MayPass(int status) {
  return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 ||
         status == 503 || status == 504;
}

}  // namespace ffrecord::object_store
