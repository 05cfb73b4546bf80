#pragma once

// A connection inside one process, without a kernel buffer: back-pressure is exact, and faults
// happen at a given byte.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/transport/stream_endpoint.h"

namespace ffrecord::net::test {

// Both ends of a connection. Each belongs to one thread.
struct EndpointPair {
  std::unique_ptr<Endpoint> near;
  std::unique_ptr<Endpoint> far;
};

struct LoopbackOptions {
  std::uint64_t buffer_size_bytes = 64 << 10;  // Bytes in flight in each direction.
  // Faults, counted in bytes moved in the direction near -> far; 0 is never.
  std::uint64_t close_after_bytes = 0;  // The connection breaks; bytes moved before still arrive.
  std::uint64_t flip_after_bytes = 0;   // One bit of that byte is flipped.
};

namespace loopback {

inline constexpr std::uint64_t kNever = UINT64_MAX;

// The bytes in flight in one direction: a ring.
struct Direction {
  explicit Direction(std::size_t size_bytes) : bytes(size_bytes) {}

  std::size_t free_bytes() const { return bytes.size() - used_bytes; }

  std::vector<std::byte> bytes;
  std::size_t begin = 0;
  std::size_t used_bytes = 0;
  std::uint64_t moved_bytes = 0;  // Since the start; the faults count these.
  std::uint64_t close_at = kNever;
  std::uint64_t flip_at = kNever;
};

// The state that both ends share. Index 0 is the near end; direction i is written by end i.
struct Connection {
  struct End {
    bool is_closed = false;
    bool waits_to_write = false;
    bool is_signalled = false;  // A byte is in its pipe.
    UniqueFd signal_read;
    UniqueFd signal_write;
  };

  explicit Connection(const LoopbackOptions& options)
      : directions{Direction(options.buffer_size_bytes), Direction(options.buffer_size_bytes)} {
    if (options.close_after_bytes > 0) directions[0].close_at = options.close_after_bytes;
    if (options.flip_after_bytes > 0) directions[0].flip_at = options.flip_after_bytes;
  }

  // Makes the fd of end `i` readable exactly while that end can make progress: a pipe and not an
  // eventfd, which would be writable always.
  void Update(std::size_t i) {
    End& end = ends[i];
    const bool can_read = directions[1 - i].used_bytes > 0 || ends[1 - i].is_closed || is_broken;
    const bool can_write = end.waits_to_write && directions[i].free_bytes() > 0;
    const bool wanted = !end.is_closed && (can_read || can_write);
    if (wanted == end.is_signalled) return;
    char byte = 0;
    const ssize_t moved = wanted ? ::write(end.signal_write.get(), &byte, 1)
                                 : ::read(end.signal_read.get(), &byte, 1);
    FFR_ASSERT(moved == 1);  // At most one byte is ever in the pipe, so neither has to wait.
    end.is_signalled = wanted;
  }
  void UpdateBoth() {
    Update(0);
    Update(1);
  }

  std::mutex mutex;
  std::array<Direction, 2> directions;
  std::array<End, 2> ends;
  bool is_broken = false;
};

inline Error Broken() { return {ErrorCode::kUnavailable, "broken by a fault"}; }

class Stream final : public ByteStream {
 public:
  Stream(std::shared_ptr<Connection> connection, std::size_t index)
      : connection_(std::move(connection)), index_(index) {}
  ~Stream() override {
    const std::lock_guard lock(connection_->mutex);
    connection_->ends[index_].is_closed = true;
    connection_->UpdateBoth();
  }

  std::string_view transport() const noexcept override { return "loopback"; }
  int fd() const noexcept override { return connection_->ends[index_].signal_read.get(); }

  Result<std::size_t> Write(std::span<const iovec> pieces, int) override {
    const std::lock_guard lock(connection_->mutex);
    if (connection_->is_broken) return Broken();
    if (connection_->ends[1 - index_].is_closed)
      return Error{ErrorCode::kUnavailable, "lost while sending: the other end is closed"};
    Direction& out = connection_->directions[index_];
    std::size_t written_bytes = 0;
    bool is_full = false;
    for (const iovec& piece : pieces) {
      const std::size_t size_bytes =
          std::min({piece.iov_len, out.free_bytes(),
                    static_cast<std::size_t>(out.close_at - out.moved_bytes)});
      Put(out, {static_cast<const std::byte*>(piece.iov_base), size_bytes});
      written_bytes += size_bytes;
      is_full = size_bytes < piece.iov_len;
      if (is_full) break;
    }
    connection_->is_broken = out.moved_bytes == out.close_at;
    connection_->ends[index_].waits_to_write = is_full;
    connection_->UpdateBoth();
    return written_bytes;
  }

  Result<std::optional<std::size_t>> Read(std::span<const iovec> pieces) override {
    const std::lock_guard lock(connection_->mutex);
    Direction& in = connection_->directions[1 - index_];
    std::size_t read_bytes = 0;
    for (const iovec& piece : pieces) {
      const std::size_t size_bytes = std::min(piece.iov_len, in.used_bytes);
      Take(in, {static_cast<std::byte*>(piece.iov_base), size_bytes});
      read_bytes += size_bytes;
    }
    connection_->UpdateBoth();
    if (read_bytes > 0) return std::optional(read_bytes);
    if (connection_->is_broken) return Broken();
    if (connection_->ends[1 - index_].is_closed) return std::optional<std::size_t>(0);
    return std::optional<std::size_t>();
  }

 private:
  static void Put(Direction& out, std::span<const std::byte> bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      const std::size_t end = (out.begin + out.used_bytes) % out.bytes.size();
      const std::size_t size_bytes = std::min(bytes.size() - done, out.bytes.size() - end);
      std::memcpy(out.bytes.data() + end, bytes.data() + done, size_bytes);
      if (out.flip_at - out.moved_bytes < size_bytes)
        out.bytes[end + (out.flip_at - out.moved_bytes)] ^= std::byte{1};
      out.used_bytes += size_bytes;
      out.moved_bytes += size_bytes;
      done += size_bytes;
    }
  }

  static void Take(Direction& in, std::span<std::byte> bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      const std::size_t size_bytes = std::min(bytes.size() - done, in.bytes.size() - in.begin);
      std::memcpy(bytes.data() + done, in.bytes.data() + in.begin, size_bytes);
      in.begin = (in.begin + size_bytes) % in.bytes.size();
      in.used_bytes -= size_bytes;
      done += size_bytes;
    }
  }

  const std::shared_ptr<Connection> connection_;
  const std::size_t index_;
};

}  // namespace loopback

inline Result<EndpointPair> MakeLoopbackPair(const LoopbackOptions& options) {
  if (options.buffer_size_bytes == 0)
    return Error{ErrorCode::kInvalidArgument, "loopback: a buffer of 0 bytes moves nothing"};
  const auto connection = std::make_shared<loopback::Connection>(options);
  for (auto& end : connection->ends) {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0)
      return Error{ErrorCode::kIo, std::string("cannot make a pipe: ") + std::strerror(errno),
                   errno};
    end.signal_read.Reset(fds[0]);
    end.signal_write.Reset(fds[1]);
  }
  const auto end = [&](std::size_t index, const char* peer) {
    return std::make_unique<StreamEndpoint>(std::make_unique<loopback::Stream>(connection, index),
                                            peer);
  };
  return EndpointPair{end(0, "loopback far end"), end(1, "loopback near end")};
}

}  // namespace ffrecord::net::test
