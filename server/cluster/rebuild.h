#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/cluster/unanswered_commits.h"
#include "server/cluster/view.h"

namespace ffrecord::server::cluster {

// A name that the metadata, put back to an older state, does not have as nodes have known it.
struct Difference {
  enum class Kind : std::uint8_t {
    kLost,      // It was published since, and is not there.
    kReplaced,  // It was published anew since, and is as it was before.
    kReturned,  // It was removed since, and is there again.
  };
  Kind kind = Kind::kLost;
  std::string name;
  DatasetRecord record;        // As it was known; as it is there, if it has returned.
  std::uint64_t revision = 0;  // Revision of the name in the store; 0: it is not there.

  bool operator==(const Difference&) const = default;
};
// The differences between the names of an older state and the names that nodes have known, in the
// order of the names. `is_older`: the name is at that revision as the older state has it, or as a
// rebuild has put it that knew less. Else it was changed by somebody who saw the older state; it is
// no difference.
// `was_removed`: that publication was removed since, or replaced and then removed; nor is that one.
using IsOlder = std::function<bool(const std::string& name, std::uint64_t revision)>;
using WasRemoved = std::function<bool(const DatasetRecord& record)>;
std::vector<Difference> Compare(const std::map<std::string, NameTable::Name, std::less<>>& names,
                                const KnownNames& known, const IsOlder& is_older,
                                const WasRemoved& was_removed);
// Whether the first mark is of a later state than the second: by the order of incarnations that the
// record has, then by the newest leader that was seen, then by the revision. A node that lists an
// older state just after it was put back may take it for a later revision of what it knew, if the
// store has forgotten what would distinguish the two. It has seen an older leader then.
bool IsNewer(const HistoryMark& mark, const HistoryMark& than, const HistoryRecord& record);

// The metadata was put back to an older state, and neither has a rebuild heard every node since,
// nor an operator confirmed it: names that were published may be absent.
bool MayLackNames(const View& view);

// Compares metadata that nobody has confirmed with what nodes have known before, and publishes
// again what it lacks: names of the nodes' own disks, whose manifests and extents lie on their
// disks too.
//
// Every node knows all names up to its mark, so it is the names of the node with the newest mark
// that count. Nothing is dropped by it: extents that it leaves without a name are kept. If a node
// that was down has seen more, another rebuild takes its names instead; one that has seen less
// changes nothing of what was published again, and nothing of what the older state has of later.
class Rebuild {
 public:
  struct Request {
    bool publishes = false;         // Publishes lost or replaced names again.
    bool removes_returned = false;  // Their extents are left to nobody, and kept.
    TimePoint deadline;
  };
  struct Report {
    std::uint64_t incarnation = 0;
    std::string why;
    std::map<std::string, HistoryMark> marks;  // Marks of the nodes that have answered,
    std::set<std::string> silent;              // and those that have not.
    std::string witness;                       // The node with the newest mark; empty: none.
    std::vector<Difference> differences;       // As they are now.
    std::uint64_t changed_count = 0;           // Names that were published or removed.
  };
  explicit Rebuild(const Request& request) : request_(request) {}

  // Fails with kConflict if nothing is to be confirmed, with kUnavailable if no node has known
  // anything, with kDeadlineExceeded; what was done by then stays. The error says so if a commit
  // may have taken effect of which that is not known.
  const std::optional<Result<Report>>& result() const { return result_; }

  void Step(TimePoint now, const View& view, Outbox& out);
  bool Take(TimePoint now, const View& view, const Answer& answer, Outbox& out);
  // The metadata has another history now.
  void Restart(TimePoint now);
  TimePoint wake() const { return std::min(next_, request_.deadline); }

 private:
  // The answers that come are to the questions of the phase before.
  enum class Phase { kMarks, kNames, kTakeNames, kPublish };

  void Fail(Error refusal);
  Error NothingUnconfirmed() const;
  void AskMarks(TimePoint now, const View& view, Outbox& out);
  void AskNames(TimePoint now, const HistoryRecord& record, Outbox& out);
  void Publish(TimePoint now, const View& view, const HistoryRecord& record, Outbox& out);
  bool IsComplete(const View& view) const;
  void Committed(TimePoint now, const Result<MetaStore::Outcome>& outcome);
  void CountDone();
  bool MayReplace(const View& view, const HistoryRecord& record, const std::string& name,
                  std::uint64_t revision) const;

  const Request request_;
  std::optional<Result<Report>> result_;
  Report report_;
  Phase phase_ = Phase::kMarks;
  TimePoint next_{};
  std::map<CallId, std::string> questions_;       // And the nodes that were asked.
  std::map<std::string, HistoryMark> witnesses_;  // That may be asked for their names.
  Known known_;                                   // By the witness,
  std::uint64_t newest_shared_ = 0;               // and the newest that the older state has, too.
  CallId commit_ = 0;
  std::set<std::string> committing_;  // The names of our last commit,
  std::set<std::string> doubtful_;    // and of those of which it is not known what came of them.
  UnansweredCommits unanswered_;
  std::uint64_t awaited_ = 0;  // Revision of our last commit: first the mirror has to show it.
};

}  // namespace ffrecord::server::cluster
