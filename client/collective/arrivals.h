#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "client/collective/blame.h"
#include "client/collective/exchange_steps.h"
#include "client/collective/operations.h"
#include "client/collective/peer_streams.h"
#include "client/collective/piece_work.h"
#include "libffrecord/base/buffer_pool.h"

namespace ffrecord::client {

// The pieces that come on all links: where each belongs and when that is free, what waits, what is
// set aside, and which acknowledgements the senders get. Part of ExchangeMachine.
class Arrivals {
 public:
  using Time = exchange::Time;
  using Step = exchange::Step;

  // Borrows all but `links`.
  Arrivals(std::vector<exchange::Channel> links, const ExchangeGroup& group, const PieceWork& work,
           ExchangeCounters& counters, Operations& operations, std::deque<PeerStreams>& peers,
           Blame& blame);

  std::uint32_t RankOf(std::size_t link) const { return links_[link].channel.rank; }
  // Whether a piece on this link waits until this rank submits its operation or its place is free.
  bool IsHeld(std::size_t link) const { return links_[link].is_held; }
  // Whether no operation is active here, and a piece of one that was not submitted here waits.
  bool HasWaiting() const;
  // Why nothing more comes on any link, and nothing waits; else null.
  const Error* AllGone() const;

  Result<void> Take(Step& step, const exchange::FrameCame& came);
  Result<void> Take(Step& step, const exchange::PlacedCame& came);
  Result<void> Take(Step& step, const exchange::SharedCame& came);
  Result<void> Take(Step& step, const exchange::Landed& landed);
  // Fails if a piece is expected that cannot come any more.
  Result<void> Lose(Step& step, const exchange::LinkLost& lost);
  void Replace(const exchange::LinkMade& made);
  // Places what waits, or sets it aside.
  Result<void> PlaceWaiting(Step& step);
  // Words that nothing followed go after a tick, so that nobody takes the pieces for lost.
  void TellUntold(Step& step);
  void TellAll(Step& step);
  // When TellUntold() has something to do.
  std::optional<Time> tells_at() const;

 private:
  // Where a piece belongs.
  struct Target {
    ActiveOperation* active = nullptr;
    std::size_t index = 0;  // Which arrival of that.
    Range piece{};
  };
  // Where the payload of a piece goes that has no place: it came before, or has to be set aside.
  enum class Aside : std::uint8_t { kNo, kDrop, kKeep };
  enum class Form : std::uint8_t { kFrame, kPlaced, kShared, kLanded };
  struct Incoming {
    exchange::Channel channel;
    bool tells_taken = false;  // One of several from that rank, or over RDMA.
    CollectiveData data{};     // The piece whose payload is being received.
    Form form = Form::kFrame;
    std::uint64_t size_bytes = 0;          // Size of the payload.
    std::uint64_t frame_size_bytes = 0;    // For counters.
    bool is_held = false;                  // `data` waits.
    std::span<const std::byte> payload{};  // If it is there: placed, shared or landed.
    bool is_early = false;                 // It lands aside before its place is free.
    Target landing{};                      // Where the payload is on its way to, if any.
    PooledBuffer scratch{};                // Null until something is to be added.
    std::optional<Error> gone{};
    // The acknowledgement that this rank sends for the pieces that it took.
    std::uint64_t pieces_come = 0;
    Time come_at{};  // The head of the last one,
    Time held_at{};  // and since when it waits for its place alone.
    std::chrono::microseconds waited{};
    CollectiveTaken untold{};
    std::uint64_t untold_bytes = 0;
    Aside aside = Aside::kNo;
    std::vector<std::byte> kept{};  // The bytes to set aside.
  };
  // A piece that has waited too long for its place.
  struct SetAside {
    std::size_t link;
    std::uint64_t number;
    Time come_at;
    CollectiveData data;
    std::vector<std::byte> bytes;
  };
  // Whether a piece that has come may be placed.
  enum class Due : std::uint8_t { kNow, kLater, kNever };  // kNever: it has come before.

  Result<void> TakePiece(Step& step, std::size_t link);
  Result<bool> Place(Step& step, std::size_t link);
  void CountReceived(const Incoming& in);
  Result<bool> LandEarly(Step& step, std::size_t link, const Target& target);
  Result<void> LetLand(Step& step, std::size_t link, Due due, const Target& target);
  Result<Due> FindPlace(const Incoming& in, const CollectiveData& data, std::uint64_t size_bytes,
                        Target& target);
  std::optional<std::size_t> FindArrival(const Incoming& in, const ActiveOperation& active,
                                         const CollectiveData& data);
  bool IsFree(const ActiveOperation& active, std::uint32_t until_step, const Range& piece) const;
  void KeepSent(const Target& target, std::uint32_t until_step);
  bool LandsAside(const Target& target) const;
  Result<void> Finish(Step& step, std::size_t link);
  Result<void> Check(const Incoming& in, const Target& target, const CollectiveData& data,
                     std::span<const std::byte> bytes) const;
  void Add(Step& step, const Target& target, const CollectiveData& data,
           std::span<const std::byte> bytes);
  bool TakesOver(Step& step, std::size_t link, Time come_at, const Target& target);
  void TellTaken(Step& step, std::size_t link, std::uint64_t number, std::uint64_t size_bytes);
  void SendTaken(Step& step, std::size_t link);
  void SetItAside(Step& step, std::size_t link);
  void KeepAside(std::size_t link);
  Result<void> PlaceSetAside(Step& step);
  bool NothingComesFrom(std::uint32_t rank) const;
  Error Differs(const Incoming& in, const CollectiveData& data, const Operation& ours) const;
  Error Unexpected(const Incoming& in, const std::string& what) const;

  const ExchangeGroup& group_;
  const std::chrono::milliseconds tick_;
  const PieceWork& work_;
  ExchangeCounters& counters_;
  Operations& operations_;
  std::deque<PeerStreams>& peers_;
  Blame& blame_;
  std::vector<Incoming> links_;  // Streams of one rank are neighbours.
  std::deque<SetAside> set_aside_;
};

}  // namespace ffrecord::client
