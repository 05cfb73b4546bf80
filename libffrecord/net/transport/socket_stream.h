#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string_view>

#include "libffrecord/base/foreign_fd.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/transport/stream_endpoint.h"

namespace ffrecord::net {

// Endpoint::has_local_peer() of a connected TCP socket, whose addresses are these.
bool HasLocalPeer(int fd) noexcept;
bool AreOfOneHost(const sockaddr_storage& own, const sockaddr_storage& peer) noexcept;

// One connected socket: TCP ("tcp"), or one within this machine ("shm"), which carries descriptors
// too.
class SocketStream final : public ByteStream {
 public:
  enum class Kind : std::uint8_t { kTcp, kLocal };
  // Takes a socket that does not block.
  SocketStream(UniqueFd fd, Kind kind) noexcept;
  ~SocketStream() override;

  std::string_view transport() const noexcept override {
    return kind_ == Kind::kTcp ? "tcp" : "shm";
  }
  int fd() const noexcept override { return fd_.get(); }
  bool has_local_peer() const noexcept override {
    return kind_ == Kind::kLocal || HasLocalPeer(fd_.get());
  }
  Result<std::size_t> Write(std::span<const iovec> pieces, int descriptor) override;
  Result<std::optional<std::size_t>> Read(std::span<const iovec> pieces) override;
  void Await(std::size_t size_bytes) noexcept override;
  bool moves_files() const noexcept override { return kind_ == Kind::kTcp; }
  Result<std::size_t> WriteFile(int file, std::uint64_t offset_bytes,
                                std::size_t size_bytes) override;
  bool carries_descriptors() const noexcept override { return kind_ == Kind::kLocal; }
  void SetDescriptorLimit(std::size_t count_max) noexcept override {
    descriptor_count_max_ = count_max;
  }
  ForeignFd TakeDescriptor() noexcept override;

 private:
  Result<void> Keep(const msghdr& message);

  UniqueFd fd_;
  const HomeProcess home_;
  const Kind kind_;
  std::size_t awaited_bytes_ = 1;
  std::deque<ForeignFd> descriptors_;  // Received and not yet taken.
  std::size_t descriptor_count_max_ = 0;
};

// The error for the connection when a call on a connected socket failed with `number`.
Error SocketLost(const char* while_doing, int number);

// A connected TCP socket that does not block. Fails as ConnectTcp.
struct Address;
Result<UniqueFd> ConnectTcpSocket(const Address& address, Deadline deadline);

}  // namespace ffrecord::net
