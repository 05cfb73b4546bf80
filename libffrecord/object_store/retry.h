#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <string>

#include "libffrecord/base/back_off.h"
#include "libffrecord/net/http/http.h"

namespace ffrecord::object_store {

// The seconds of the header Retry-After; 0 without one. A date is not understood.
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
