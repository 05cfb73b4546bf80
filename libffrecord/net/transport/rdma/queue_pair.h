#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "libffrecord/net/transport/rdma/device.h"

namespace ffrecord::net {

// A reliable queue pair with all that belongs to it alone: a protection domain, two completion
// queues on one channel, and memory for messages in each direction. Nothing of it can be written to
// by a peer, but through the receive buffers that were posted.
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

  // With all receive buffers posted, and an event asked for.
  static Result<std::unique_ptr<QueuePair>> Make(OpenRdmaDevice& device);
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
  bool HasSendRoom() const noexcept { return posted_ - done_ < kSendCount; }
  // Sends the first `size_bytes` of send_buffer(), or a word if 0. Requires HasSendRoom().
  Result<void> PostSend(std::uint32_t size_bytes, std::uint32_t immediate, bool is_last);

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
  explicit QueuePair(OpenRdmaDevice& device) noexcept;
  Result<void> MakeObjects();
  Result<void> MapBuffers();
  Error Broken(const ibv_wc& completion) const;
  Error Refused(const char* tried, int number) const;

  OpenRdmaDevice& device_;
  const Verbs& verbs_;
  const pid_t owner_;
  RdmaConnect own_;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* sent_ = nullptr;
  ibv_cq* received_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::span<std::byte> memory_;  // Receive buffers, then send buffers.
  ibv_mr* receive_region_ = nullptr;
  ibv_mr* send_region_ = nullptr;

  // Work requests and messages with bytes, counted; the id of a request holds both.
  std::uint32_t posted_ = 0, done_ = 0;
  std::uint32_t messages_sent_ = 0, messages_done_ = 0;
  std::uint32_t inline_size_bytes_ = 0;
  std::optional<std::uint32_t> last_;  // posted_ after the last message.
  bool is_broken_ = false;
  bool asked_for_received_ = false, asked_for_sent_ = false;
};

}  // namespace ffrecord::net
