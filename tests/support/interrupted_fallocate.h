#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

// Included once in a program, this is the fallocate and the posix_fallocate that the program calls:
// each is the kernel's, but is cut short as many times before as a test asks. A tmpfs does that, in
// kernels before 6.18.
namespace ffrecord::test {

inline int fallocate_interruptions = 0;
inline int fallocate_error = 0;  // Each call returns it, where it is not 0.

// 0 or an errno.
inline int InterruptedFallocate(int fd, int mode, off_t offset, off_t size) {
  if (fallocate_interruptions > 0) {
    --fallocate_interruptions;
    return EINTR;
  }
  if (fallocate_error != 0) return fallocate_error;
  return ::syscall(SYS_fallocate, fd, mode, offset, size) == 0 ? 0 : errno;
}

}  // namespace ffrecord::test

extern "C" int fallocate(int fd, int mode, off_t offset, off_t size) {
  const int failure = ffrecord::test::InterruptedFallocate(fd, mode, offset, size);
  if (failure == 0) return 0;
  errno = failure;
  return -1;
}

extern "C" int posix_fallocate(int fd, off_t offset, off_t size) {
  return ffrecord::test::InterruptedFallocate(fd, 0, offset, size);
}
