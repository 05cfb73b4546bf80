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

namespace ffrecord {

// A descriptor to wait for beside others: readable from Ring() until Clear().
//
// Ring() is thread-safe and may be called any number of times; Clear() belongs to the thread that
// waits.
class EventFd {
 public:
  EventFd() = default;  // None: fd() is -1.
  static Result<EventFd> Make() {
    UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd)
      return Error{ErrorCode::kIo, std::string("cannot make an eventfd: ") + std::strerror(errno),
                   errno};
    return EventFd(std::move(fd));
  }

  int fd() const noexcept { return fd_.get(); }
  void Ring() const noexcept {
    const std::uint64_t one = 1;
    (void)!::write(fd_.get(), &one, sizeof(one));  // Fails only if it is rung already.
  }
  void Clear() const noexcept {
    std::uint64_t count;
    (void)!::read(fd_.get(), &count, sizeof(count));
  }

 private:
  explicit EventFd(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace ffrecord
