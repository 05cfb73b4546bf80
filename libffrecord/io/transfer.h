#pragma once

#include <cstdint>

#include "libffrecord/io/io_engine.h"

namespace ffrecord {

// Carries one request to its end over cut, short and interrupted transfers: submit request(), and
// ask Finish() when the engine has returned it. Stays in place meanwhile.
class Transfer {
 public:
  // `unaligned_fd`, if there is one, is the same file without O_DIRECT: what is left of a short
  // transfer goes there where no direct one may start.
  explicit Transfer(const IoRequest& whole, int unaligned_fd = -1);

  // The next request to submit. Its `user` is this Transfer.
  IoRequest& request() noexcept { return request_; }

  // Takes the engine's result. False: submit request() again.
  bool Finish();

  // Once finished: the whole size, fewer bytes only where a read met the end of the file, or
  // -errno.
  std::int64_t result() const noexcept { return result_; }

 private:
  void Cut();

  std::span<std::byte> whole_;
  std::uint64_t offset_bytes_ = 0;
  int unaligned_fd_;
  std::uint64_t moved_bytes_ = 0;
  std::uint32_t fruitless_count_ = 0;
  std::int64_t result_ = 0;
  IoRequest request_;
};

// Waits until nothing is in flight, because the caller frees the buffers next. If the engine fails
// to return a request, this ends the process: the kernel could still write to freed memory.
void DrainOrDie(IoEngine& engine);

}  // namespace ffrecord
