#pragma once

#include <utility>

#include "libffrecord/base/unique_fd.h"

namespace ffrecord {

// The single owner of a descriptor that another process chose, and may have chosen to do harm:
// close(2) of a file on a dead network file system, or of a socket that lingers, blocks for as long
// as that process likes. The destructor therefore closes it on a thread kept for that, and never
// waits. Nothing but Trust() makes an ordinary descriptor of it.
class ForeignFd {
 public:
  ForeignFd() noexcept = default;
  explicit ForeignFd(int fd) noexcept : fd_(fd) {}
  ForeignFd(UniqueFd fd) noexcept : fd_(fd.Release()) {}
  ForeignFd(ForeignFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ForeignFd& operator=(ForeignFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ForeignFd();

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  // For a caller that has found out that it is memory, which closes at once.
  UniqueFd Trust() && noexcept { return UniqueFd(std::exchange(fd_, -1)); }

  // Whether so many closes wait for others that block that no more should be taken from strangers.
  static bool is_congested() noexcept;

 private:
  int fd_ = -1;
};

}  // namespace ffrecord
