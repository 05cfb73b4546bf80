#include "client/collective/peer_streams.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/net/protocol/frame.h"

namespace ffrecord::client {
namespace {

using namespace exchange;
using namespace std::chrono_literals;

// At most so many chunks wait to be sent on one stream, so that a last word is never far behind.
constexpr std::uint64_t kQueuedChunksMax = 2;
// Queued on a link, half sent, just added, and what is left over at the end of the buffer.
constexpr std::uint64_t kStagedChunks = 5;
// Over RDMA, larger pieces are written into the peer's memory, each at a cache line.
constexpr std::uint64_t kWrittenMin = 4 << 10;
constexpr std::uint64_t kPlaceAlignment = 64;
// A stream whose other end says nothing for so long, not even its kernel, is lost; so is a peer
// with one stream alone after the longer time.
constexpr std::chrono::milliseconds kSilenceMax{5'000};
constexpr std::chrono::milliseconds kOnlySilenceMax{60'000};
// Pieces of a stream that the peer has not taken.
constexpr std::size_t kUntakenPiecesMax = 256;
// The last time that a piece took counts for so much of what is expected of a stream.
constexpr double kNewest = 0.25;
// A stream that gets nothing is tried after so many times what it would take: 5 % at most is lost.
constexpr double kTryAgain = 20;

constexpr std::uint64_t kWaitingFrameSize = net::FrameHeader::kEncodedSizeBytes + 8;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

std::uint64_t FrameSize(std::uint64_t payload_size_bytes, bool is_placed) {
  return net::FrameHeader::kEncodedSizeBytes + CollectiveData::kEncodedSizeBytes +
         (is_placed ? sizeof(CollectivePlaced::offset_bytes) + sizeof(CollectivePlaced::size_bytes)
                    : 0) +
         payload_size_bytes;
}

}  // namespace

PeerStreams::PeerStreams(std::vector<Channel> channels, std::size_t index,
                         const ExchangeGroup& group, const PieceWork& work,
                         ExchangeCounters& counters)
    : index_(index), group_(group), work_(work), counters_(counters) {
  for (Channel& channel : channels) streams_.emplace_back().channel = std::move(channel);
  hears_taken_ = streams_.size() > 1 || streams_.front().channel.ring_there_size_bytes;
}

std::optional<std::size_t> PeerStreams::LostStream(std::uint16_t number) const {
  for (std::size_t i = 0; i < streams_.size(); ++i)
    if (streams_[i].gone && streams_[i].channel.stream == number) return i;
  return std::nullopt;
}

bool PeerStreams::IsSending() const {
  return std::ranges::any_of(streams_, [](const Stream& stream) {
    return stream.queued_bytes > 0 || !stream.in_flight.empty();
  });
}

bool PeerStreams::AwaitsTaken() const {
  const auto has_untaken = [](const Stream& stream) { return !stream.in_flight.empty(); };
  return hears_taken_ && (!again_.empty() || std::ranges::any_of(streams_, has_untaken));
}

// --- Sending -------------------------------------------------------------------------------------

bool PeerStreams::HasRoom(const Stream& stream) const {
  if (is_shared()) return room_.has_value();
  const std::uint64_t window_bytes = kQueuedChunksMax * group_.chunk_size_bytes;
  return stream.queued_bytes < window_bytes && stream.untaken_bytes < window_bytes &&
         stream.in_flight.size() < kUntakenPiecesMax;
}

std::optional<std::size_t> PeerStreams::Choose(Time now, std::uint64_t size_bytes,
                                               std::uint64_t rest_bytes) const {
  if (!hears_taken_)
    return HasRoom(streams_.front()) ? std::optional<std::size_t>(0) : std::nullopt;
  const std::uint32_t used = counters_.streams_used.load(std::memory_order_relaxed);
  std::optional<std::size_t> chosen;
  double chosen_s = std::numeric_limits<double>::max();
  double least_s = chosen_s;  // That any stream needs, with room or without.
  double rate = 0;            // Bytes per second of all together.
  double untaken_bytes = 0;
  bool all_known = true;
  std::uint32_t live = 0;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    const Stream& stream = streams_[i];
    if (stream.gone || (used != 0 && live == used)) continue;
    ++live;
    const double bytes = static_cast<double>(stream.untaken_bytes + size_bytes);
    const double needs_s = bytes * stream.byte_s;
    // One that stands is not believed to be fast.
    const double stands_s =
        stream.in_flight.empty() ? 0 : Seconds(now - stream.in_flight.front().given_at);
    least_s = std::min(least_s, std::max(needs_s, stands_s));
    untaken_bytes += static_cast<double>(stream.untaken_bytes);
    all_known = all_known && stream.byte_s > 0;
    if (stream.byte_s > 0) rate += 1 / stream.byte_s;
    if (needs_s >= chosen_s || !HasRoom(stream)) continue;
    chosen = i;
    chosen_s = needs_s;
  }
  if (!chosen || !all_known || chosen_s <= least_s) return chosen;
  const Stream& stream = streams_[*chosen];
  // The others are through with all by then.
  const double others_bytes =
      static_cast<double>(rest_bytes) + untaken_bytes - static_cast<double>(stream.untaken_bytes);
  if (chosen_s * (rate - 1 / stream.byte_s) <= others_bytes) return chosen;
  const bool is_tried =
      stream.in_flight.empty() && Seconds(now - stream.taken_at) >= kTryAgain * chosen_s;
  return is_tried ? chosen : std::nullopt;
}

Result<void> PeerStreams::Send(Step& step, std::size_t stream, ActiveOperation& active,
                               std::size_t send, Range piece, CollectiveData data) {
  step.moved = true;
  if (is_shared()) {
    Share(step, active.operation, piece, data);
    return {};
  }
  const Transfer& transfer = active.schedule.sends[send];
  std::span<const std::byte> bytes =
      FFR_TRY(WireBytes(streams_[stream], active.operation, piece, data.shift));
  const std::uint64_t piece_max =
      active.operation.chunk_size_bytes / group_.WireSize(active.operation);
  const auto check = active.KnownCheck(transfer, (piece.begin - transfer.range.begin) / piece_max);
  data.payload_check = check ? *check : Xxh3(bytes);
  InFlight flying{.active = &active,
                  .step = transfer.step,
                  .range = piece,
                  .size_bytes = bytes.size(),
                  .data = data};
  if (hears_taken_ && bytes.size() <= kCopiedMax) {
    flying.active = nullptr;
    flying.copy.assign(bytes.begin(), bytes.end());
    bytes = flying.copy;
  } else {
    ++active.pieces_in_flight;
  }
  Give(step, stream, std::move(flying), bytes);
  return {};
}

// Memory has checks of its own: no hash.
void PeerStreams::Share(Step& step, const Operation& operation, Range piece,
                        const CollectiveData& data) {
  const std::uint64_t size_bytes = piece.size() * group_.WireSize(operation);
  work_.Encode(operation, data.shift, piece, room_->data());
  room_.reset();
  step.actions.emplace_back(Publish{index_, data, size_bytes});
  counters_.bytes_shared.fetch_add(size_bytes, std::memory_order_relaxed);
}

void PeerStreams::Give(Step& step, std::size_t number, InFlight flying,
                       std::span<const std::byte> bytes) {
  Stream& stream = streams_[number];
  flying.place = PlaceFor(stream, bytes.size());
  if (flying.place)
    stream.place_next =
        (flying.place->end + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  const std::uint64_t size_bytes = FrameSize(bytes.size(), flying.place.has_value());
  stream.given_bytes += size_bytes;
  stream.queued_bytes += size_bytes;
  flying.mark = stream.given_bytes;
  flying.number = stream.pieces_given++;
  flying.given_at = step.now;
  if (hears_taken_) stream.untaken_bytes += bytes.size();
  step.actions.emplace_back(SendPiece{index_, number, flying.data, bytes, flying.place});
  stream.in_flight.push_back(std::move(flying));
  counters_.bytes_sent.fetch_add(size_bytes, std::memory_order_relaxed);
}

// Where the peer has room for a piece to be written, if it has.
std::optional<Range> PeerStreams::PlaceFor(const Stream& stream, std::uint64_t size_bytes) {
  const auto& ring_size_bytes = stream.channel.ring_there_size_bytes;
  if (!ring_size_bytes || size_bytes <= kWrittenMin) return std::nullopt;
  for (const std::uint64_t begin : {stream.place_next, std::uint64_t{0}}) {
    const Range place{begin, begin + size_bytes};
    const auto is_taken = [&](const InFlight& flying) {
      return flying.place && flying.place->Touches(place);
    };
    if (place.end <= *ring_size_bytes && std::ranges::none_of(stream.in_flight, is_taken))
      return place;
  }
  return std::nullopt;
}

// Where the piece is sent from.
Result<std::span<const std::byte>> PeerStreams::WireBytes(Stream& stream,
                                                          const Operation& operation, Range piece,
                                                          std::int32_t shift) const {
  const std::uint64_t size_bytes = piece.size() * group_.WireSize(operation);
  if (!group_.IsRounded(operation))
    return std::span<const std::byte>(operation.At(piece.begin), size_bytes);
  if (!stream.staging)
    stream.staging = FFR_TRY(BufferPool::Process().Take(kStagedChunks * group_.chunk_size_bytes));
  if (stream.staging_next + size_bytes > stream.staging->size()) stream.staging_next = 0;
  std::byte* const place = stream.staging->data() + stream.staging_next;
  stream.staging_next += size_bytes;
  work_.Encode(operation, shift, piece, place);
  return std::span<const std::byte>(place, size_bytes);
}

void PeerStreams::SendWaiting(Step& step, const GroupWaiting& waiting) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    if (stream.gone || stream.queued_bytes > 0) continue;
    stream.given_bytes += kWaitingFrameSize;
    stream.queued_bytes += kWaitingFrameSize;
    step.actions.emplace_back(exchange::SendWaiting{index_, i, waiting});
  }
}

Result<void> PeerStreams::SendAgain(Step& step) {
  TellLost(step);
  while (!again_.empty()) {
    std::optional<std::size_t> least;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      const Stream& stream = streams_[i];
      // However much is not taken: what is sent here may be what the peer waits for.
      const bool has_room =
          !stream.gone && stream.queued_bytes < kQueuedChunksMax * group_.chunk_size_bytes;
      if (has_room && (!least || stream.untaken_bytes < streams_[*least].untaken_bytes)) least = i;
    }
    if (!least) break;
    InFlight flying = std::move(again_.front());
    again_.pop_front();
    std::span<const std::byte> bytes = flying.copy;
    // Rounding rounded numbers again does not change them, so the peer gets the same bytes.
    if (flying.active != nullptr)
      bytes = FFR_TRY(
          WireBytes(streams_[*least], flying.active->operation, flying.range, flying.data.shift));
    Give(step, *least, std::move(flying), bytes);
    step.moved = true;
  }
  return {};
}

bool PeerStreams::Borrows(const ActiveOperation& active, std::uint32_t until_step,
                          const Range& piece) const {
  return std::ranges::any_of(streams_, [&](const Stream& stream) {
    return std::ranges::any_of(stream.in_flight, [&](const InFlight& flying) {
      return flying.mark > stream.left_bytes() && flying.Borrows(active, until_step, piece);
    });
  });
}

void PeerStreams::KeepSent(ActiveOperation& active, std::uint32_t until_step, const Range& piece) {
  if (!hears_taken_) return;
  const auto keep = [&](InFlight& flying) {
    if (!flying.Borrows(active, until_step, piece)) return;
    flying.copy.resize(flying.size_bytes);
    work_.Encode(active.operation, flying.data.shift, flying.range, flying.copy.data());
    flying.active = nullptr;
    --active.pieces_in_flight;
  };
  std::ranges::for_each(again_, keep);
  for (Stream& stream : streams_) std::ranges::for_each(stream.in_flight, keep);
}

// --- News ----------------------------------------------------------------------------------------

void PeerStreams::NoteLeft(Step& step, const Left& left) {
  Stream& stream = streams_[left.stream];
  step.moved = left.queued_bytes < stream.queued_bytes;
  stream.queued_bytes = left.queued_bytes;
  if (hears_taken_) return;
  while (!stream.in_flight.empty() && stream.in_flight.front().mark <= stream.left_bytes()) {
    --stream.in_flight.front().active->pieces_in_flight;
    stream.in_flight.pop_front();
  }
}

Result<void> PeerStreams::NoteTaken(Step& step, const Taken& event) {
  Stream& stream = streams_[event.stream];
  const CollectiveTaken& taken = event.taken;
  stream.queued_bytes = event.queued_bytes;
  step.moved = true;
  const auto first = std::ranges::find_if(
      stream.in_flight, [&](const InFlight& flying) { return flying.number == taken.first; });
  if (taken.pieces == 0 || taken.pieces > stream.in_flight.end() - first ||
      (first + taken.pieces - 1)->number - taken.first != taken.pieces - 1 ||
      (first + taken.pieces - 1)->mark > stream.left_bytes())
    return Error{ErrorCode::kCorruption, "rank " + std::to_string(rank()) +
                                             ": took pieces that it was not sent, or took before"};
  const auto began = std::max(first->given_at, stream.taken_at);
  std::uint64_t bytes = 0;
  for (auto flying = first; flying != first + taken.pieces; ++flying) {
    if (flying->active != nullptr) --flying->active->pieces_in_flight;
    bytes += flying->size_bytes;
  }
  stream.in_flight.erase(first, first + taken.pieces);
  stream.untaken_bytes -= bytes;
  stream.taken_at = step.now;
  const auto took = step.now - began - std::chrono::microseconds(taken.waited_us);
  if (bytes <= kCopiedMax || took <= 0ns) return {};
  const double byte_s = Seconds(took) / static_cast<double>(bytes);
  stream.byte_s = stream.byte_s == 0 ? byte_s : (1 - kNewest) * stream.byte_s + kNewest * byte_s;
  return {};
}

Result<void> PeerStreams::Lose(Step& step, const StreamLost& lost, bool owes) {
  Stream& stream = streams_[lost.stream];
  if (stream.gone) return {};
  stream.queued_bytes = lost.queued_bytes;
  step.moved = true;
  if (hears_taken_)
    return LoseStream(step, lost.stream, lost.why ? lost.why->message : "it was closed", owes);
  const Error gone = Gone(stream.channel, lost.why ? &*lost.why : nullptr);
  if (!stream.in_flight.empty() || owes) return gone;
  stream.gone = gone_ = gone;  // It may have ended in good order: nothing is owed to it.
  return {};
}

Result<void> PeerStreams::LoseStream(Step& step, std::size_t number, const std::string& why,
                                     bool owes) {
  Stream& stream = streams_[number];
  const Error reason{ErrorCode::kUnavailable, why};
  stream.gone = Gone(stream.channel, &reason);
  stream.why_gone = why;
  has_untold_ = true;
  step.actions.emplace_back(CloseStream{index_, number});
  for (InFlight& flying : stream.in_flight) {
    flying.has_left = flying.has_left || flying.mark <= stream.left_bytes();
    again_.push_back(std::move(flying));
  }
  stream.in_flight.clear();
  stream.untaken_bytes = 0;
  std::ranges::stable_sort(again_, {}, [](const InFlight& flying) {
    return std::tuple(flying.data.sequence, flying.data.step, flying.data.first);
  });
  const auto is_gone = [](const Stream& each) { return each.gone.has_value(); };
  if (!std::ranges::all_of(streams_, is_gone)) return {};

  // The peer may have received every piece that was sent once, and have ended in good order.
  const bool is_owed = owes || !std::ranges::all_of(again_, &InFlight::has_left);
  for (const InFlight& flying : again_)
    if (flying.active != nullptr) --flying.active->pieces_in_flight;
  again_.clear();
  gone_ = stream.gone;
  if (is_owed) return *gone_;
  return {};
}

void PeerStreams::TellLost(Step& step) {
  has_untold_ = false;
  for (Stream& stream : streams_) {
    if (!stream.gone || stream.is_told) continue;
    stream.is_told = true;
    counters_.streams_lost.fetch_add(1, std::memory_order_relaxed);
    step.actions.emplace_back(Tell{NameOf(stream) + " at " + stream.channel.address +
                                   " was lost (" + stream.why_gone +
                                   "); the others carry its share"});
    step.actions.emplace_back(AskStream{rank(), stream.channel.stream});
  }
}

void PeerStreams::Replace(Step& step, const StreamMade& made) {
  Channel channel = streams_[made.stream].channel;
  channel.address = made.address;
  // Its pieces under way moved to `again` when it was lost.
  streams_[made.stream] = Stream{.channel = std::move(channel)};
  step.actions.emplace_back(Tell{NameOf(streams_[made.stream]) + " was replaced"});
}

std::string PeerStreams::NameOf(const Stream& stream) const {
  return "stream " + std::to_string(stream.channel.stream) + " of " +
         std::to_string(streams_.size()) + " from rank " + std::to_string(group_.rank) +
         " to rank " + std::to_string(rank());
}

// --- Silence -------------------------------------------------------------------------------------

std::optional<std::chrono::milliseconds> PeerStreams::SilenceMax(
    Time now, std::size_t number, const ActiveOperation* oldest) const {
  const Stream& stream = streams_[number];
  if (stream.gone) return std::nullopt;
  if (!hears_taken_) return oldest != nullptr ? std::optional(kOnlySilenceMax) : std::nullopt;
  if (stream.in_flight.empty()) return std::nullopt;
  const auto limit = std::min<std::chrono::milliseconds>(group_.timeout / 4, kSilenceMax);
  const auto live = std::ranges::count_if(streams_, [](const Stream& each) { return !each.gone; });
  // While nobody here waits the last one may come back: an outage costs an idle group nothing.
  if (oldest == nullptr && live == 1) return std::nullopt;
  // The kernel tries again late after an outage: who waits from now on grants the last as much.
  auto since = stream.in_flight.front().given_at;
  if (live == 1) since = std::max(since, oldest->began);
  return now - since < limit ? std::nullopt : std::optional(limit);
}

Result<void> PeerStreams::GiveUp(Step& step, std::size_t stream,
                                 std::chrono::milliseconds silence_max, bool owes) {
  if (!hears_taken_) {
    const Error why{ErrorCode::kUnavailable, "nothing that was sent to it is acknowledged"};
    return Gone(streams_[stream].channel, &why);
  }
  return LoseStream(
      step, stream,
      "nothing that it sent was acknowledged for " + std::to_string(silence_max.count()) + " ms",
      owes);
}

}  // namespace ffrecord::client
