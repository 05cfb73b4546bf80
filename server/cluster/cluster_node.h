#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/cluster/burial.h"
#include "server/cluster/continuity.h"
#include "server/cluster/key_mirror.h"
#include "server/cluster/leader.h"
#include "server/cluster/lease_keeper.h"
#include "server/cluster/machine.h"
#include "server/cluster/name_table.h"
#include "server/cluster/publication.h"
#include "server/cluster/rebuild.h"
#include "server/cluster/replication.h"
#include "server/cluster/upload_opening.h"
#include "server/cluster/upload_quotas.h"
#include "server/cluster/view.h"

namespace ffrecord::server::cluster {

// One daemon's part in the cluster: all its machines, stepped together.
//
// Thread-bound. Step() whenever an answer comes and when wake() has passed; carry out the actions
// that it returns, in their order, and answer each once. DropExtent is carried out before anything
// else is asked of this node: from then on LocalExtents does not show the extent.
class ClusterNode {
 public:
  struct Options {
    LeaseKeeper::Options lease;
    KeyMirror::Options mirror = {};
    Replication::Options replication = {};
    Burial::Options burial = {};
    Leader::Options leader = {};
    // The node's mark of the metadata from before its start, the incarnations before that, and the
    // names by then.
    HistoryMark mark = {};
    std::vector<std::uint64_t> ancestors = {};
    KnownNames known = {};
  };
  // `extents` outlives the node.
  ClusterNode(const Options& options, const LocalExtents& extents);
  ClusterNode(const ClusterNode&) = delete;
  ClusterNode& operator=(const ClusterNode&) = delete;

  std::vector<Action> Step(TimePoint now);
  std::vector<Action> Step(TimePoint now, const Answer& answer);
  TimePoint wake() const;
  // The store may be another than before: nothing is believed until it has been looked at.
  void Doubt() { continuity_.Doubt(); }

  // Questions of other nodes: answered at once, without effect.
  Holdings OnAsk(TimePoint now, const AskHoldings& question) const;
  Flags OnAsk(TimePoint now, const AskHeard& question) const;
  Flags OnAsk(TimePoint now, const AskBuried& question) const;
  Flags OnAsk(TimePoint now, const AskFilled& question) const;
  Known OnAsk(TimePoint now, const AskKnown& question) const;

  // Whether bytes of that upload may be written and sealed here now.
  bool TakesUpload(TimePoint now, std::uint64_t upload) const;

  // Requests of clients. Each is finished once, by its deadline.
  using RequestId = std::uint64_t;
  struct Finished {
    RequestId request = 0;
    Result<std::uint64_t> result;
  };
  // Until this node knows all names as they were when it was asked, or later, and the manifest of
  // this one: it asks the store after the call up to where there is something to know. Fails with
  // kUnavailable at once while it has no lease, as others can tell then.
  RequestId BeginLook(std::string name, TimePoint deadline);
  // The names of that revision are known, or later ones, and the manifest of this one if it is
  // there.
  bool Shows(std::uint64_t revision, std::string_view name) const;
  RequestId Begin(Publication::Request request);
  // Opens the upload: makes its key. Has been done, or is known to be done by another, if it
  // finishes without an error. Fails with kConflict if it was given up: its extents are going.
  // With `room`, that extent of it is on record, too, against the quotas that hold for it; fails
  // with kIo (EDQUOT) if it passes one.
  RequestId BeginUpload(std::uint64_t upload, TimePoint deadline, UploadRoom room = {});
  std::vector<Finished> TakeFinished();
  // Ends those that go on, for `why`: nothing of what they ask for will be carried out.
  void GiveUp(const Error& why);
  // Begins an operator's rebuild.
  RequestId Begin(const Rebuild::Request& request);
  struct Rebuilt {
    RequestId request = 0;
    Result<Rebuild::Report> result;
  };
  std::vector<Rebuilt> TakeRebuilt();

  const View& view() const { return view_; }
  std::set<std::string> TakeChangedNames() { return names_.TakeChanged(); }
  // The names by continuity().mark(): what this node has trusted last, also if the metadata was put
  // back to an older state since.
  KnownNames TrustedNames() const;
  const Leader& leader() const { return leader_; }
  const Replication& replication() const { return replication_; }
  std::vector<ExtentId> Unexplained() const { return burial_.Unexplained(view_); }
  // Level of the cluster, as the store says.
  std::uint32_t level() const { return level_; }
  // The cluster is above what this program knows: the node lets its lease end.
  bool is_outdated() const { return level_ > options_.lease.record.level; }

 private:
  struct Look {
    std::string name;
    TimePoint deadline;
    NewestNames newest;
  };

  void Restart(TimePoint now);
  void RememberNames();
  // Revisions that commits of ours must exceed, as the mirror has shown them before.
  void NoteCommits(const std::vector<Action>& actions);
  void CheckOutcome(const Answer& answer);
  std::vector<Action> Done(TimePoint now);
  void OnChange(const std::set<std::string>& keys);
  void TakeSlots();
  void StepAll(TimePoint now);
  void StepOpenings(TimePoint now);
  void StepLooks(TimePoint now);
  std::optional<Result<std::uint64_t>> StepLook(TimePoint now, const Look& look) const;
  void AskNewest(TimePoint now);
  bool TakeNewest(TimePoint now, const Answer& answer);
  template <class Visit>
  void ForEachNewest(const Visit& visit);
  void Collect();

  const Options options_;
  const std::string node_;
  Outbox out_;
  TimePoint now_{};
  LeaseKeeper lease_;
  Continuity continuity_;
  KeyMirror mirror_;
  std::optional<KnownNames> known_;  // From before the metadata was put back, or the start.
  std::map<CallId, std::uint64_t> commits_;
  NameTable names_;
  TombstoneTable tombstones_;
  SlotsRecord slots_;
  StripeTable stripes_;
  std::uint32_t level_ = 1;
  std::set<std::string> live_;
  View view_;
  Replication replication_;
  Burial burial_;
  Leader leader_;
  RequestId last_request_ = 0;
  std::map<RequestId, Publication> publications_;
  std::map<RequestId, UploadOpening> openings_;
  std::map<RequestId, Look> looks_;
  CallId newest_call_ = 0;  // For all that wanted it when the store was asked.
  TimePoint newest_next_{};
  std::map<RequestId, Rebuild> rebuilds_;
  std::vector<Finished> finished_;
  std::vector<Rebuilt> rebuilt_;
};

}  // namespace ffrecord::server::cluster
