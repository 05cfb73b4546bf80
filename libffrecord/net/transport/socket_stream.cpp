#include "libffrecord/net/transport/socket_stream.h"

#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace ffrecord::net {
namespace {

// Room for all that one call can bring (SCM_MAX_FD), whatever the limit is: what does not fit the
// kernel closes in our thread, which a descriptor may block.
constexpr std::size_t kControlSizeBytes = CMSG_SPACE(sizeof(int) * 253);

msghdr Message(std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return message;
}

}  // namespace

Error SocketLost(const char* while_doing, int number) {
  const bool refused = number == EFAULT || number == ENOMEM || number == ENOBUFS ||
                       number == ETOOMANYREFS || number == EBADF;
  return {refused ? ErrorCode::kIo : ErrorCode::kUnavailable,
          std::string("lost while ") + while_doing + ": " + std::strerror(number),
          refused ? number : 0};
}

bool AreOfOneHost(const sockaddr_storage& own, const sockaddr_storage& peer) noexcept {
  if (own.ss_family != peer.ss_family) return false;
  if (peer.ss_family == AF_INET) {
    const auto address = [](const sockaddr_storage& name) {
      return ntohl(reinterpret_cast<const sockaddr_in&>(name).sin_addr.s_addr);
    };
    return address(peer) >> 24 == IN_LOOPBACKNET || address(peer) == address(own);
  }
  if (peer.ss_family != AF_INET6) return false;
  const auto& own_address = reinterpret_cast<const sockaddr_in6&>(own).sin6_addr;
  const auto& address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  const bool is_mapped_loopback =
      IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == IN_LOOPBACKNET;
  return IN6_IS_ADDR_LOOPBACK(&address) || is_mapped_loopback ||
         std::memcmp(&address, &own_address, sizeof(address)) == 0;
}

bool HasLocalPeer(int fd) noexcept {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_size = sizeof(own);
  socklen_t peer_size = sizeof(peer);
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
         AreOfOneHost(own, peer);
}

SocketStream::SocketStream(UniqueFd fd, Kind kind) noexcept : fd_(std::move(fd)), kind_(kind) {}

SocketStream::~SocketStream() {
  // Children that were forked meanwhile hold the socket too: only shutdown ends the connection.
  // For the same reason it is not theirs to call.
  if (!home_.is_here()) return;
  ::shutdown(fd_.get(), SHUT_RDWR);
  // Descriptors that were not read are closed with the socket. None comes from now on.
  int unread_bytes = 0;
  if (kind_ == Kind::kLocal &&
      (::ioctl(fd_.get(), FIONREAD, &unread_bytes) != 0 || unread_bytes > 0))
    ForeignFd(fd_.Release());
}

Result<std::size_t> SocketStream::Write(std::span<const iovec> pieces, int descriptor) {
  msghdr message = Message(pieces);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
    if (errno != EINTR) return SocketLost("sending", errno);
  }
}

Result<std::size_t> SocketStream::WriteFile(int file, std::uint64_t offset_bytes,
                                            std::size_t size_bytes) {
  for (;;) {
    auto offset = static_cast<off_t>(offset_bytes);
    const ssize_t sent = ::sendfile(fd_.get(), file, &offset, size_bytes);
    if (sent > 0) return static_cast<std::size_t>(sent);
    if (sent == 0) return Error{ErrorCode::kIo, "lost while sending: a file has become shorter"};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
    if (errno != EINTR) return SocketLost("sending", errno);
  }
}

Result<std::optional<std::size_t>> SocketStream::Read(std::span<const iovec> pieces) {
  for (;;) {
    msghdr message = Message(pieces);
    alignas(cmsghdr) std::array<char, kControlSizeBytes> control;
    if (kind_ == Kind::kLocal) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
    }
    const ssize_t received = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    if (received >= 0) {
      if (message.msg_controllen > 0) FFR_TRY(Keep(message));
      return std::optional(static_cast<std::size_t>(received));
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::optional<std::size_t>();
    if (errno != EINTR) return SocketLost("receiving", errno);
  }
}

void SocketStream::Await(std::size_t size_bytes) noexcept {
  if (kind_ != Kind::kTcp || size_bytes == awaited_bytes_) return;
  const int value = static_cast<int>(size_bytes);
  // Where it cannot be set the socket is readable earlier, which only costs time.
  if (::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value)) == 0)
    awaited_bytes_ = size_bytes;
}

Result<void> SocketStream::Keep(const msghdr& message) {
  auto* const mutable_message = const_cast<msghdr*>(&message);
  for (cmsghdr* header = CMSG_FIRSTHDR(mutable_message); header != nullptr;
       header = CMSG_NXTHDR(mutable_message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      descriptors_.emplace_back(descriptor);
    }
  }
  // All are owned by now, so that none is lost whatever is found.
  if ((message.msg_flags & MSG_CTRUNC) != 0 || descriptors_.size() > descriptor_count_max_)
    return Error{ErrorCode::kCorruption, "the peer sent unrequested file descriptors"};
  return {};
}

ForeignFd SocketStream::TakeDescriptor() noexcept {
  if (descriptors_.empty()) return {};
  ForeignFd first = std::move(descriptors_.front());
  descriptors_.pop_front();
  return first;
}

}  // namespace ffrecord::net
