#include "libffrecord/net/transport/rdma/rdma_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/event_fd.h"

namespace ffrecord::net {
namespace {

// A word comes with each message: how many buffers are free again in the low byte, and one flag.
constexpr std::uint32_t kCreditMask = 0xFF;
constexpr std::uint32_t kLastWord = 1U << 31;
// Told without waiting for a message to take it along: few enough that both ends stay busy.
constexpr std::uint32_t kOwedMax = QueuePair::kBufferCount / 2;

// If the peer is cut off while it should write to us, nothing ends: this end sends nothing that the
// peer could leave unanswered. So the kernel probes the control connection, and ends it after six
// seconds.
void AskOften(int control) {
  constexpr std::array<std::pair<int, int>, 3> kOptions{
      {{TCP_KEEPIDLE, 2}, {TCP_KEEPINTVL, 1}, {TCP_KEEPCNT, 4}}};
  // Only a form for tests is no TCP connection.
  for (const auto& [option, value] : kOptions)
    (void)::setsockopt(control, IPPROTO_TCP, option, &value, sizeof(value));
}

}  // namespace

Result<std::unique_ptr<RdmaStream>> RdmaStream::Make(std::shared_ptr<OpenRdmaDevice> device,
                                                     std::unique_ptr<QueuePair> queue_pair,
                                                     std::unique_ptr<Endpoint>& control,
                                                     const RdmaConnect& peer, bool may_send) {
  std::unique_ptr<RdmaStream> stream(
      new RdmaStream(std::move(device), std::move(queue_pair), peer, may_send));
  FFR_TRY(stream->MakeDescriptor(*control));
  AskOften(control->fd());
  // The first word, for an end that may not send before.
  if (may_send) FFR_TRY(stream->SendMessage(0, false));
  stream->control_ = std::move(control);
  return stream;
}

RdmaStream::RdmaStream(std::shared_ptr<OpenRdmaDevice> device,
                       std::unique_ptr<QueuePair> queue_pair, const RdmaConnect& peer,
                       bool may_send)
    : device_(std::move(device)),
      queue_pair_(std::move(queue_pair)),
      message_size_bytes_max_(std::min(peer.buffer_size_bytes, QueuePair::kBufferSizeBytes)),
      credits_max_(peer.buffer_count),
      may_send_(may_send),
      credits_(peer.buffer_count) {}

Result<void> RdmaStream::MakeDescriptor(const Endpoint& control) {
  epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  bell_ = FFR_TRY(EventFd::Make());
  const std::array<int, 4> watched{queue_pair_->event_fd(), control.fd(), device_->gone_fd(),
                                   bell_.fd()};
  for (const int fd : watched) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      return Error{ErrorCode::kIo,
                   std::string("cannot watch an RDMA connection: ") + std::strerror(errno) +
                       "; each needs four descriptors",
                   errno};
  }
  return {};
}

RdmaStream::~RdmaStream() {
  if (!home_.is_here()) {
    (void)queue_pair_.release();  // Its objects are the parent's; the memory was never ours.
    return;
  }
  // Exposed memory is out of the peer's reach once we are gone: no last word then, and no wait.
  if (!control_ || queue_pair_->exposes() || has_ended_ || broken_ || !queue_pair_->HasSendRoom() ||
      !SendMessage(0, true))
    return;
  device_->Linger(std::move(queue_pair_), std::move(control_));
}

// --- Sending -------------------------------------------------------------------------------------

bool RdmaStream::CanSend() const noexcept {
  return may_send_ && credits_ > 0 && queue_pair_->HasSendBuffer() && queue_pair_->HasSendRoom();
}

bool RdmaStream::HasWaitedEnough() const noexcept {
  if (waits_ == Wait::kToPlace) return may_send_ && queue_pair_->HasWriteRoom();
  return waits_ == Wait::kToSend && CanSend();
}

Result<void> RdmaStream::SendMessage(std::uint32_t size_bytes, bool is_last) {
  const std::uint32_t told = std::exchange(owed_, 0);
  FFR_ASSERT(told <= kCreditMask);
  if (size_bytes > 0) --credits_;
  return queue_pair_->PostSend(size_bytes, told | (is_last ? kLastWord : 0), is_last);
}

Result<void> RdmaStream::LookBeforeSending() {
  TakeMessages();
  if (broken_) return *broken_;
  if (has_ended_) return Error{ErrorCode::kUnavailable, "closed by the peer"};
  return {};
}

Result<std::size_t> RdmaStream::Write(std::span<const iovec> pieces, int descriptor) {
  FFR_ASSERT(descriptor < 0);
  FFR_TRY(LookBeforeSending());
  std::size_t sent_bytes = 0;
  std::size_t piece = 0;
  std::size_t begin = 0;  // Within that piece.
  const auto has_more = [&] {
    while (piece < pieces.size() && begin == pieces[piece].iov_len) ++piece, begin = 0;
    return piece < pieces.size();
  };
  while (has_more()) {
    if (!CanSend()) {
      // Credits are there, and only our own buffers are not: their completions make no event
      // unless one is asked for, and looked for once more after that.
      if (!may_send_ || credits_ == 0) break;
      queue_pair_->AskForSent();
      TakeMessages();
      if (broken_ || !CanSend()) break;
    }
    const auto buffer = queue_pair_->send_buffer().first(message_size_bytes_max_);
    std::size_t size_bytes = 0;
    while (size_bytes < buffer.size() && has_more()) {
      const iovec& from = pieces[piece];
      const std::size_t moved_bytes = std::min(from.iov_len - begin, buffer.size() - size_bytes);
      std::memcpy(buffer.data() + size_bytes, static_cast<const std::byte*>(from.iov_base) + begin,
                  moved_bytes);
      size_bytes += moved_bytes;
      begin += moved_bytes;
    }
    FFR_TRY(SendMessage(static_cast<std::uint32_t>(size_bytes), false));
    sent_bytes += size_bytes;
  }
  waits_ = has_more() ? Wait::kToSend : Wait::kNone;
  return sent_bytes;
}

Result<std::size_t> RdmaStream::WritePlaced(std::span<RemoteMemory::PlacedPiece> pieces) {
  FFR_TRY(LookBeforeSending());
  waits_ = Wait::kToPlace;
  if (!may_send_) return std::size_t{0};
  std::size_t written_bytes = 0;
  while (!pieces.empty()) {
    if (!queue_pair_->HasWriteRoom()) {
      queue_pair_->AskForSent();
      TakeMessages();
      if (broken_ || !queue_pair_->HasWriteRoom()) return written_bytes;
    }
    written_bytes += FFR_TRY(queue_pair_->Write(pieces));
  }
  waits_ = Wait::kNone;
  return written_bytes;
}

Result<RemoteRegion> RdmaStream::Expose(std::span<std::byte> bytes, RemoteMemory::Reach reach) {
  return queue_pair_->Expose(bytes, reach);
}

Result<PooledBuffer> RdmaStream::MakeStaging(std::size_t size_bytes) {
  return queue_pair_->MakeStaging(size_bytes);
}

// --- Receiving -----------------------------------------------------------------------------------

void RdmaStream::TakeMessages() {
  while (!broken_) {
    auto message = queue_pair_->TakeReceived();
    if (message && !message.value()) break;
    auto taken = message ? TakeMessage(*message.value()) : std::move(message).error();
    if (!taken) broken_ = std::move(taken).error();
  }
  if (broken_) return;
  if (auto sent = queue_pair_->TakeSent(); !sent) broken_ = std::move(sent).error();
}

Result<void> RdmaStream::TakeMessage(const QueuePair::Received& message) {
  may_send_ = true;
  const std::uint32_t told = message.immediate & kCreditMask;
  if ((message.immediate & ~(kCreditMask | kLastWord)) != 0 || has_ended_ ||
      told > credits_max_ - credits_)
    return Error{ErrorCode::kCorruption, "the peer's messages do not add up"};
  credits_ += told;
  has_ended_ = (message.immediate & kLastWord) != 0;
  if (message.size_bytes == 0) return queue_pair_->PostReceive(message.buffer);
  arrived_.push_back({message.buffer, 0, message.size_bytes});
  return {};
}

Result<std::size_t> RdmaStream::CopyArrived(std::span<const iovec> pieces) {
  std::size_t copied_bytes = 0;
  std::size_t begin = 0;
  while (!pieces.empty() && !arrived_.empty()) {
    const iovec& to = pieces.front();
    Arrived& from = arrived_.front();
    const std::size_t size_bytes = std::min<std::size_t>(to.iov_len - begin, from.end - from.begin);
    std::memcpy(static_cast<std::byte*>(to.iov_base) + begin,
                queue_pair_->receive_buffer(from.buffer).data() + from.begin, size_bytes);
    copied_bytes += size_bytes;
    begin += size_bytes;
    from.begin += static_cast<std::uint32_t>(size_bytes);
    if (begin == to.iov_len) {
      pieces = pieces.subspan(1);
      begin = 0;
    }
    if (from.begin == from.end) {
      const std::uint32_t buffer = from.buffer;
      arrived_.pop_front();
      if (!broken_) FFR_TRY(Free(buffer));
    }
  }
  return copied_bytes;
}

Result<void> RdmaStream::Free(std::uint32_t buffer) {
  FFR_TRY(queue_pair_->PostReceive(buffer));
  ++owed_;
  // Without room the next message takes them along, or the next buffer that is freed.
  if (owed_ >= kOwedMax && may_send_ && !has_ended_ && queue_pair_->HasSendRoom())
    return SendMessage(0, false);
  return {};
}

Result<std::optional<std::size_t>> RdmaStream::Read(std::span<const iovec> pieces) {
  std::size_t asked_bytes = 0;
  for (const iovec& piece : pieces) asked_bytes += piece.iov_len;
  Ring(false);
  TakeMessages();
  // Short of what was asked for, the caller waits next, and must be woken by what it does not know.
  while (arrived_.empty() && !has_ended_ && !broken_)
    if (!PrepareToWait()) return std::optional<std::size_t>();
  if (!arrived_.empty()) {
    const std::size_t copied_bytes = FFR_TRY(CopyArrived(pieces));
    if (copied_bytes < asked_bytes && (PrepareToWait() || has_ended_ || broken_)) Ring(true);
    return std::optional(copied_bytes);
  }
  if (has_ended_) return std::optional(std::size_t{0});
  return *broken_;
}

Result<void> RdmaStream::Fetch(const RemoteRegion& source, std::span<std::byte> place) {
  return queue_pair_->Read(source, place);
}

// Other messages that come meanwhile are kept for Read().
Result<bool> RdmaStream::HasFetched() {
  Ring(false);
  TakeMessages();
  if (queue_pair_->is_reading()) (void)PrepareToWait();
  if (!queue_pair_->is_reading()) return true;
  if (broken_) return *broken_;
  return false;
}

bool RdmaStream::PrepareToWait() {
  queue_pair_->TakeEvents();
  queue_pair_->AskForReceived();
  if (waits_ == Wait::kToPlace || (waits_ == Wait::kToSend && credits_ > 0) ||
      queue_pair_->is_reading())
    queue_pair_->AskForSent();
  LookForEnd();
  TakeMessages();
  if (HasWaitedEnough()) Ring(true);
  return !arrived_.empty() || has_ended_ || broken_;
}

void RdmaStream::LookForEnd() {
  if (broken_ || has_ended_) return;
  if (device_->is_gone()) {
    broken_ = Error{ErrorCode::kUnavailable,
                    "the RDMA device " + device_->port().device + " was taken away"};
    return;
  }
  auto event = control_->Poll();
  if (event && event.value() == Endpoint::Event::kNone) return;
  // A peer that closes in good order keeps the control until its last word has arrived.
  TakeMessages();
  if (has_ended_ || broken_) return;
  if (event && event.value() != Endpoint::Event::kClosed) {
    broken_ = Error{ErrorCode::kCorruption, "the peer still speaks on the control connection"};
  } else {
    broken_ = Error{ErrorCode::kUnavailable,
                    "the peer is gone: " +
                        (event ? "it has ended the control connection" : event.error().message)};
  }
}

void RdmaStream::Ring(bool on) noexcept {
  if (on == rings_) return;
  if (on)
    bell_.Ring();
  else
    bell_.Clear();
  rings_ = on;
}

// --- Connections ---------------------------------------------------------------------------------

namespace {

class OpenRdmaLink final : public RdmaLink {
 public:
  OpenRdmaLink(std::shared_ptr<OpenRdmaDevice> device, std::unique_ptr<QueuePair> queue_pair,
               Side side)
      : device_(std::move(device)), queue_pair_(std::move(queue_pair)), side_(side) {}

  const RdmaConnect& own() const noexcept override { return own_; }

  Result<std::unique_ptr<Endpoint>> Connect(const RdmaConnect& peer,
                                            std::unique_ptr<Endpoint>& control) override {
    FFR_ASSERT(queue_pair_ != nullptr);
    std::string name = control->peer();
    if (auto connected = queue_pair_->Connect(peer); !connected) {
      Error error = std::move(connected).error();
      error.message = "no RDMA connection to " + name + ": " + error.message;
      return error;
    }
    auto stream = FFR_TRY(RdmaStream::Make(std::move(device_), std::move(queue_pair_), control,
                                           peer, side_ == Side::kConnects));
    return std::unique_ptr<Endpoint>(
        std::make_unique<StreamEndpoint>(std::move(stream), std::move(name)));
  }

 private:
  std::shared_ptr<OpenRdmaDevice> device_;
  std::unique_ptr<QueuePair> queue_pair_;
  const Side side_;
  const RdmaConnect own_ = queue_pair_->own();
};

}  // namespace

Result<std::unique_ptr<RdmaLink>> RdmaLink::Make(std::shared_ptr<RdmaDevice> device, Side side) {
  auto open = std::static_pointer_cast<OpenRdmaDevice>(std::move(device));
  auto queue_pair = FFR_TRY(QueuePair::Make(*open, side));
  return std::unique_ptr<RdmaLink>(
      std::make_unique<OpenRdmaLink>(std::move(open), std::move(queue_pair), side));
}

}  // namespace ffrecord::net
