#include "client/collective/stream_silence.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <utility>

namespace ffrecord::client {
namespace {

// So many unanswered seconds until the kernel gives up an idle connection; we do so before while
// something is under way on it.
constexpr int kProbes = 10;

}  // namespace

void ProbeWhenIdle(int fd) {
  for (const auto& [option, value] :
       {std::pair(TCP_KEEPIDLE, 1), std::pair(TCP_KEEPINTVL, 1), std::pair(TCP_KEEPCNT, kProbes)})
    (void)::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value));
}

std::chrono::milliseconds SilenceOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  const bool owes = ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
                    (info.tcpi_unacked > 0 || info.tcpi_probes > 1);
  return std::chrono::milliseconds(owes ? info.tcpi_last_ack_recv : 0);
}

bool HasUnacknowledged(int fd) {
  int size_bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &size_bytes) == 0 && size_bytes > 0;
}

}  // namespace ffrecord::client
