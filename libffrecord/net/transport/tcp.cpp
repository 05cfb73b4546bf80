#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "libffrecord/base/patient_wait.h"
#include "libffrecord/base/quiet_signals.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/transport/socket_stream.h"
#include "libffrecord/net/transport/tls/tls.h"
#include "libffrecord/net/transport/unsent.h"

namespace ffrecord::net {
namespace {

// A peer whose machine is gone is noticed after kIdle + kInterval * kProbes seconds.
constexpr int kKeepAliveIdleS = 30;
constexpr int kKeepAliveIntervalS = 10;
constexpr int kKeepAliveProbes = 3;

std::string ErrnoText(int number) { return std::strerror(number); }

void SetOption(int fd, int level, int name, int value) {
  // Tuning only: a socket without it still works.
  (void)::setsockopt(fd, level, name, &value, sizeof(value));
}

void Tune(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
}

}  // namespace

void LimitUnsent(const Endpoint& endpoint, int size_bytes) noexcept {
  if (endpoint.fd() >= 0) SetOption(endpoint.fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, size_bytes);
}

namespace {

// --- Names ---------------------------------------------------------------------------------------

struct FreeAddresses {
  void operator()(addrinfo* first) const noexcept { ::freeaddrinfo(first); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

struct Resolved {
  int status = EAI_AGAIN;
  int system_errno = 0;
  Addresses addresses;
};

Resolved Resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* first = nullptr;
  Resolved resolved;
  resolved.status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  resolved.system_errno = errno;
  resolved.addresses.reset(resolved.status == 0 ? first : nullptr);
  return resolved;
}

Error NoSuchHost(const Address& address, const Resolved& resolved, ErrorCode code) {
  const std::string why = resolved.status == EAI_SYSTEM ? ErrnoText(resolved.system_errno)
                                                        : ::gai_strerror(resolved.status);
  return {code, "host '" + address.host + "' of " + address.ToString() + " is not known: " + why +
                    "; check the spelling and the name service"};
}

// The name service has no deadline of its own, so a name is looked up in a thread that is left to
// itself when time is up. It touches nothing but what it shares with us here.
Result<Addresses> ResolveUntil(const Address& address, Deadline deadline) {
  Resolved numeric = Resolve(address.host, address.port, AI_NUMERICHOST);
  if (numeric.status == 0) return std::move(numeric.addresses);

  struct Shared {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<Resolved> resolved;
  };
  auto shared = std::make_shared<Shared>();
  const auto look_up = [shared, address] {
    Resolved resolved = Resolve(address.host, address.port, AI_ADDRCONFIG);
    // AI_ADDRCONFIG knows no address at all on a machine that has only its loopback.
    if (resolved.status != 0) resolved = Resolve(address.host, address.port, 0);
    const std::lock_guard lock(shared->mutex);
    shared->resolved = std::move(resolved);
    shared->done.notify_one();
  };
  try {
    const QuietSignals quiet;
    std::thread(look_up).detach();
  } catch (const std::system_error&) {
    return Error{
        ErrorCode::kIo,
        "cannot look up the name of " + address.ToString() + ": the system has no thread to give",
        EAGAIN};
  }

  std::unique_lock lock(shared->mutex);
  while (!shared->resolved) {
    if (!WaitPatiently(shared->done, lock, deadline) && !shared->resolved) {
      return Error{ErrorCode::kDeadlineExceeded,
                   "timed out looking up the name of " + address.ToString()};
    }
  }
  if (shared->resolved->status != 0)
    return NoSuchHost(address, *shared->resolved, ErrorCode::kUnavailable);
  return std::move(shared->resolved->addresses);
}

Address NameOf(const sockaddr* name, socklen_t size_bytes) {
  char host[NI_MAXHOST] = "?";
  char port[NI_MAXSERV] = "0";
  (void)::getnameinfo(name, size_bytes, host, sizeof(host), port, sizeof(port),
                      NI_NUMERICHOST | NI_NUMERICSERV);
  return {host, static_cast<std::uint16_t>(std::strtoul(port, nullptr, 10))};
}

Address LocalName(int fd) {
  sockaddr_storage name{};
  socklen_t size_bytes = sizeof(name);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size_bytes) != 0) return {"?", 0};
  return NameOf(reinterpret_cast<sockaddr*>(&name), size_bytes);
}

// --- Connecting ----------------------------------------------------------------------------------

// 0, or the errno that says why there is no connection; ETIMEDOUT at the deadline, or once the
// thread's patience is over.
int ConnectOne(int fd, const addrinfo& to, Deadline deadline) {
  if (::connect(fd, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  Patience& patience = Patience::OfThread();
  const std::chrono::milliseconds step =
      patience.is_endless() ? std::chrono::hours(1) : Patience::kInterval;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || patience.IsOver()) return ETIMEDOUT;
    pollfd waited{fd, POLLOUT, 0};
    const int ready = PollFor({&waited, 1}, std::min(left, step));
    if (ready < 0 && errno != EINTR) return errno;
    if (ready <= 0) continue;
    int error = 0;
    socklen_t size_bytes = sizeof(error);
    if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size_bytes) != 0) return errno;
    return error;
  }
}

// A port that nobody listens on may be given to our own socket, which then connects to itself.
bool IsConnectedToItself(int fd, const addrinfo& to) {
  sockaddr_storage name{};
  socklen_t size_bytes = sizeof(name);
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size_bytes) == 0 &&
         LocalName(fd).ToString() == NameOf(to.ai_addr, to.ai_addrlen).ToString();
}

}  // namespace

Result<std::unique_ptr<Endpoint>> ConnectTcp(const Address& address, Deadline deadline) {
  UniqueFd fd = FFR_TRY(ConnectTcpSocket(address, deadline));
  return std::unique_ptr<Endpoint>(std::make_unique<StreamEndpoint>(
      std::make_unique<SocketStream>(std::move(fd), SocketStream::Kind::kTcp), address.ToString()));
}

Result<UniqueFd> ConnectTcpSocket(const Address& address, Deadline deadline) {
  const Addresses addresses = FFR_TRY(ResolveUntil(address, deadline));
  int count = 0;
  for (const addrinfo* to = addresses.get(); to != nullptr; to = to->ai_next) ++count;

  int error = ECONNREFUSED;
  for (const addrinfo* to = addresses.get(); to != nullptr; to = to->ai_next, --count) {
    UniqueFd fd(::socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
      error = errno;
      continue;
    }
    // A name may have several addresses, and the first may be a black hole: each gets its share.
    const Deadline share = Clock::now() + (deadline - Clock::now()) / count;
    error = ConnectOne(fd.get(), *to, share);
    if (error == 0 && IsConnectedToItself(fd.get(), *to)) error = ECONNREFUSED;
    if (error != 0) continue;
    Tune(fd.get());
    return fd;
  }

  const std::string tried = "cannot connect to " + address.ToString() + ": ";
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
    return Error{ErrorCode::kIo, tried + ErrnoText(error) + "; raise the limit of open files",
                 error};
  }
  if (error == ETIMEDOUT) {
    return Error{ErrorCode::kDeadlineExceeded,
                 tried + "no answer in time; check the address, the route and the firewall"};
  }
  return Error{ErrorCode::kUnavailable,
               tried + ErrnoText(error) + "; check that the peer runs and listens there"};
}

// --- Listening -----------------------------------------------------------------------------------

Result<TcpListener> TcpListener::Listen(const Address& address, int backlog) {
  const Resolved resolved = Resolve(address.host, address.port, AI_PASSIVE);
  if (resolved.status != 0) return NoSuchHost(address, resolved, ErrorCode::kInvalidArgument);

  const addrinfo& at = *resolved.addresses;
  UniqueFd fd(::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd) SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (!fd || ::bind(fd.get(), at.ai_addr, at.ai_addrlen) != 0 || ::listen(fd.get(), backlog) != 0) {
    const int error = errno;
    const std::string tried = "cannot listen on " + address.ToString() + ": " + ErrnoText(error);
    if (error == EADDRINUSE)
      return Error{ErrorCode::kConflict, tried + "; stop the other process or use another port"};
    if (error == EACCES)
      return Error{ErrorCode::kDenied, tried + "; use a port above 1023 or run with the right"};
    return Error{ErrorCode::kIo, tried, error};
  }
  Address chosen{address.host, LocalName(fd.get()).port};
  return TcpListener(std::move(fd), std::move(chosen));
}

Result<std::unique_ptr<Endpoint>> TcpListener::Accept(const TlsContext* tls) {
  for (;;) {
    sockaddr_storage name{};
    socklen_t size_bytes = sizeof(name);
    UniqueFd fd(::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&name), &size_bytes,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      Tune(fd.get());
      const Address peer = NameOf(reinterpret_cast<sockaddr*>(&name), size_bytes);
      std::unique_ptr<ByteStream> stream;
      if (tls != nullptr)
        stream = FFR_TRY(tls->MakeStream(std::move(fd), peer.host));
      else
        stream = std::make_unique<SocketStream>(std::move(fd), SocketStream::Kind::kTcp);
      return std::unique_ptr<Endpoint>(
          std::make_unique<StreamEndpoint>(std::move(stream), peer.ToString()));
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::unique_ptr<Endpoint>();
    switch (errno) {
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
      case EBADF:
      case EINVAL:
        return Error{ErrorCode::kIo,
                     "cannot accept a connection on " + address_.ToString() + ": " +
                         ErrnoText(errno) + "; raise the limit of open files",
                     errno};
      default:
        break;  // That one connection is lost already (accept(2) lists the reasons): the next.
    }
  }
}

}  // namespace ffrecord::net
