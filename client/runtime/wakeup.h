#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <ffrecord/result.h>

#include "libffrecord/base/unique_fd.h"

namespace ffrecord::client {

// Wakes a progress thread that waits for its connections: one more fd to wait for.
//
// Ring() is thread-safe and may be called any number of times; Clear() belongs to the thread that
// waits.
class Wakeup {
 public:
  static Result<Wakeup> Make() {
    UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd)
      return Error{ErrorCode::kIo, std::string("cannot make an eventfd: ") + std::strerror(errno),
                   errno};
    return Wakeup(std::move(fd));
  }

  int fd() const noexcept { return fd_.get(); }  // Readable from Ring() until Clear().
  void Ring() noexcept {
    const std::uint64_t one = 1;
    (void)!::write(fd_.get(), &one, sizeof(one));  // Fails only if it is rung already.
  }
  void Clear() noexcept {
    std::uint64_t count;
    (void)!::read(fd_.get(), &count, sizeof(count));
  }

 private:
  explicit Wakeup(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace ffrecord::client
