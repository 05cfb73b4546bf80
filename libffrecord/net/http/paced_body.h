#pragma once

#include <cstddef>
#include <span>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/http/curl_library.h"

namespace ffrecord::net {

// The body of a request, which libcurl takes in parts, each in its turn as checkpoint traffic.
// Thread-bound.
class PacedBody {
 public:
  // Whether a body of this size has to wait for its turn now.
  static bool IsFor(std::span<const std::byte> body);

  // Has `curl` take `body`, which is borrowed. No part waits longer than `hold_max`.
  void Give(CURL* curl, std::span<const std::byte> body, Clock::duration hold_max);

 private:
  static std::size_t Read(char* room, std::size_t size, std::size_t count, void* body);
  static int Seek(void* body, curl_off_t offset, int origin);

  std::span<const std::byte> body_;
  std::size_t taken_bytes_ = 0;
  Clock::duration hold_max_{};
};

}  // namespace ffrecord::net
