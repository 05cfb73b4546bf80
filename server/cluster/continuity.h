#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/cluster/key_mirror.h"
#include "server/cluster/machine.h"
#include "server/cluster/newest_keys.h"
#include "server/cluster/records.h"

namespace ffrecord::server::cluster {

// The relation of a store to a node that has seen the mark.
enum class Relation {
  kContinues,  // The same history, seen to the mark or further.
  kDescends,   // A later incarnation: others have seen that the mark is not in it.
  kForeign,    // It was put back to before the mark, and nobody has said so yet.
};
// `record`: of the store, put at `mod_revision`; null: there is none. `revision`: of the store.
Relation Relate(const HistoryMark& mark, const HistoryRecord* record, std::uint64_t mod_revision,
                std::uint64_t revision);

// Finds out whether the store goes on from where this node knew it. A store that was restored from
// an older snapshot lacks names that were published, and has uploads open that are data by now: a
// node that concludes from it that something is not wanted loses it.
//
// Each node looks before it puts anything, after each break and now and then. Revisions alone do
// not tell: an older state may have gone on beyond what the node has seen, if only since leases
// have ended. So the node also asks for the newest key that it has seen, as it was at that
// revision. The first one that finds the store put back begins a new incarnation of the metadata.
// From then on no node drops anything, until an operator has confirmed it. A store that lacks the
// cluster itself is left alone: the node goes on with what it knows, and is not checked. While the
// incarnation is not confirmed, and until the node has looked, it is not trusted; what the node
// keeps on its disk stays as it was before.
class Continuity {
 public:
  struct Options {
    std::uint64_t seed = 0;  // Random for each start.
    std::string node;
    HistoryMark mark;                           // The mark of before this start,
    std::vector<std::uint64_t> ancestors = {};  // and those of its incarnation.
    std::chrono::milliseconds interval{3'000};
    std::chrono::milliseconds retry{500};
    std::chrono::milliseconds patience{5'000};
  };
  explicit Continuity(Options options)
      : options_(std::move(options)), mark_(options_.mark), ancestors_(options_.ancestors) {}

  // The store was looked at since the last doubt, and the keys may be listed and watched.
  bool is_checked() const { return is_checked_ && !must_restart_; }
  // It may be concluded from the metadata that something is not wanted.
  bool is_trusted() const { return is_checked() && !is_frozen(); }
  // Nothing is dropped until an operator has confirmed the metadata.
  bool is_frozen() const { return is_foreign_ || is_unconfirmed_; }
  const std::string& why() const { return why_; }  // It is frozen. For people.
  // The store has nothing of the cluster that this node has seen there: it was lost, and an
  // operator has to restore or rebuild it.
  bool finds_nothing() const { return finds_nothing_; }
  // To keep on disk, with the incarnations before its own.
  const HistoryMark& mark() const { return mark_; }
  const std::vector<std::uint64_t>& ancestors() const { return ancestors_; }

  // The store may be another from now on: a watch has ended, or a lease is gone.
  void Doubt();
  // A commit of ours had a revision that the store had passed before.
  void Refute();
  // The mirror has changed: these keys of it.
  void Update(const std::set<std::string>& changed, const KeyMirror& mirror);
  // `map_version`: of the newest slot map that this node knows.
  void Step(TimePoint now, Outbox& out);
  bool Take(TimePoint now, std::uint32_t map_version, const Answer& answer, Outbox& out);
  // Once: the mirror's keys are of another history, and have to be listed anew.
  bool TakeRestart();
  TimePoint wake() const { return call_ == 0 ? next_ : TimePoint::max(); }

 private:
  // The findings of a look at the store.
  struct Look {
    std::optional<HistoryRecord> record;
    std::uint64_t mod_revision = 0;  // Revision of its key.
    std::uint64_t revision = 0;      // Revision of the store.
    // To what was known when it was asked for.
    Relation mark = Relation::kContinues, current = Relation::kContinues;
    bool anchors_mark = false;  // The anchor that is asked for is the mark's.

    const HistoryRecord* known() const { return record ? &*record : nullptr; }
  };
  void TakePage(TimePoint now, std::uint32_t map_version, const MetaStore::Page& page, Outbox& out);
  void TakeAnchor(TimePoint now, std::uint32_t map_version, const Result<MetaStore::Page>& page,
                  Outbox& out);
  Relation RelateToStore(const HistoryMark& mark) const;
  bool AskAnchor(TimePoint now, Outbox& out);
  void Conclude(TimePoint now, std::uint32_t map_version, Outbox& out);
  void TakeCluster(TimePoint now, std::uint32_t map_version,
                   const std::optional<MetaStore::KeyValue>& found, Outbox& out);
  void BeginIncarnation(TimePoint now, std::uint32_t map_version, Outbox& out);
  void Trust();  // Trusts the state in the mirror.

  const Options options_;
  // Revision of the key that founded the cluster, which is never put again; 0: not seen yet.
  std::uint64_t cluster_revision_ = 0;
  HistoryMark mark_;     // The mark that this node has trusted last,
  HistoryMark current_;  // and of what the mirror shows; revision 0: nothing yet.
  std::vector<std::uint64_t> ancestors_, current_ancestors_;  // By incarnation.
  // As they were when the store was asked: what it answers is as new at least.
  HistoryMark asked_mark_, asked_current_;
  bool is_checked_ = false;
  bool is_foreign_ = false;
  bool is_unconfirmed_ = false;
  bool is_refuted_ = false;
  bool finds_nothing_ = false;
  bool must_restart_ = false;
  std::uint64_t begun_count_ = 0;
  std::string why_;
  TimePoint next_{};
  // One at a time: the record, the anchor, the cluster's id, or the commit of another incarnation.
  CallId call_ = 0;
  bool asks_anchor_ = false;
  Look look_;                // The last one.
  bool is_doubted_ = false;  // Since the call was made.
  NewestKeys newest_;        // The newest keys of the mirror.
};

}  // namespace ffrecord::server::cluster
