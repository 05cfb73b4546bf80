#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "libffrecord/net/transport/socket_stream.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kNameSizeBytesMax = 100;

struct Name {
  sockaddr_un address{};
  socklen_t size_bytes = 0;
};

// An abstract name: a zero byte, then the name. It is gone when its socket is.
Result<Name> NameOf(const std::string& text) {
  if (text.empty() || text.size() > kNameSizeBytesMax)
    return Error{ErrorCode::kInvalidArgument,
                 "'" + text + "' is no name of a local socket: it has 1 to 100 bytes"};
  Name name;
  name.address.sun_family = AF_UNIX;
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.size_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

Error Failed(const std::string& tried, int number) {
  return Error{ErrorCode::kIo, tried + ": " + std::strerror(number), number};
}

std::unique_ptr<Endpoint> MakeEndpoint(UniqueFd fd, std::string peer) {
  return std::make_unique<StreamEndpoint>(
      std::make_unique<SocketStream>(std::move(fd), SocketStream::Kind::kLocal), std::move(peer));
}

// The process that has connected, or called listen(2).
std::optional<ucred> CredentialsOf(int fd) {
  ucred credentials{};
  socklen_t size_bytes = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size_bytes) != 0)
    return std::nullopt;
  return credentials;
}

std::string PeerOf(int fd) {
  const auto credentials = CredentialsOf(fd);
  if (!credentials) return "local";
  return "pid=" + std::to_string(credentials->pid) + ",uid=" + std::to_string(credentials->uid);
}

bool IsOfThisUser(int fd) {
  const auto credentials = CredentialsOf(fd);
  return credentials && credentials->uid == ::geteuid();
}

}  // namespace

Result<std::unique_ptr<Endpoint>> ConnectLocal(const std::string& name, std::string peer,
                                               Deadline deadline, LocalOwner owner) {
  const Name to = FFR_TRY(NameOf(name));
  const std::string tried = "cannot connect to the local socket " + name;
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return Failed(tried, errno);
  for (;;) {
    // A full queue of connections is waited for here; the socket does not block afterwards.
    const auto left = std::chrono::ceil<std::chrono::microseconds>(deadline - Clock::now());
    if (left.count() <= 0)
      return Error{ErrorCode::kDeadlineExceeded,
                   tried + ": the peer did not accept the connection in time"};
    const auto wait = std::min<std::chrono::microseconds>(left, std::chrono::hours(1));
    const timeval timeout{static_cast<time_t>(wait.count() / 1'000'000),
                          static_cast<suseconds_t>(wait.count() % 1'000'000)};
    (void)::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.address), to.size_bytes) == 0)
      break;
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == ECONNREFUSED || errno == ENOENT || errno == EACCES || errno == EPERM)
      return Error{ErrorCode::kUnavailable,
                   tried + ": " + std::strerror(errno) +
                       "; it is reached only from the same machine and network namespace"};
    return Failed(tried, errno);
  }
  if (owner == LocalOwner::kThisUser && !IsOfThisUser(fd.get()))
    return Error{ErrorCode::kDenied, tried + ": a process of another user listens there"};
  if (::fcntl(fd.get(), F_SETFL, O_NONBLOCK) != 0) return Failed(tried, errno);
  return MakeEndpoint(std::move(fd), std::move(peer));
}

Result<LocalListener> LocalListener::Listen(const std::string& name, int backlog) {
  const Name at = FFR_TRY(NameOf(name));
  const std::string tried = "cannot listen on the local socket " + name;
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return Failed(tried, errno);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size_bytes) != 0) {
    if (errno == EADDRINUSE)
      return Error{ErrorCode::kConflict, tried + ": another process has that name"};
    return Failed(tried, errno);
  }
  if (::listen(fd.get(), backlog) != 0) return Failed(tried, errno);
  return LocalListener(std::move(fd), name);
}

Result<std::unique_ptr<Endpoint>> LocalListener::Accept() {
  for (;;) {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      std::string peer = PeerOf(fd.get());
      return MakeEndpoint(std::move(fd), std::move(peer));
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::unique_ptr<Endpoint>();
    if (errno != EINTR && errno != ECONNABORTED)
      return Failed("cannot accept a connection on the local socket " + name_, errno);
  }
}

}  // namespace ffrecord::net
