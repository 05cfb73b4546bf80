#pragma once

#include <cerrno>

namespace ffrecord {

// Makes a call of the system, which answers below 0 and sets errno, again for as long as it is cut
// short. That happens to a thread without signals too: a ring of io_uring that has something for a
// thread wakes it as a signal would (TIF_NOTIFY_SIGNAL), and fallocate on a tmpfs gives up then
// in kernels before 6.18.
template <typename Call>
auto Uninterrupted(Call call) {
  auto answer = call();
  while (answer < 0 && errno == EINTR) answer = call();
  return answer;
}

}  // namespace ffrecord
