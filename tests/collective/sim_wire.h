#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "client/collective/group_messages.h"
#include "client/collective/schedule.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::test {

using SimTime = Clock::time_point;
using SimDuration = Clock::duration;

// What happens when: virtual time. Equal times go in the order in which they were asked for.
class SimClock {
 public:
  SimTime now() const { return now_; }
  void At(SimTime time, std::function<void()> what) { events_.emplace(time, std::move(what)); }
  void After(SimDuration delay, std::function<void()> what) { At(now_ + delay, std::move(what)); }
  // False if nothing is left to happen.
  bool Step() {
    if (events_.empty()) return false;
    auto next = events_.extract(events_.begin());
    now_ = std::max(now_, next.key());
    next.mapped()();
    return true;
  }

 private:
  SimTime now_{std::chrono::hours(1)};
  std::multimap<SimTime, std::function<void()>> events_;
};

// Draws everything that a seed decides.
class SimRandom {
 public:
  explicit SimRandom(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t Below(std::uint64_t end) { return engine_() % end; }
  std::uint64_t Between(std::uint64_t low, std::uint64_t high) {
    return low + Below(high - low + 1);
  }
  bool OneIn(std::uint64_t count) { return Below(count) == 0; }
  SimDuration UpTo(SimDuration most) {
    return SimDuration(
        static_cast<SimDuration::rep>(Below(static_cast<std::uint64_t>(most.count()) + 1)));
  }

 private:
  std::mt19937_64 engine_;
};

// What one rank says to another.
struct SimFrame {
  enum class Kind : std::uint8_t { kData, kPlaced, kWaiting, kTaken, kError };
  Kind kind = Kind::kData;
  client::CollectiveData data{};
  client::GroupWaiting waiting{};
  client::CollectiveTaken taken{};
  Error error{};
  std::uint64_t offset_bytes = 0;       // kPlaced: where it is written.
  std::span<const std::byte> source{};  // Borrowed, until it has left.
  std::uint64_t head_size_bytes = 48;
  std::vector<std::byte> payload{};  // What has left of it.
  bool is_taken = false;             // Its head is.
  std::uint64_t left_bytes = 0;      // Of the whole frame.
  std::uint64_t arrived_bytes = 0;
  std::uint64_t landed_bytes = 0;  // Of the payload.

  std::uint64_t size_bytes() const { return head_size_bytes + source.size(); }
  bool has_arrived() const { return arrived_bytes == size_bytes(); }
};

// One direction of a connection: frames leave in parts and arrive in order, with the memory of two
// kernels between. Source memory is read when a part leaves.
struct SimPipe {
  std::deque<SimFrame> frames;  // The receiver is done with those before.
  std::uint64_t queued_bytes = 0;
  std::uint64_t under_way_bytes = 0;  // Have left, and the receiver has not taken them.
  std::uint64_t unacked_bytes = 0;    // Have left, and not arrived.
  SimTime arrives_from{};             // What leaves now arrives no earlier.
  bool is_pumping = false;
  bool is_dropped = false;  // What has not left never does.

  void Queue(SimFrame frame) {
    queued_bytes += frame.size_bytes();
    frames.push_back(std::move(frame));
  }
  // At most so many bytes leave; returns how many.
  std::uint64_t Leave(std::uint64_t most_bytes);
  // `placed`: takes the bytes of placed payloads as they arrive, with their places.
  void Arrive(std::uint64_t count_bytes,
              const std::function<void(std::uint64_t, std::span<const std::byte>)>& placed);
  void Drop() {
    is_dropped = true;
    queued_bytes = 0;
  }
};

// How one end sees a connection.
struct SimEnd {
  bool is_closed = false;  // By itself.
  bool is_lost = false;    // Nothing comes any more but what has arrived.
  std::optional<Error> why{};
};

// A connection: data goes forward, words of the receiver go backward.
struct SimConnection {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint16_t stream = 0;
  SimPipe forward;
  SimPipe backward;
  SimEnd sender;
  SimEnd receiver;
  SimTime silent_from{};
  SimTime silent_until{};
  bool is_cut = false;  // What is under way is lost.
  bool flips = false;   // The next payload that arrives is damaged.
  std::uint64_t part_bytes = 0;
  SimDuration latency{};
};

// Memory that two ranks share.
struct SimRing {
  static constexpr std::size_t kSlots = 4;
  struct Slot {
    client::CollectiveData data{};
    std::vector<std::byte> bytes;
    std::uint64_t size_bytes = 0;
  };
  Slot slots[kSlots];
  std::uint64_t written = 0;
  std::uint64_t read = 0;

  bool HasRoom() const { return written - read < kSlots; }
  bool HasPiece() const { return read < written; }
  Slot& Room() { return slots[written % kSlots]; }
  Slot& Front() { return slots[read % kSlots]; }
};

}  // namespace ffrecord::test
