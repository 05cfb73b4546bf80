#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/base/foreign_fd.h"
#include "libffrecord/net/transport/slab.h"

namespace ffrecord::client {

// Pieces of arrays from one rank to another of the same machine, in memory that both have mapped: a
// ring of slots, each with a head and a payload. The sender copies a piece in, the receiver adds it
// straight out of there: it crosses once, within the processor's cache, and without the kernel.
//
// Both ends are thread-bound and never block. An end that finds nothing to do says WillSleep(),
// looks once more, and sleeps until its wake-up (an eventfd that it gave to the other end) is rung;
// an end rings only if the other has said so. An end believes the other's counters only as far as
// they stay within the mapping. A connection beside the ring tells when the other process is gone;
// what it had published then is still there.
struct RingShape {
  static constexpr std::uint32_t kSlots = 4;
  static constexpr std::size_t kHeadSizeBytesMax = 56;

  std::uint64_t piece_size_bytes = 0;

  // The memory of all.
  std::uint64_t size_bytes() const;

  // For that many ranks on a machine: the pieces of all rings of one rank stay within 8 MiB or
  // shrink, and within `chunk_size_bytes`. `is_whole`: they are chunks.
  static RingShape For(std::uint64_t chunk_size_bytes, std::uint32_t ranks, bool is_whole);
};

class RingSender {
 public:
  // Fails with kIo (ENOMEM).
  static Result<RingSender> Make(RingShape shape);
  int memory_fd() const noexcept { return memory_.fd(); }  // For the receiver.
  void SetReceiverWakeup(ForeignFd wakeup) noexcept { wakeup_ = std::move(wakeup); }

  std::uint64_t piece_size_bytes() const noexcept { return shape_.piece_size_bytes; }
  bool HasRoom() const noexcept;
  // Where the payload of the next piece goes. Requires HasRoom().
  std::span<std::byte> Room() const noexcept;
  // Requires HasRoom(), and sizes within the shape.
  void Publish(std::span<const std::byte> head, std::uint64_t payload_size_bytes) noexcept;

  void WillSleep(bool will) const noexcept;

 private:
  RingSender(RingShape shape, net::Slab memory) noexcept;
  RingShape shape_;
  net::Slab memory_;
  ForeignFd wakeup_;
  std::uint64_t written_ = 0;
};

class RingReceiver {
 public:
  // Fails with kInvalidArgument unless `memory` is a ring of that shape.
  static Result<RingReceiver> Map(RingShape shape, ForeignFd memory, ForeignFd sender_wakeup);

  std::uint64_t piece_size_bytes() const noexcept { return shape_.piece_size_bytes; }
  bool HasPiece() const noexcept;

  // The oldest piece. Requires HasPiece(). Fails with kCorruption if its sizes cannot be right.
  struct Piece {
    std::array<std::byte, RingShape::kHeadSizeBytesMax> bytes;
    std::size_t head_size_bytes;
    std::span<const std::byte> payload;  // In the ring, until Pop().

    std::span<const std::byte> head() const { return {bytes.data(), head_size_bytes}; }
  };
  Result<Piece> Front() const;
  void Pop() noexcept;  // Requires HasPiece().

  void WillSleep(bool will) const noexcept;

 private:
  RingReceiver(RingShape shape, std::shared_ptr<const net::RemoteSlab> memory,
               std::span<std::byte> bytes, ForeignFd wakeup) noexcept;
  RingShape shape_;
  std::shared_ptr<const net::RemoteSlab> memory_;
  std::span<std::byte> bytes_;
  ForeignFd wakeup_;
  std::uint64_t read_ = 0;
};

}  // namespace ffrecord::client
