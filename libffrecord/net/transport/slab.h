#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/base/foreign_fd.h"
#include "libffrecord/base/unique_fd.h"

namespace ffrecord::net {

// Memory that a peer writes into while the owner reads it, or reads what the owner has put there:
// one-sided, without a byte on the socket.
// Sizes are in bytes, multiples of a page, at most kSlabSizeBytesMax.
//
// Late writes. A peer that was asked to write into a range may do so until it has said that the
// request is done. A wait that times out, or a connection that breaks, takes nothing back: the
// range is then in quarantine for as long as the slab lives, and nobody may be given it again. A
// caller that must keep the bytes in such a range copies them to other memory.
inline constexpr std::uint64_t kSlabSizeBytesMax = std::uint64_t{4} << 30;
inline constexpr std::uint64_t kSlabPageBytes = 4096;

// The owner's side: a memfd that can neither shrink nor grow, and its mapping here. Move-only.
// After a fork parent and child share the bytes: neither may hand out what was in use then.
class Slab {
 public:
  // The access of the peer that is given fd().
  enum class Peer : std::uint8_t { kWrites, kReads };

  // All of it is allocated at once, on the owner's account. Fails with kInvalidArgument for a bad
  // size, kIo (ENOMEM).
  static Result<Slab> Make(std::uint64_t size_bytes, Peer peer = Peer::kWrites);

  Slab() noexcept = default;  // No memory.
  Slab(Slab&& other) noexcept;
  Slab& operator=(Slab&& other) noexcept;
  ~Slab();

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  int fd() const noexcept { return fd_.get(); }  // To be sent to the peer.

 private:
  Slab(UniqueFd fd, std::span<std::byte> bytes) noexcept : fd_(std::move(fd)), bytes_(bytes) {}
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

// The writer's side: a slab of a peer that is not trusted. Nothing that the peer does later takes
// the memory away under a writer, but a page may be unobtainable: an error where the kernel writes
// (read(2) and the like), else a SIGBUS (sigbus_guard.h). Shared by all who write into it.
class RemoteSlab {
 public:
  // Maps what came from the peer. Fails with kInvalidArgument, naming what is wrong, unless it is a
  // memfd of ordinary pages that is `size_bytes` long and sealed against shrinking and growing.
  static Result<std::shared_ptr<const RemoteSlab>> Map(ForeignFd descriptor,
                                                       std::uint64_t size_bytes);
  RemoteSlab(const RemoteSlab&) = delete;
  RemoteSlab& operator=(const RemoteSlab&) = delete;
  ~RemoteSlab();

  std::uint64_t size_bytes() const noexcept { return bytes_.size(); }

  // Bytes [offset, offset + size). Fails with kOutOfRange if they pass the slab.
  Result<std::span<std::byte>> At(std::uint64_t offset_bytes, std::uint64_t size_bytes) const;

 private:
  explicit RemoteSlab(std::span<std::byte> bytes) noexcept : bytes_(bytes) {}
  const std::span<std::byte> bytes_;
};

// The reader's side: memory that such a peer uploads from. It is read through its descriptor, so
// that nothing the peer does meanwhile is more than an error or other bytes. Thread-safe.
class UploadSlab {
 public:
  // Takes what came from the peer. Fails with kInvalidArgument, naming what is wrong, unless it is
  // a memfd of ordinary pages that is `size_bytes` long.
  static Result<std::shared_ptr<const UploadSlab>> Take(ForeignFd descriptor,
                                                        std::uint64_t size_bytes);

  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

  // Copies bytes from `offset_bytes` on. Fails with kOutOfRange if they pass the slab, with kIo if
  // the peer has taken them away.
  Result<void> Read(std::uint64_t offset_bytes, std::span<std::byte> to) const;

 private:
  UploadSlab(UniqueFd fd, std::uint64_t size_bytes) noexcept
      : fd_(std::move(fd)), size_bytes_(size_bytes) {}
  const UniqueFd fd_;
  const std::uint64_t size_bytes_;
};

}  // namespace ffrecord::net
