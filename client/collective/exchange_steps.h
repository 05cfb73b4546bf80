#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <ffrecord/result.h>

#include "client/collective/group_messages.h"
#include "client/collective/operations.h"
#include "client/collective/schedule.h"
#include "libffrecord/base/clock.h"

// The events of ExchangeMachine, and the actions that it wants done. `peer` counts the ranks that
// this one sends to, `stream` the connections to one of them, and `link` all connections that bring
// data.
namespace ffrecord::client::exchange {

using Time = Clock::time_point;

// Where there are several streams, pieces up to here are copied rather than waited for.
inline constexpr std::uint64_t kCopiedMax = 16 << 10;

// A connection as the machine knows it.
struct Channel {
  std::uint32_t rank = 0;    // The other end.
  std::uint16_t stream = 0;  // Which of the connections to or from it this is.
  std::string address{};     // For messages.
  // Where both ranks share memory: the largest piece in their ring; else 0.
  std::uint64_t shared_piece_size_bytes = 0;
  // Over RDMA, one of the two, by the direction of the data: the size of the other end's memory
  // that pieces are written into, and our memory that it writes into.
  bool is_rdma = false;
  std::optional<std::uint64_t> ring_there_size_bytes{};
  std::span<const std::byte> ring_here{};
};

// --- Events --------------------------------------------------------------------------------------

struct Go {};      // Submitted operations may start, and data that may be sent is sent.
struct Settle {};  // Data that came too early may have its place now; operations may have ended.
struct Tick {};    // NextTime() may have come. After all other events of a turn.

struct Room {  // In the memory shared with the peer, for a piece.
  std::size_t peer;
  std::span<std::byte> place;
};
struct Left {  // So much of the data given to a stream is still queued.
  std::size_t peer;
  std::size_t stream;
  std::uint64_t queued_bytes;
};
struct Taken {  // The peer says what it has taken.
  std::size_t peer;
  std::size_t stream;
  std::uint64_t queued_bytes;
  CollectiveTaken taken;
};
struct StreamLost {  // Nothing is sent on it any more. `why`: not closed by the peer in good order.
  std::size_t peer;
  std::size_t stream;
  std::uint64_t queued_bytes;  // These were dropped.
  std::optional<Error> why;
};
struct StreamMade {  // In the place of a lost one, as AskStream wanted.
  std::size_t peer;
  std::size_t stream;
  std::string address;
};
struct Silent {  // The answer to LookWhetherSilent: it owes an acknowledgement for so long; or 0.
  std::size_t peer;
  std::size_t stream;
  std::chrono::milliseconds time;
};
// The three forms of a piece. No other may come on the link while IsHeld().
struct FrameCame {  // The payload has not come: Receive says where it is to go.
  std::size_t link;
  CollectiveData data;
  std::uint64_t size_bytes;
  std::uint64_t frame_size_bytes;  // For counters.
};
struct PlacedCame {  // Written into our memory.
  std::size_t link;
  CollectivePlaced placed;
  std::uint64_t frame_size_bytes;
};
struct SharedCame {  // The payload stays there until Pop.
  std::size_t link;
  CollectiveData data;
  std::span<const std::byte> payload;
};
struct Landed {  // The payload that Receive gave a place has come.
  std::size_t link;
};
struct WaitingCame {  // The other end of a link says who holds it up.
  std::size_t link;
  GroupWaiting waiting;
};
struct LinkLost {  // Nothing comes any more, nor is there anything that came. May be said again.
  std::size_t link;
  std::optional<Error> why;
};
struct LinkMade {  // By the other end, in the place of one that is lost or will be.
  std::size_t link;
  std::string address;
};

// --- Actions, to be done in their order ----------------------------------------------------------

struct SendPiece {  // `bytes` are borrowed until they have left, or the stream is lost.
  std::size_t peer;
  std::size_t stream;
  CollectiveData data;
  std::span<const std::byte> bytes;
  std::optional<Range> place;  // In the peer's memory, in bytes, where they are to be written.
};
struct Publish {  // Data was written into the Room of the peer.
  std::size_t peer;
  CollectiveData data;
  std::uint64_t size_bytes;
};
struct SendWaiting {
  std::size_t peer;
  std::size_t stream;
  GroupWaiting waiting;
};
struct SendTaken {  // Against the data's direction.
  std::size_t link;
  CollectiveTaken taken;
};
struct Receive {  // Not empty. The payload of the frame that has come goes there.
  std::size_t link;
  std::span<std::byte> place;
};
struct Pop {  // The shared piece is done with.
  std::size_t link;
};
struct CloseStream {
  std::size_t peer;
  std::size_t stream;
};
struct CloseLink {
  std::size_t link;
};
struct AskStream {  // A new one is wanted in the place of this one, which is lost.
  std::uint32_t rank;
  std::uint16_t stream;
};
struct LookWhetherSilent {
  std::size_t peer;
  std::size_t stream;
};
struct Tell {  // People should know.
  std::string text;
};
struct Complete {  // The operation has ended well: its array is not touched any more.
  Operations::Ended ended;
};
using Action = std::variant<SendPiece, Publish, SendWaiting, SendTaken, Receive, Pop, CloseStream,
                            CloseLink, AskStream, LookWhetherSilent, Tell, Complete>;
using Actions = std::vector<Action>;

// The step that is being taken.
struct Step {
  Time now;
  Actions& actions;
  bool moved = false;  // Something has changed, so that more may be done.
};

// --- Errors --------------------------------------------------------------------------------------

// That rank has left the group.
Error Gone(const Channel& channel, const Error* why);
// Rank `sender` sent what rank `own` cannot understand.
Error Unexpected(std::uint32_t sender, std::uint32_t own, const std::string& what);

}  // namespace ffrecord::client::exchange
