#include "libffrecord/net/transport/endpoint.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "libffrecord/base/io_times.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord::net {

Result<void> Endpoint::SendMapped(FrameHeader header, std::span<const std::byte> body,
                                  std::span<const MappedPiece> payload) {
  std::vector<std::span<const std::byte>> pieces;
  pieces.reserve(payload.size());
  for (const MappedPiece& piece : payload) pieces.push_back(piece.bytes);
  return Send(header, body, pieces);
}

Result<bool> WaitReady(std::span<Endpoint* const> endpoints, Deadline deadline, int wake_fd) {
  std::vector<pollfd> waited;
  waited.reserve(endpoints.size() + 1);
  waited.push_back({wake_fd, POLLIN, 0});  // poll(2) skips -1.
  for (const Endpoint* endpoint : endpoints) {
    if (endpoint == nullptr) continue;
    if (endpoint->fd() < 0) return true;  // Poll() has its error at once.
    const int events = endpoint->wants_room() ? POLLIN | POLLOUT : POLLIN;
    waited.push_back({endpoint->fd(), static_cast<short>(events), 0});
  }
  Patience& patience = Patience::OfThread();
  // A deadline that is "never" must not overflow: an hour, then once more.
  const std::chrono::nanoseconds step =
      patience.is_endless() ? std::chrono::nanoseconds(std::chrono::hours(1)) : Patience::kInterval;
  for (;;) {
    const auto left = std::max(Deadline::duration::zero(), deadline - Clock::now());
    const auto wait = std::min<std::chrono::nanoseconds>(left, step);
    const int ready = [&] {
      const TimedIo timed(&IoTimes::device);
      return PollFor(waited, wait);
    }();
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR)
      return Error{ErrorCode::kIo, std::string("poll failed: ") + std::strerror(errno), errno};
    if (ready == 0 && (wait == left || patience.IsOver())) return false;
  }
}

Result<void> Flush(Endpoint& endpoint, Deadline deadline) {
  for (;;) {
    switch (FFR_TRY(endpoint.Poll())) {
      case Endpoint::Event::kNone:
        break;
      case Endpoint::Event::kClosed:
        return Error{ErrorCode::kUnavailable, "closed by " + endpoint.peer() + " while sending"};
      case Endpoint::Event::kFrame:
      case Endpoint::Event::kPayload:
        return Error{ErrorCode::kConflict,
                     endpoint.peer() + " sent a frame before ours was complete"};
    }
    if (endpoint.bytes_queued() == 0) return {};
    Endpoint* const one[] = {&endpoint};
    if (!FFR_TRY(WaitReady(one, deadline))) {
      return Error{ErrorCode::kDeadlineExceeded,
                   "timed out with " + std::to_string(endpoint.bytes_queued()) +
                       " bytes still to be sent to " + endpoint.peer()};
    }
  }
}

Result<Endpoint::Event> NextEvent(Endpoint& endpoint, Deadline deadline, std::string_view what) {
  for (;;) {
    const auto event = FFR_TRY(endpoint.Poll());
    if (event != Endpoint::Event::kNone) return event;
    Endpoint* const one[] = {&endpoint};
    if (!FFR_TRY(WaitReady(one, deadline))) {
      return Error{ErrorCode::kDeadlineExceeded,
                   "timed out waiting for " + std::string(what) + " from " + endpoint.peer()};
    }
  }
}

}  // namespace ffrecord::net
