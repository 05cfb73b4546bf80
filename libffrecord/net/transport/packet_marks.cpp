#include "libffrecord/net/transport/packet_marks.h"

#include <netinet/in.h>
#include <sys/socket.h>

namespace ffrecord::net {

void MarkPackets(const Endpoint& endpoint, const TrafficMark& mark) noexcept {
  if (endpoint.transport() != "tcp" && endpoint.transport() != "tls") return;
  const int fd = endpoint.fd();
  // For TCP, the kernel keeps the two bits of ECN. An IPv6 socket has both, for mapped addresses.
  const int tos = mark.dscp.value_or(0) << 2;
  (void)::setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
  (void)::setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof(tos));
  const int priority = mark.priority.value_or(0);  // After IP_TOS, which sets one of its own.
  (void)::setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
}

}  // namespace ffrecord::net
