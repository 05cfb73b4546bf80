#include "client/collective/shared_ring.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

// Larger ones leave the cache before they are taken out, smaller ones cost more to pass on.
constexpr std::uint64_t kPieceSizeMax = 128 << 10;
constexpr std::uint64_t kPieceSizeMin = 16 << 10;
constexpr std::uint64_t kRankSizeMax = 8 << 20;

// Each end writes to a cache line of its own.
constexpr std::size_t kLine = 64;
struct Control {
  alignas(kLine) std::atomic<std::uint64_t> written;  // Pieces, by the sender.
  alignas(kLine) std::atomic<std::uint64_t> read;     // By the receiver.
  alignas(kLine) std::atomic<std::uint32_t> sender_sleeps;
  alignas(kLine) std::atomic<std::uint32_t> receiver_sleeps;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

struct Head {
  std::uint32_t payload_size_bytes;
  std::uint32_t head_size_bytes;
  std::array<std::byte, RingShape::kHeadSizeBytesMax> bytes;
};
static_assert(sizeof(Head) == kLine);

constexpr std::uint64_t kPayloadsAt = net::kSlabPageBytes;
static_assert(sizeof(Control) + RingShape::kSlots * sizeof(Head) <= kPayloadsAt);

Control& ControlOf(std::span<std::byte> memory) {
  return *std::launder(reinterpret_cast<Control*>(memory.data()));
}
std::byte* HeadAt(std::span<std::byte> memory, std::uint64_t piece) {
  return memory.data() + sizeof(Control) + piece % RingShape::kSlots * sizeof(Head);
}
std::span<std::byte> PayloadAt(const RingShape& shape, std::span<std::byte> memory,
                               std::uint64_t piece) {
  const std::uint64_t stride = (shape.piece_size_bytes + kLine - 1) / kLine * kLine;
  return memory.subspan(kPayloadsAt + piece % RingShape::kSlots * stride, shape.piece_size_bytes);
}

// Rings for an end that has said it sleeps. Called after something was published for it. Publishing
// and sleeping are both written and read in one order that all agree on (seq_cst), so if one end
// publishes while the other falls asleep, at least one sees the other.
void Wake(std::atomic<std::uint32_t>& sleeps, const ForeignFd& wakeup) {
  if (sleeps.load() == 0 || sleeps.exchange(0) == 0) return;
  const std::uint64_t one = 1;
  (void)!::write(wakeup.get(), &one, sizeof(one));  // Fails only if it is rung already.
}

void SetSleeps(std::atomic<std::uint32_t>& sleeps, bool will) {
  if (will)
    sleeps.store(1);
  else
    sleeps.store(0, std::memory_order_relaxed);
}

}  // namespace

std::uint64_t RingShape::size_bytes() const {
  const std::uint64_t stride = (piece_size_bytes + kLine - 1) / kLine * kLine;
  const std::uint64_t used = kPayloadsAt + kSlots * stride;
  return (used + net::kSlabPageBytes - 1) / net::kSlabPageBytes * net::kSlabPageBytes;
}

RingShape RingShape::For(std::uint64_t chunk_size_bytes, std::uint32_t ranks, bool is_whole) {
  if (is_whole || ranks < 2) return {chunk_size_bytes};
  const std::uint64_t share = kRankSizeMax / (ranks - 1) / kSlots / kLine * kLine;
  return {std::min(chunk_size_bytes, std::clamp(share, kPieceSizeMin, kPieceSizeMax))};
}

// --- Sender --------------------------------------------------------------------------------------

Result<RingSender> RingSender::Make(RingShape shape) {
  return RingSender(shape, FFR_TRY(net::Slab::Make(shape.size_bytes())));
}

RingSender::RingSender(RingShape shape, net::Slab memory) noexcept
    : shape_(shape), memory_(std::move(memory)) {
  new (memory_.bytes().data()) Control{};
}

bool RingSender::HasRoom() const noexcept {
  const std::uint64_t read = ControlOf(memory_.bytes()).read.load();
  return written_ - read < RingShape::kSlots;
}

std::span<std::byte> RingSender::Room() const noexcept {
  return PayloadAt(shape_, memory_.bytes(), written_);
}

void RingSender::Publish(std::span<const std::byte> head,
                         std::uint64_t payload_size_bytes) noexcept {
  FFR_ASSERT(head.size() <= RingShape::kHeadSizeBytesMax);
  FFR_ASSERT(payload_size_bytes <= shape_.piece_size_bytes);
  Head own{
      static_cast<std::uint32_t>(payload_size_bytes), static_cast<std::uint32_t>(head.size()), {}};
  std::ranges::copy(head, own.bytes.begin());
  std::memcpy(HeadAt(memory_.bytes(), written_), &own, sizeof(own));
  Control& control = ControlOf(memory_.bytes());
  control.written.store(++written_);
  Wake(control.receiver_sleeps, wakeup_);
}

void RingSender::WillSleep(bool will) const noexcept {
  SetSleeps(ControlOf(memory_.bytes()).sender_sleeps, will);
}

// --- Receiver ------------------------------------------------------------------------------------

Result<RingReceiver> RingReceiver::Map(RingShape shape, ForeignFd memory, ForeignFd sender_wakeup) {
  if (!memory || !sender_wakeup)
    return Error{ErrorCode::kInvalidArgument, "came without its memory or wake-up"};
  auto mapped = FFR_TRY(net::RemoteSlab::Map(std::move(memory), shape.size_bytes()));
  const auto bytes = FFR_TRY(mapped->At(0, shape.size_bytes()));
  return RingReceiver(shape, std::move(mapped), bytes, std::move(sender_wakeup));
}

RingReceiver::RingReceiver(RingShape shape, std::shared_ptr<const net::RemoteSlab> memory,
                           std::span<std::byte> bytes, ForeignFd wakeup) noexcept
    : shape_(shape), memory_(std::move(memory)), bytes_(bytes), wakeup_(std::move(wakeup)) {}

bool RingReceiver::HasPiece() const noexcept { return ControlOf(bytes_).written.load() != read_; }

Result<RingReceiver::Piece> RingReceiver::Front() const {
  Head head;
  // Copied before it is looked at: the other end could change it.
  std::memcpy(&head, HeadAt(bytes_, read_), sizeof(head));
  if (head.head_size_bytes > RingShape::kHeadSizeBytesMax ||
      head.payload_size_bytes > shape_.piece_size_bytes)
    return Error{ErrorCode::kCorruption, "a piece in shared memory has sizes that cannot be"};
  return Piece{head.bytes, head.head_size_bytes,
               PayloadAt(shape_, bytes_, read_).first(head.payload_size_bytes)};
}

void RingReceiver::Pop() noexcept {
  Control& control = ControlOf(bytes_);
  control.read.store(++read_);
  Wake(control.sender_sleeps, wakeup_);
}

void RingReceiver::WillSleep(bool will) const noexcept {
  SetSleeps(ControlOf(bytes_).receiver_sleeps, will);
}

}  // namespace ffrecord::client
