#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "client/collective/exchange.h"
#include "client/collective/wire.h"

namespace ffrecord::client {
namespace {

using net::Clock;
using net::Endpoint;
using net::FrameType;
using namespace std::chrono_literals;

// So many unanswered seconds until the kernel gives up an idle connection; we do so before while
// something is under way on it.
constexpr int kProbes = 10;
// Small pieces are not worth a word each.
constexpr std::uint32_t kUntoldPiecesMax = 32;
// The last time that a piece took counts for so much of what is expected of a stream.
constexpr double kNewest = 0.25;
// A stream that gets nothing is tried after so many times what it would take: 5 % at most is lost.
constexpr double kTryAgain = 20;

// A stream on which a piece stands for so many ticks while it has come on another is given up.
constexpr int kStandingTicks = 8;

std::uint32_t WaitedUs(std::chrono::microseconds waited) {
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(waited.count(), 0, std::numeric_limits<std::uint32_t>::max()));
}

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Whether the other machine has been silent for so long though it had something to acknowledge:
// data, or probes of the kernel, of which one may be under way.
bool IsSilent(int fd, std::chrono::milliseconds limit) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         (info.tcpi_unacked > 0 || info.tcpi_probes > 1) &&
         std::chrono::milliseconds(info.tcpi_last_ack_recv) > limit;
}

}  // namespace

// With what the other machine has no room for yet. Over RDMA there is no such thing.
bool Exchange::HasUnacknowledged(int fd) {
  int size_bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &size_bytes) == 0 && size_bytes > 0;
}

void ExchangeCounters::Tell(std::string text) {
  const auto now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  const std::lock_guard lock(mutex_);
  if (events_.size() == kEventsMax) events_.pop_front();
  events_.push_back({now, std::move(text)});
}

std::vector<CollectiveEngine::Event> ExchangeCounters::events() const {
  const std::lock_guard lock(mutex_);
  return {events_.begin(), events_.end()};
}

// All that was sent may be acknowledged and only the word that it was taken be lost: the kernel
// asks once a second whether the other one is there.
void Exchange::ProbeWhenIdle(const Link& link) {
  for (const auto& [option, value] :
       {std::pair(TCP_KEEPIDLE, 1), std::pair(TCP_KEEPINTVL, 1), std::pair(TCP_KEEPCNT, kProbes)})
    (void)::setsockopt(link.endpoint->fd(), IPPROTO_TCP, option, &value, sizeof(value));
}

// --- Sending -------------------------------------------------------------------------------------

// The stream that takes the next piece of a transfer of which so much is left beyond; null: none
// should now.
Exchange::Stream* Exchange::ChooseStream(Outgoing& out, std::uint64_t size_bytes,
                                         std::uint64_t rest_bytes) {
  if (!out.hears_taken()) return HasRoom(out, out.streams.front()) ? &out.streams.front() : nullptr;
  const auto now = Clock::now();
  const std::uint32_t used = counters_->streams_used.load(std::memory_order_relaxed);
  Stream* chosen = nullptr;
  double chosen_s = std::numeric_limits<double>::max();
  double least_s = chosen_s;  // That any stream needs, with room or without.
  double rate = 0;            // Bytes per second of all together.
  double untaken_bytes = 0;
  bool all_known = true;
  std::uint32_t live = 0;
  for (Stream& stream : out.streams) {
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
    if (needs_s >= chosen_s || !HasRoom(out, stream)) continue;
    chosen = &stream;
    chosen_s = needs_s;
  }
  if (chosen == nullptr || !all_known || chosen_s <= least_s) return chosen;
  // The others are through with all by then.
  const double others_bytes =
      static_cast<double>(rest_bytes) + untaken_bytes - static_cast<double>(chosen->untaken_bytes);
  if (chosen_s * (rate - 1 / chosen->byte_s) <= others_bytes) return chosen;
  const bool is_tried =
      chosen->in_flight.empty() && Seconds(now - chosen->taken_at) >= kTryAgain * chosen_s;
  return is_tried ? chosen : nullptr;
}

// What the peer has not taken of streams that are gone, before anything new.
Result<bool> Exchange::SendAgain(Outgoing& out) {
  TellLost(out);
  bool moved = false;
  while (!out.again.empty()) {
    Stream* least = nullptr;
    for (Stream& stream : out.streams) {
      // However much is not taken: what is sent here may be what the peer waits for.
      const bool has_room = !stream.gone && stream.link.endpoint->bytes_queued() <
                                                kQueuedChunksMax * group_.chunk_size_bytes;
      if (has_room && (least == nullptr || stream.untaken_bytes < least->untaken_bytes))
        least = &stream;
    }
    if (least == nullptr) break;
    InFlight flying = std::move(out.again.front());
    out.again.pop_front();
    std::span<const std::byte> bytes = flying.copy;
    // What was rounded is rounded to the same again.
    if (flying.active != nullptr)
      bytes = FFR_TRY(WireBytes(*least, flying.active->operation, flying.range, flying.data.shift));
    FFR_TRY(Give(out, *least, std::move(flying), bytes));
    moved = true;
  }
  return moved;
}

// Copies what was sent from there and is not taken, for now it is overwritten. Two that exchange
// all they have could else wait for each other.
void Exchange::KeepSent(Active& active, std::uint32_t step, const Range& piece) {
  if (active.pieces_in_flight == 0) return;
  const auto keep = [&](InFlight& flying) {
    if (!flying.Borrows(active, step, piece)) return;
    flying.copy.resize(flying.size_bytes);
    std::byte* const bytes = At(active.operation, flying.range.begin);
    if (IsRounded(active.operation))
      EncodeWire(group_.wire, flying.data.shift, flying.range.size(), bytes, flying.copy.data());
    else
      std::memcpy(flying.copy.data(), bytes, flying.size_bytes);
    flying.active = nullptr;
    --active.pieces_in_flight;
  };
  for (Outgoing& out : to_) {
    if (!out.hears_taken()) continue;
    std::ranges::for_each(out.again, keep);
    for (Stream& stream : out.streams) std::ranges::for_each(stream.in_flight, keep);
  }
}

// The peer has said what it has taken.
Result<void> Exchange::TakeTaken(Stream& stream) {
  const auto decoded = CollectiveTaken::Decode(stream.link.endpoint->body());
  if (!decoded) return OfRank(stream.link.rank, decoded.error());
  const CollectiveTaken& taken = decoded.value();
  const std::uint64_t left = stream.bytes_given - stream.link.endpoint->bytes_queued();
  const auto now = Clock::now();
  const auto first = std::ranges::find_if(
      stream.in_flight, [&](const InFlight& flying) { return flying.number == taken.first; });
  if (taken.pieces == 0 || taken.pieces > stream.in_flight.end() - first ||
      (first + taken.pieces - 1)->number - taken.first != taken.pieces - 1 ||
      (first + taken.pieces - 1)->mark > left)
    return OfRank(stream.link.rank,
                  {ErrorCode::kCorruption, "took pieces that it was not sent, or took before"});
  const auto began = std::max(first->given_at, stream.taken_at);
  std::uint64_t bytes = 0;
  for (auto flying = first; flying != first + taken.pieces; ++flying) {
    if (flying->active != nullptr) --flying->active->pieces_in_flight;
    bytes += flying->size_bytes;
  }
  stream.in_flight.erase(first, first + taken.pieces);
  stream.untaken_bytes -= bytes;
  stream.taken_at = now;
  const auto took = now - began - std::chrono::microseconds(taken.waited_us);
  if (bytes <= kCopiedMax || took <= 0ns) return {};
  const double byte_s = Seconds(took) / static_cast<double>(bytes);
  stream.byte_s = stream.byte_s == 0 ? byte_s : (1 - kNewest) * stream.byte_s + kNewest * byte_s;
  return {};
}

// --- Streams that are lost -----------------------------------------------------------------------

// Fails if it was the last one, and something is still owed to the peer.
Result<void> Exchange::LoseStream(Outgoing& out, Stream& stream, const std::string& why) {
  if (stream.gone) return {};
  const Error reason{ErrorCode::kUnavailable, why};
  stream.gone = Gone(stream.link, &reason);
  stream.why_gone = why;
  stream.link.endpoint->Close();
  const std::uint64_t left = stream.bytes_given - stream.link.endpoint->bytes_queued();
  for (InFlight& flying : stream.in_flight) {
    flying.has_left = flying.has_left || flying.mark <= left;
    out.again.push_back(std::move(flying));
  }
  stream.in_flight.clear();
  stream.untaken_bytes = 0;
  std::ranges::stable_sort(out.again, {}, [](const InFlight& flying) {
    return std::tuple(flying.data.sequence, flying.data.step, flying.data.first);
  });
  const auto is_gone = [](const Stream& each) { return each.gone.has_value(); };
  if (!std::ranges::all_of(out.streams, is_gone)) return {};

  // What has left once may have arrived: it may have ended in good order.
  const bool is_owed =
      NextSend(out).active != nullptr || !std::ranges::all_of(out.again, &InFlight::has_left);
  for (const InFlight& flying : out.again)
    if (flying.active != nullptr) --flying.active->pieces_in_flight;
  out.again.clear();
  out.gone = stream.gone;
  if (is_owed) return *out.gone;
  return {};
}

// Not before the rank is needed again: all streams of one that ends are lost, one after the other.
void Exchange::TellLost(Outgoing& out) {
  for (Stream& stream : out.streams) {
    if (!stream.gone || stream.is_told) continue;
    stream.is_told = true;
    counters_->streams_lost.fetch_add(1, std::memory_order_relaxed);
    counters_->Tell("stream " + std::to_string(stream.link.stream) + " of " +
                    std::to_string(out.streams.size()) + " from rank " +
                    std::to_string(group_.rank) + " to rank " + std::to_string(out.rank()) +
                    " at " + stream.link.endpoint->peer() + " was lost (" + stream.why_gone +
                    "); the others carry its share");
    if (replacements_) replacements_->Ask(out.rank(), stream.link.stream);
  }
}

void Exchange::TakeReplacements() {
  if (!replacements_) return;
  for (Link& link : replacements_->TakeMade()) {
    const auto out = std::ranges::find(to_, link.rank, &Outgoing::rank);
    if (out != to_.end() && !out->gone) Replace(*out, std::move(link));
  }
  for (Link& link : replacements_->TakeCome()) {
    const auto in = std::ranges::find_if(from_, [&](const Incoming& each) {
      return each.link.rank == link.rank && each.link.stream == link.stream && each.tells_taken;
    });
    if (in != from_.end()) Replace(*in, std::move(link));
  }
}

void Exchange::Replace(Outgoing& out, Link link) {
  const auto lost = std::ranges::find_if(out.streams, [&](const Stream& stream) {
    return stream.gone && stream.link.stream == link.stream;
  });
  if (lost == out.streams.end()) return;
  counters_->Tell("stream " + std::to_string(link.stream) + " of " +
                  std::to_string(out.streams.size()) + " from rank " + std::to_string(group_.rank) +
                  " to rank " + std::to_string(out.rank()) + " was replaced");
  // What it had under way was handed over to `again` when it was lost.
  *lost = Stream{};
  lost->link = std::move(link);
  ProbeWhenIdle(lost->link);
}

void Exchange::Replace(Incoming& in, Link link) {
  // What came on the old one and has no place yet is sent again, for nobody was told that it was
  // taken.
  const auto index = static_cast<std::size_t>(&in - from_.data());
  std::erase_if(set_aside_, [&](const SetAside& piece) { return piece.from == index; });
  in = Incoming{};
  in.link = std::move(link);
  in.tells_taken = true;
}

// Whether a stream may hold something that its peer waits for, though our operations have ended:
// of a small piece there is a copy.
bool Exchange::AwaitsTaken() const {
  return std::ranges::any_of(to_, [](const Outgoing& out) {
    const auto has_untaken = [](const Stream& stream) { return !stream.in_flight.empty(); };
    return out.hears_taken() &&
           (!out.again.empty() || std::ranges::any_of(out.streams, has_untaken));
  });
}

// Gives up streams whose other end is silent.
Result<void> Exchange::CheckStreams(Clock::time_point now) {
  const auto limit = std::min<std::chrono::milliseconds>(group_.timeout / 4, kSilenceMax);
  for (Outgoing& out : to_) {
    if (!out.hears_taken()) {
      const Link& link = out.link();
      if (out.gone || active_.empty() || !IsSilent(link.endpoint->fd(), kOnlySilenceMax)) continue;
      const Error why{ErrorCode::kUnavailable, "nothing that was sent to it is acknowledged"};
      return Gone(link, &why);
    }
    auto live = std::ranges::count_if(out.streams, [](const Stream& each) { return !each.gone; });
    for (Stream& stream : out.streams) {
      // While nobody here waits the last one may come back: an outage costs an idle group nothing.
      if (stream.gone || (active_.empty() && live == 1)) continue;
      if (stream.in_flight.empty()) continue;
      // The kernel tries again late after an outage: who waits from now on grants the last as much.
      auto since = stream.in_flight.front().given_at;
      if (live == 1) since = std::max(since, active_.front().began);
      if (now - since < limit || !IsSilent(stream.link.endpoint->fd(), limit)) continue;
      FFR_TRY(LoseStream(
          out, stream,
          "nothing that it sent was acknowledged for " + std::to_string(limit.count()) + " ms"));
      --live;
    }
  }
  return {};
}

// --- Receiving -----------------------------------------------------------------------------------

// Whether nothing can come from that rank any more, nor has come and waits for its place.
bool Exchange::IsGone(const Incoming& in) const {
  const auto is_its = [&](const SetAside& piece) {
    return from_[piece.from].link.rank == in.link.rank;
  };
  return std::ranges::none_of(set_aside_, is_its) &&
         std::ranges::all_of(from_, [&](const Incoming& each) {
           return each.link.rank != in.link.rank || each.gone.has_value();
         });
}

// Whether a piece of which the head has come on `in` at that time may be placed. If it is on its
// way on another stream too, one of the two is lost: should it be that one, it will break soon, or
// else not get on.
bool Exchange::TakesOver(const Incoming& in, Clock::time_point come_at, const Target& target) {
  for (Incoming& other : from_) {
    if (&other == &in || other.link.rank != in.link.rank || other.landing.active != target.active ||
        other.landing.index != target.index || other.landing.piece != target.piece)
      continue;
    if (Clock::now() - come_at < kStandingTicks * tick_) return false;
    other.link.endpoint->Close();
    other.gone = Gone(other.link, nullptr);
    other.landing = {};
  }
  return true;
}

// Piece `number` of that stream is in its place.
Result<void> Exchange::TellTaken(Incoming& in, std::uint64_t number, std::uint64_t size_bytes) {
  CollectiveTaken& untold = in.untold;
  if (untold.pieces > 0 && untold.first + untold.pieces != number) FFR_TRY(SendTaken(in));
  if (untold.pieces == 0) untold.first = number;
  ++untold.pieces;
  untold.waited_us = WaitedUs(in.waited);
  in.untold_bytes += size_bytes;
  // The sender waits for word of large ones, and has room for two chunks.
  if (size_bytes > kCopiedMax || untold.pieces >= kUntoldPiecesMax ||
      in.untold_bytes >= group_.chunk_size_bytes / 2)
    return SendTaken(in);
  return {};
}

// Words that nothing followed go after a tick, so that nobody takes the pieces for lost.
Result<void> Exchange::TellUntold(Clock::time_point now) {
  for (Incoming& in : from_) {
    const auto held = now - in.come_at;
    if (in.untold.pieces == 0 || held < tick_) continue;
    // That was not the stream's slowness.
    in.untold.waited_us = WaitedUs(std::chrono::duration_cast<std::chrono::microseconds>(held));
    FFR_TRY(SendTaken(in));
  }
  return {};
}

Result<void> Exchange::SendTaken(Incoming& in) {
  const auto body = std::exchange(in.untold, {}).Encode();
  in.untold_bytes = 0;
  if (in.gone) return {};
  // If it is lost, that will show when it is read from.
  if (!in.link.endpoint->Send({.type = FrameType::kCollectiveTaken}, body, {})) return {};
  in.is_ready = true;
  // It is not read from before there is a place for what it has brought; that sends, though.
  if (in.is_held) (void)in.link.endpoint->Poll();
  return {};
}

// What `in` holds has waited so long that what it waits for may stand behind it: makes room.
bool Exchange::SetItAside(Incoming& in) {
  if (Clock::now() - in.come_at < tick_) return false;
  in.is_held = false;
  in.is_ready = true;
  if (in.is_placed) {
    in.kept.assign(in.shared.begin(), in.shared.end());
    KeepAside(in);
    return true;
  }
  const std::uint64_t size_bytes = in.link.endpoint->header().payload_size_bytes;
  in.aside = Incoming::Aside::kKeep;
  in.kept.resize(size_bytes);
  if (size_bytes == 0) {
    KeepAside(in);
    return true;
  }
  const std::span<std::byte> places[] = {in.kept};
  return bool(in.link.endpoint->ReceivePayload(places));
}

void Exchange::KeepAside(Incoming& in) {
  in.aside = Incoming::Aside::kNo;
  set_aside_.push_back({static_cast<std::size_t>(&in - from_.data()), in.pieces_come - 1,
                        in.come_at, in.data, std::exchange(in.kept, {})});
}

Result<bool> Exchange::PlaceSetAside() {
  bool moved = false;
  for (auto piece = set_aside_.begin(); piece != set_aside_.end();) {
    Incoming& in = from_[piece->from];
    Target target;
    const Due due = FFR_TRY(FindPlace(in, piece->data, piece->bytes.size(), target));
    if (due == Due::kLater || (due == Due::kNow && !TakesOver(in, piece->come_at, target))) {
      ++piece;
      continue;
    }
    if (due == Due::kNow) {
      KeepSent(*target.active, piece->data.step, target.piece);
      FFR_TRY(CheckPiece(in, target, piece->data, piece->bytes));
      Take(target, piece->data, piece->bytes);
    }
    FFR_TRY(TellTaken(in, piece->number, piece->bytes.size()));
    piece = set_aside_.erase(piece);
    moved = true;
  }
  return moved;
}

}  // namespace ffrecord::client
