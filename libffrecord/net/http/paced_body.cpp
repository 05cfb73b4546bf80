#include "libffrecord/net/http/paced_body.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "libffrecord/pace/gate.h"

namespace ffrecord::net {
namespace {

// Limits the bytes that the kernel keeps of a paced connection beyond those that travel: they leave
// in a phase, too.
int LimitUnsent(void* /*context*/, curl_socket_t socket, curlsocktype /*purpose*/) {
  constexpr int kSizeMax = 64 << 10;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kSizeMax, sizeof kSizeMax);
  return CURL_SOCKOPT_OK;
}

}  // namespace

bool PacedBody::IsFor(std::span<const std::byte> body) {
  return pace::IsOn() && body.size() > pace::kLeastPartBytes;
}

void PacedBody::Give(CURL* curl, std::span<const std::byte> body, Clock::duration hold_max) {
  body_ = body;
  taken_bytes_ = 0;
  hold_max_ = hold_max;
  Curl().easy_setopt(curl, CURLOPT_READFUNCTION, &Read);
  Curl().easy_setopt(curl, CURLOPT_READDATA, this);
  // It begins again if a connection that was used before turns out to be closed.
  Curl().easy_setopt(curl, CURLOPT_SEEKFUNCTION, &Seek);
  Curl().easy_setopt(curl, CURLOPT_SEEKDATA, this);
  Curl().easy_setopt(curl, CURLOPT_SOCKOPTFUNCTION, &LimitUnsent);
}

std::size_t PacedBody::Read(char* room, std::size_t size, std::size_t count, void* body) {
  auto& self = *static_cast<PacedBody*>(body);
  const auto rest = self.body_.subspan(self.taken_bytes_);
  const std::size_t wanted = std::min(rest.size(), size * count);
  if (wanted == 0) return 0;
  const std::size_t part = pace::AwaitPart(TrafficClass::kCheckpoint, wanted, pace::kLeastPartBytes,
                                           Clock::now() + self.hold_max_);
  std::memcpy(room, rest.data(), part);
  self.taken_bytes_ += part;
  return part;
}

int PacedBody::Seek(void* body, curl_off_t offset, int origin) {
  auto& self = *static_cast<PacedBody*>(body);
  if (origin != SEEK_SET || offset < 0 || static_cast<std::size_t>(offset) > self.body_.size())
    return CURL_SEEKFUNC_CANTSEEK;
  self.taken_bytes_ = static_cast<std::size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

}  // namespace ffrecord::net
