#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/rpc/extent_sender.h"
#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {

// Bytes of a file from an offset on, at least one and at most as many as `room` has; valid until
// the next call. A source that writes them into `room` saves a copy where the daemon reads
// this memory. Offsets rise, but for an extent that has to begin again.
using ExtentSource = std::function<Result<std::span<const std::byte>>(std::uint64_t offset_bytes,
                                                                      std::span<std::byte> room)>;

// Which bytes of a source an extent has.
struct SourcedExtent {
  ExtentId id{};
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

// An extent on its way to several daemons at once: every piece is read once, and sent to all.
//
//   ExtentLegs legs(extent, deadline);
//   for (...) legs.Add(session, connection);
//   const auto xxh3 = FFR_TRY(legs.Send(source, sent));
//
// Thread-bound. Borrows sessions and connections.
class ExtentLegs {
 public:
  ExtentLegs(const SourcedExtent& extent, net::Deadline deadline)
      : extent_(extent), deadline_(deadline) {}

  void Add(net::Session& session, net::Connection& connection) {
    legs_.emplace_back(session, connection, extent_.id, deadline_);
  }
  // Makes the extent durable at all daemons that do not fail. Returns its checksum; fails as
  // `source` does, and as the first daemon if all have failed. Calls `sent` with the number of
  // bytes that have been sent.
  Result<std::uint64_t> Send(const ExtentSource& source,
                             const std::function<void(std::uint64_t)>& sent);
  // The outcome of each leg, in the order of Add().
  std::vector<Result<void>> outcomes() const;

 private:
  struct Leg {
    Leg(net::Session& to, net::Connection& over, const ExtentId& id, net::Deadline deadline)
        : session(to), connection(over), sender(over, id, deadline) {}
    bool is_open() const { return static_cast<bool>(outcome); }

    net::Session& session;
    net::Connection& connection;
    net::ExtentSender sender;
    bool is_sealed = false;     // There, from an earlier try.
    std::uint64_t request = 0;  // Whose answer is awaited.
    Result<void> outcome;
  };

  // Does this at all daemons that have not failed; fails if all have.
  Result<void> Each(const std::function<Result<void>(Leg&)>& work);
  Result<void> Begin();
  Result<std::uint64_t> SendPieces(const ExtentSource& source,
                                   const std::function<void(std::uint64_t)>& sent);
  Result<void> Seal(std::uint64_t xxh3);

  const SourcedExtent extent_;
  const net::Deadline deadline_;
  std::list<Leg> legs_;  // They stay where they are.
};

}  // namespace ffrecord::client
