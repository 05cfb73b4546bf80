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

#include "client/collective/exchange_steps.h"
#include "client/collective/operations.h"
#include "client/collective/piece_work.h"
#include "libffrecord/base/buffer_pool.h"

namespace ffrecord::client {

// The pieces under way to one peer, by one or several streams: which stream takes the next piece,
// what the peer has not taken yet, and what has to be sent again when a stream is lost. Part of
// ExchangeMachine; its page says how streams, RDMA and shared memory work.
class PeerStreams {
 public:
  using Time = exchange::Time;
  using Step = exchange::Step;

  // Borrows all but `channels`, of which there is at least one. `index`: of the peer, in actions.
  PeerStreams(std::vector<exchange::Channel> channels, std::size_t index,
              const ExchangeGroup& group, const PieceWork& work, ExchangeCounters& counters);

  std::uint32_t rank() const { return streams_.front().channel.rank; }
  // Pieces are copied into memory that both have mapped.
  bool is_shared() const { return piece_size_bytes_max() != 0; }
  std::uint64_t piece_size_bytes_max() const {
    return streams_.front().channel.shared_piece_size_bytes;
  }
  // The peer says what it has taken.
  bool hears_taken() const { return hears_taken_; }
  std::size_t size() const { return streams_.size(); }
  // All streams are, while nothing was owed to the peer.
  const std::optional<Error>& gone() const { return gone_; }
  bool IsGone(std::size_t stream) const { return streams_[stream].gone.has_value(); }
  bool HasInFlight(std::size_t stream) const { return !streams_[stream].in_flight.empty(); }
  std::uint64_t queued_bytes(std::size_t stream) const { return streams_[stream].queued_bytes; }
  std::optional<std::size_t> LostStream(std::uint16_t number) const;
  // Pieces of streams that were lost wait to be sent again.
  bool has_again() const { return !again_.empty(); }
  // That a stream was lost.
  bool has_untold() const { return has_untold_; }
  // Something that was given to streams has not left, or was not taken.
  bool IsSending() const;
  // A stream may hold something that the peer waits for, though our operations have ended: of a
  // small piece there is a copy.
  bool AwaitsTaken() const;

  // --- Sending ---
  // The stream that takes the next piece of a transfer of which `rest_bytes` are left beyond it;
  // none if none should now.
  std::optional<std::size_t> Choose(Time now, std::uint64_t size_bytes,
                                    std::uint64_t rest_bytes) const;
  void NoteRoom(std::span<std::byte> place) { room_ = place; }
  // Requires a stream that was chosen. `data` lacks its payload's check.
  Result<void> Send(Step& step, std::size_t stream, ActiveOperation& active, std::size_t send,
                    Range piece, CollectiveData data);
  // Queues a word for the peer on each stream where nothing else is queued: a queue that stands
  // would only grow, and one of the streams may be silent.
  void SendWaiting(Step& step, const GroupWaiting& waiting);
  // Sends pieces again that the peer has not taken from streams that are gone, before anything new.
  Result<void> SendAgain(Step& step);

  // Whether a piece that is given to a stream, and has not left, borrows what `active` sends from
  // there in `until_step` and before.
  bool Borrows(const ActiveOperation& active, std::uint32_t until_step, const Range& piece) const;
  // Copies what was sent from there and is not taken, for now it is overwritten. Two that exchange
  // all they have could else wait for each other.
  void KeepSent(ActiveOperation& active, std::uint32_t until_step, const Range& piece);

  // --- News ---
  void NoteLeft(Step& step, const exchange::Left& left);
  Result<void> NoteTaken(Step& step, const exchange::Taken& taken);
  // `owes`: more is to be sent to the peer. Fails if it was the last stream, and something is owed.
  Result<void> Lose(Step& step, const exchange::StreamLost& lost, bool owes);
  void Replace(Step& step, const exchange::StreamMade& made);
  // Not before the rank is needed again: all streams of one that ends are lost, one after the
  // other.
  void TellLost(Step& step);

  // How long the other end of a stream may be silent, if that matters now. `oldest`: the operation
  // that this rank waits for; null: none.
  std::optional<std::chrono::milliseconds> SilenceMax(Time now, std::size_t stream,
                                                      const ActiveOperation* oldest) const;
  Result<void> GiveUp(Step& step, std::size_t stream, std::chrono::milliseconds silence, bool owes);

  bool awaits_room = false;  // A piece is due, and no stream has room for it.

 private:
  // A piece that was given to a stream.
  struct InFlight {
    ActiveOperation* active;  // Whose array it borrows; null: none, or none any more.
    std::uint32_t step;
    Range range;
    std::uint64_t mark = 0;  // It has left when so many bytes have.
    // The rest matters where the peer says what it has taken.
    bool has_left = false;         // On some stream.
    std::uint64_t number = 0;      // Number among the pieces on its stream.
    std::optional<Range> place{};  // In the peer's ring, in bytes, if it was written there.
    std::uint64_t size_bytes = 0;
    CollectiveData data{};
    std::vector<std::byte> copy{};  // The bytes of a small one.
    Time given_at{};

    bool Borrows(const ActiveOperation& from, std::uint32_t until_step,
                 const Range& range_of) const {
      return active == &from && step <= until_step && range.Touches(range_of);
    }
  };
  // One connection to the peer.
  struct Stream {
    exchange::Channel channel;
    std::uint64_t given_bytes = 0;
    std::uint64_t queued_bytes = 0;  // Bytes of these that are queued, as far as it is known.
    // Until it has left, or, where the peer says so, until it has taken it.
    std::deque<InFlight> in_flight{};
    PooledBuffer staging{};  // Holds pieces that are sent as another type; null until there is one.
    std::uint64_t staging_next = 0;
    std::optional<Error> gone{};
    std::string why_gone{};
    bool is_told = false;  // That it is gone.
    std::uint64_t pieces_given = 0;
    std::uint64_t untaken_bytes = 0;
    std::uint64_t place_next = 0;  // Where in the peer's ring there may be room.
    double byte_s = 0;             // How slow it is; 0: not known.
    Time taken_at{};

    std::uint64_t left_bytes() const { return given_bytes - queued_bytes; }
  };

  bool HasRoom(const Stream& stream) const;
  void Share(Step& step, const Operation& operation, Range piece, const CollectiveData& data);
  void Give(Step& step, std::size_t stream, InFlight flying, std::span<const std::byte> bytes);
  Result<std::span<const std::byte>> WireBytes(Stream& stream, const Operation& operation,
                                               Range piece, std::int32_t shift) const;
  static std::optional<Range> PlaceFor(const Stream& stream, std::uint64_t size_bytes);
  Result<void> LoseStream(Step& step, std::size_t stream, const std::string& why, bool owes);
  std::string NameOf(const Stream& stream) const;

  const std::size_t index_;
  const ExchangeGroup& group_;
  const PieceWork& work_;
  ExchangeCounters& counters_;
  std::vector<Stream> streams_;  // One, or as many as the group has.
  bool hears_taken_ = false;
  std::optional<std::span<std::byte>> room_;  // In shared memory.
  std::deque<InFlight> again_;                // Pieces to send again: their streams are gone.
  bool has_untold_ = false;
  std::optional<Error> gone_;
};

}  // namespace ffrecord::client
