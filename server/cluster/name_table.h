#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/cluster/key_mirror.h"
#include "server/cluster/machine.h"
#include "server/cluster/records.h"
#include "server/cluster/stripe_table.h"

namespace ffrecord::server::cluster {

struct HashId {
  std::size_t operator()(const ExtentId& id) const noexcept;
};

// All that is published, with the manifests: which extents the cluster has to keep, how many
// replicas of each, and in which stripes. Large manifests lie in extents themselves, and are
// fetched from the nodes that have them. Extents that have an origin are none of its business:
// nobody has to keep them.
//
// While a manifest is not known, IsComplete() is false, and nobody may conclude from the table that
// an extent is not wanted.
class NameTable {
 public:
  struct Name {
    DatasetRecord record;
    std::uint64_t revision = 0;                       // Revision of the key.
    std::shared_ptr<const DatasetManifest> manifest;  // Null: not fetched yet, or damaged.
    // Since then no node that answers has had it, or it cannot be read. None: it is not sought yet.
    std::optional<TimePoint> lost_since;
  };
  struct Wanted {
    ManifestExtent extent;
    std::uint8_t replicas = 0;         // The most that a name asks for.
    std::vector<StripePlace> stripes;  // Different ones. An owner of each holds it too.
    std::uint32_t name_count = 0;      // That refer to it.
  };
  using WantedExtents = std::unordered_map<ExtentId, Wanted, HashId>;

  explicit NameTable(std::chrono::milliseconds retry = std::chrono::milliseconds(500))
      : retry_(retry) {}

  bool IsComplete() const { return missing_.empty(); }
  std::size_t incomplete_count() const { return missing_.size(); }
  // Grows with each change of what the table says.
  std::uint64_t change_count() const { return change_count_; }
  // Names of which the table says something else, or nothing any more, since that was asked last.
  std::set<std::string> TakeChanged() { return std::exchange(changed_, {}); }
  const Name* Find(std::string_view name) const;
  const std::map<std::string, Name, std::less<>>& names() const { return names_; }
  const WantedExtents& wanted() const { return wanted_; }
  const Wanted* Find(const ExtentId& id) const;
  // For each of these extents a name that refers to it and asks for so many replicas at least, or
  // for the erasure code, if there is one. Walks all manifests, once.
  std::map<ExtentId, std::string> NamesWith(std::span<const ExtentId> ids, std::uint8_t replicas,
                                            const ErasureCode& code) const;
  // Some of the names whose manifests are not known, as text. For people.
  std::string MissingNames() const;

  // These keys have changed. Entries of other names stay.
  void Update(const std::set<std::string>& keys, const KeyMirror& mirror);
  // `live`: the nodes that are up.
  void Step(TimePoint now, const SlotsRecord& slots, const std::set<std::string>& live,
            Outbox& out);
  bool Take(TimePoint now, const Answer& answer);
  TimePoint wake() const { return missing_.empty() ? TimePoint::max() : next_; }

 private:
  static void TakeOwnManifest(Name& name);
  void Remove(const std::string& name);
  void Refer(const Name& name, bool is_new);
  void ReferToFiles(const Name& name, bool is_new);
  void ReferTo(const ManifestExtent& extent, std::uint8_t replicas, const StripePlace* stripe,
               bool is_new);
  void CountReplicas();

  const std::chrono::milliseconds retry_;
  std::map<std::string, Name, std::less<>> names_;
  WantedExtents wanted_;
  // Names that asked for the most replicas of these, or for a stripe, are gone; others still refer
  // to them.
  std::set<ExtentId> uncounted_;
  std::set<std::string> missing_;  // Names whose manifest is not known.
  struct Fetch {
    std::string name;
    std::uint64_t revision = 0;  // Revision of the name,
    std::uint64_t attempt = 0;   // and who published it: a revision may come twice (continuity.h).
  };
  std::map<CallId, Fetch> fetches_;
  std::set<std::string> fetched_;  // Those that are being fetched,
  std::string last_fetched_;       // and the last one of which that was begun.
  TimePoint next_{};
  std::uint64_t change_count_ = 0;
  std::set<std::string> changed_;
};

// How many replicas of the extents of a manifest's own bytes there are: two at least, as the loss
// of one node must not take the names of data that it did not hold.
std::uint8_t BodyReplicas(std::uint8_t replicas);

}  // namespace ffrecord::server::cluster
