#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/cluster/view.h"

namespace ffrecord::server::cluster {

// Drops what tombstones name from this node's disks.
//
// Only with a lease, with all names known up to the tombstone's revision at least, after the grace,
// and after the tombstone was read from the store itself, not from the mirror alone. An extent that
// a name refers to stays, whatever a tombstone says. An extent that no record explains is reported
// and kept.
class Burial {
 public:
  struct Options {
    std::chrono::milliseconds interval{1'000};
    std::chrono::milliseconds patience{5'000};
  };
  explicit Burial(const Options& options) : options_(options) {}

  // For each tombstone, whether it is known, its grace is over, and nothing of it is left here.
  Flags OnAskBuried(TimePoint now, const View& view, const AskBuried& question) const;
  // Extents that neither a name, nor an upload, nor a tombstone explains.
  std::vector<ExtentId> Unexplained(const View& view) const;

  void Step(TimePoint now, const View& view, Outbox& out);
  bool Take(TimePoint now, const View& view, const Answer& answer, Outbox& out);
  TimePoint wake() const { return next_; }

 private:
  using Tombstone = TombstoneTable::Tombstone;
  // This node's extents that no name refers to. Walks all of them after a change alone.
  const std::vector<ExtentId>& Unnamed(const View& view) const;
  // Those of them that the tombstone names.
  static std::vector<ExtentId> Left(const View& view, const Tombstone& tombstone,
                                    const std::vector<ExtentId>& unnamed);
  static bool IsInMotion(std::span<const ExtentId> moving, const Tombstone& tombstone);

  Options options_;
  TimePoint next_{};
  CallId look_ = 0;  // At one tombstone, in the store.
  std::string looked_at_;
  // With the change counts of names and extents by which they are so.
  mutable std::vector<ExtentId> unnamed_;
  mutable std::optional<std::pair<std::uint64_t, std::uint64_t>> unnamed_at_;
};

}  // namespace ffrecord::server::cluster
