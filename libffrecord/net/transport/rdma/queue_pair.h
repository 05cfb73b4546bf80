#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "libffrecord/base/home_process.h"
#include "libffrecord/net/transport/rdma/device.h"
#include "libffrecord/net/transport/remote_memory.h"

namespace ffrecord::net {

// A reliable queue pair with all that belongs to it alone: a protection domain, two completion
// queues on one channel, and memory for messages in each direction. A peer can write nowhere but
// into the receive buffers that were posted, and into what was exposed to it for that, and read
// only what was exposed to be read: both by the end that connects only.
//
// Thread-bound. Requires that the device outlives it. Not inherited: a forked child frees nothing.
class QueuePair {
 public:
  static constexpr std::uint32_t kBufferSizeBytes = 4096;
  // Messages with bytes that may be under way in one direction: 32 KiB.
  static constexpr std::uint32_t kBufferCount = 8;
  // Messages without bytes: two grants of half of the buffers each, the first word, the last word.
  static constexpr std::uint32_t kWordCount = 4;
  static constexpr std::uint32_t kReceiveCount = kBufferCount + kWordCount;
  // Far more sends than the credits allow, so that completions may come late.
  static constexpr std::uint32_t kSendCount = 64;
  // Writes into the peer's memory that may be under way, and their bytes: of 4 KiB and of 64 KiB
  // enough for 100 Gbit/s over 40 us. The memory is taken by the first write.
  static constexpr std::uint32_t kWriteCount = 128;
  static constexpr std::uint32_t kWriteSizeBytesMax = 64 << 10;
  static constexpr std::size_t kWriteBufferBytes = 1 << 20;
  // Reads of the peer's memory that may be under way; protocol.md, "RDMA".
  static constexpr std::uint8_t kReadCount = 1;

  // With all receive buffers posted, and an event asked for. Fails with kUnavailable if the device
  // is gone.
  static Result<std::unique_ptr<QueuePair>> Make(OpenRdmaDevice& device, RdmaLink::Side side);
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;
  ~QueuePair();

  const RdmaConnect& own() const noexcept { return own_; }
  Result<void> Connect(const RdmaConnect& peer);

  std::span<const std::byte> receive_buffer(std::uint32_t index) const;
  // Makes a receive buffer free for the peer again.
  Result<void> PostReceive(std::uint32_t index);

  // The buffer for the next message; requires that HasSendBuffer().
  std::span<std::byte> send_buffer() const;
  bool HasSendBuffer() const noexcept { return messages_sent_ - messages_done_ < kBufferCount; }
  bool HasSendRoom() const noexcept {
    return (posted_ - done_) - writes_under_way() - reads_under_way() < kSendCount;
  }
  // Sends the first `size_bytes` of send_buffer(), or a word if 0. Requires HasSendRoom().
  Result<void> PostSend(std::uint32_t size_bytes, std::uint32_t immediate, bool is_last);

  // Copies what there is room for, takes it off the front of `pieces`, and has it written into the
  // peer's memory; returns how many bytes. The next message arrives behind it.
  Result<std::size_t> Write(std::span<RemoteMemory::PlacedPiece>& pieces);
  bool HasWriteRoom() const noexcept {
    return writes_under_way() < kWriteCount && write_end_ - write_begin_ < kWriteBufferBytes;
  }

  // As RemoteMemory::MakeStaging, until this ends. Fails with EOPNOTSUPP if the device cannot read.
  Result<PooledBuffer> MakeStaging(std::size_t size_bytes);
  // Reads memory of the peer into `place`, which is part of the staging buffer (else
  // kInvalidArgument). Requires that it is not reading.
  Result<void> Read(const RemoteRegion& source, std::span<std::byte> place);
  bool is_reading() const noexcept { return reads_under_way() > 0; }

  // As RemoteMemory::Expose, until this ends. Fails with EOPNOTSUPP if the device answers no reads.
  Result<RemoteRegion> Expose(std::span<std::byte> bytes, RemoteMemory::Reach reach);
  bool exposes() const noexcept { return !exposed_.empty(); }

  struct Received {
    std::uint32_t buffer;
    std::uint32_t size_bytes;
    std::uint32_t immediate;
  };
  // The next message that has arrived. kUnavailable if the connection broke; the message says why.
  Result<std::optional<Received>> TakeReceived();
  // Looks for completed sends; fails as TakeReceived.
  Result<void> TakeSent();
  // Whether the last message has arrived at the peer, or never will. Nothing else is called after.
  bool HasSentAll();

  // Readable when an event has come that was asked for. Take it before asking for the next.
  int event_fd() const noexcept { return channel_->fd; }
  void TakeEvents() noexcept;
  // Asks for an event at the next message, or at the next completed send; no more than once each
  // until it has come.
  void AskForReceived() noexcept;
  void AskForSent() noexcept;

 private:
  // Counted by the device already.
  QueuePair(OpenRdmaDevice& device, RdmaLink::Side side) noexcept;
  // Locks memory of ours for the device; null with errno. A completion announces what arrives
  // there, and comes behind it: so the device may write it in any order, if it can.
  ibv_mr* Register(std::span<std::byte> bytes, int access) const;
  Result<void> MakeObjects();
  Result<void> MapBuffers();
  Result<void> MapWriteBuffer();
  Result<std::span<std::byte>> Map(std::size_t size_bytes) const;
  // One chain of writes in the making.
  struct Chain;
  Result<std::size_t> CopyTo(Chain& chain, RemoteMemory::PlacedPiece& piece);
  Result<void> Post(Chain& chain);
  std::uint32_t writes_under_way() const noexcept { return writes_posted_ - writes_done_; }
  std::uint32_t reads_under_way() const noexcept { return reads_posted_ - reads_done_; }
  void MarkPosted() {
    marks_.push_back({posted_, messages_sent_, writes_posted_, reads_posted_, write_end_});
  }
  // How many of kReadCount the device answers, and asks for.
  std::uint8_t ReadCountTaken() const;
  std::uint8_t ReadCountMade() const;
  Error NoReads(const char* what) const;
  Error Broken(const ibv_wc& completion) const;
  Error Refused(const char* tried, int number) const;

  OpenRdmaDevice& device_;
  const RdmaLink::Side side_;
  const Verbs& verbs_;
  const HomeProcess home_;
  RdmaConnect own_;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* sent_ = nullptr;
  ibv_cq* received_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::span<std::byte> memory_;  // Receive buffers, then send buffers.
  ibv_mr* receive_region_ = nullptr;
  ibv_mr* send_region_ = nullptr;

  // Work requests, and among them messages with bytes, writes and reads, counted.
  std::uint32_t posted_ = 0, done_ = 0;
  std::uint32_t messages_sent_ = 0, messages_done_ = 0;
  std::uint32_t writes_posted_ = 0, writes_done_ = 0;
  std::uint32_t reads_posted_ = 0, reads_done_ = 0;
  // The values of these counters when a request was posted that is signalled, in the order of
  // posting.
  struct Mark {
    std::uint32_t posted;
    std::uint32_t messages_sent;
    std::uint32_t writes_posted;
    std::uint32_t reads_posted;
    std::uint64_t write_end;
  };
  std::deque<Mark> marks_;

  // A ring: bytes [begin, end), counted from the start, are being written to the peer.
  std::span<std::byte> write_memory_;
  ibv_mr* write_region_ = nullptr;
  std::uint64_t write_begin_ = 0, write_end_ = 0;

  PooledBuffer staging_;  // Null until it is made.
  ibv_mr* staging_region_ = nullptr;

  std::vector<ibv_mr*> exposed_;
  std::uint32_t inline_size_bytes_ = 0;
  std::optional<std::uint32_t> last_;  // posted_ after the last message.
  bool is_broken_ = false;
  bool asked_for_received_ = false, asked_for_sent_ = false;
};

}  // namespace ffrecord::net
