#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/cluster/unanswered_commits.h"
#include "server/cluster/view.h"
#include "server/metadata/name_change.h"
#include "server/metadata/name_quotas.h"

namespace ffrecord::server::cluster {

// One request of a client that changes what a name stands for: publish, replace or remove it.
//
// Before it commits, it asks nodes for each extent until enough of them hold it, in as many failure
// domains; the client's word is not taken for it. Then one commit makes the manifest visible, under
// the condition that nothing has changed on which that rests: the upload is still open, the names
// whose extents it uses still stand, the bytes that it takes of a quota are still left. A commit
// whose answer was lost is looked up by its attempt. A manifest that is too large for the record of
// its name is stored at nodes before.
//
// While the manifest of any name is not known, it waits: for what that name refers to is not known.
// Only a name whose own manifest is not known can be removed then: its extents stay, and its
// tombstone names its manifest's own alone.
class Publication {
 public:
  using Mode = NameChange;
  struct Request {
    Mode mode = Mode::kCreate;
    std::string name;
    // Random, not 0. The same again has no second effect, until the grace of what it published is
    // over: it is repeated for no longer.
    std::uint64_t attempt = 0;
    std::uint64_t expected_revision = 0;  // kSwap; kRemove, if not 0.
    // Replicas of the manifest's own extents, and of those of its files if it has no erasure code.
    std::uint8_t replicas = 2;
    std::chrono::milliseconds grace{86'400'000};  // How long replaced or removed data stays.
    Body manifest;                                // Encoded; empty with kRemove.
    TimePoint deadline;
    NameQuotas quotas = {};  // Quotas of the cluster: those of other prefixes may be among them.
    // In so many failure domains each extent must be held before the commit, of a stripe as many as
    // the others can be computed from; repair makes the rest. 0: in all, and all members, as for
    // whatever clients publish.
    std::uint8_t held_min = 0;
  };

  explicit Publication(Request request) : request_(std::move(request)) {}

  // The revision of the name, or of its removal. None: it goes on.
  const std::optional<Result<std::uint64_t>>& result() const { return result_; }

  void Step(TimePoint now, const View& view, Outbox& out);
  bool Take(TimePoint now, const View& view, const Answer& answer, Outbox& out);
  // The metadata has another history now: what was found out so far says nothing of it.
  void Restart(TimePoint now);
  // Nobody will carry out what it asks for: it fails with `why`, unless it has a result.
  void GiveUp(Error why);
  TimePoint wake() const { return std::min(next_, request_.deadline); }

  // How long the manifests of all names are waited for: less than a client waits for one node, so
  // that it hears which are missing.
  static constexpr std::chrono::seconds kManifestsPatience{8};
  // The reason, for people, why this node cannot conclude what is published: names whose manifests
  // no node has. Empty: nothing that it knows of.
  static std::string Hindrance(const View& view);

 private:
  static constexpr std::chrono::seconds kPatience{5};  // With a question.
  static constexpr std::chrono::milliseconds kRetry{500};
  enum class Phase { kLook, kGeneration, kPrepare, kDoubt, kRecord, kHolders, kBody, kCommit };
  // An extent, with what is known of its replicas.
  struct Sought {
    ManifestExtent extent;
    std::set<std::string> asked;
    std::set<std::string> domains;  // In which a node holds it.
  };

  // All refusals go this way, and say so if a commit may still take effect.
  void Fail(Error refusal);
  void Fail(ErrorCode code, std::string message) { Fail({code, std::move(message)}); }
  // Whatever keeps it from another commit, this one may be made.
  void NoteUnanswered();
  void NoteUnderWay();
  void FailLate(const View& view);
  // For people: what it waits for.
  std::string Awaited(const View& view) const;
  // As Again, because of `why`.
  void Wait(TimePoint until, std::string why);
  void WaitForStore(TimePoint until, const Error& error);
  void WaitForSilent(TimePoint now);
  void NoteUnstored(std::size_t wanted);
  void Looked(TimePoint now, const Result<std::optional<MetaStore::KeyValue>>& found);
  void TookGeneration(TimePoint now, const Result<std::optional<MetaStore::KeyValue>>& found);
  void CheckMode();
  void ConcludeGone(const View& view);
  void Prepare(TimePoint now, const View& view, Outbox& out);
  bool CheckDomains(const View& view);
  bool CheckExtents(const View& view);
  // Checks that all members of each stripe are published, or none.
  bool CheckWholeStripes(const View& view);
  // `bases`: of extents that are published, a name on which the commit may rest.
  bool CheckPublished(const View& view, const std::string& what, const ManifestExtent& extent,
                      const NameTable::Wanted& wanted,
                      const std::map<ExtentId, std::string>& bases);
  bool CheckUploaded(const View& view, const std::string& what, const ManifestExtent& extent);
  // No failure domain is to hold two members of a stripe. Where repair makes the others, enough to
  // compute them is enough. False: it has failed, or asks more nodes where members are.
  bool CheckStripes(TimePoint now, const View& view, Outbox& out);
  bool CheckComputable();
  bool CheckFetched(const View& view);
  bool CheckSources(const View& view);
  void TookDoubted(TimePoint now, const Result<std::optional<MetaStore::KeyValue>>& found);
  void RecordUpload(TimePoint now, const View& view, Outbox& out);
  std::vector<std::string> HoldersOf(const View& view, const ExtentId& id) const;
  void AskHolders(TimePoint now, const View& view, Outbox& out);
  // Adds the next nodes that may hold it, up to `count`; how many.
  using Questions = std::map<std::string, std::vector<ManifestExtent>>;
  std::size_t AddQuestions(const View& view, Sought& sought, std::size_t count,
                           Questions& questions) const;
  void AskNodes(TimePoint now, Questions questions, Outbox& out);
  void StoreBodies(TimePoint now, const View& view, Outbox& out);
  void Commit(TimePoint now, const View& view, Outbox& out);
  // Adds what removes the name's manifest. False: not now.
  bool AddRemoval(const View& view, MetaStore::Commit& commit);
  // Adds tombstones of the name's revision, for extents that nothing else refers to.
  void AddTombstones(std::uint64_t revision, std::vector<ExtentId> last,
                     MetaStore::Commit& commit) const;
  void Committed(TimePoint now, const Result<MetaStore::Outcome>& outcome);
  void Again(TimePoint at);
  // Empty: what that node holds does not count, for it is to give everything away.
  std::string DomainOf(const View& view, const std::string& node) const;
  static void Note(Sought& sought, std::string domain);
  std::size_t HeldMin() const {
    return request_.held_min == 0 ? request_.replicas : request_.held_min;
  }
  // Missing members of stripes can be computed afterwards.
  bool IsRepaired() const { return request_.held_min != 0 && manifest_->has_code(); }
  // Failure domains that must hold the extents of files. A member of a stripe has no replica.
  std::size_t FilesHeldMin() const { return manifest_->has_code() ? 1 : HeldMin(); }
  // In which there are nodes that take extents.
  static std::set<std::string> Domains(const View& view, bool live_only);

  const Request request_;
  std::optional<Result<std::uint64_t>> result_;
  Phase phase_ = Phase::kLook;
  std::uint64_t base_revision_ = 0;  // Revision of the name, as the store said last; 0: absent.
  // The mirror has to show all that was published and removed until then.
  std::uint64_t generation_needed_ = 0;
  bool has_tried_ = false;        // A commit of ours may have had its effect.
  UnansweredCommits unanswered_;  // Those of them of which that is not known.
  // Revision of the name that a removal without an answer may have removed; 0: there is none.
  std::uint64_t removed_revision_ = 0;
  std::uint64_t lost_count_ = 0;  // Commits that lost to others.
  // Since then some name's manifest has been missing.
  std::optional<TimePoint> hindered_since_;
  TimePoint next_{};
  std::string waits_for_;  // Until then. For people.
  std::optional<DatasetManifest> manifest_;
  bool is_small_ = false;  // Its name is to hold the manifest: the commit is all that it writes.
  std::string doubted_;    // The key of an upload that the mirror does not show,
  std::string doubt_;      // and the refusal if the store does not have it either.
  std::map<ExtentId, Sought> sought_;
  std::map<ExtentId, StripePlace> places_;  // With an erasure code.
  std::map<std::string, std::string>
      silent_;           // Nodes that were asked in vain, and what came of it.
  int moved_count_ = 0;  // Times that extents of other names were nowhere, and may have moved.
  Sought body_;
  std::map<std::string, std::string> unstored_;  // Nodes that did not store it, and why.
  std::optional<std::string> full_;      // A node that had no room for it, and what it said,
  std::optional<TimePoint> full_since_;  // and since when there are too few others.
  std::map<std::string, std::uint64_t> compares_;  // Keys on whose revision the commit rests,
  std::set<std::string> uploads_;                  // those of uploads among them.
  std::map<CallId, std::pair<std::string, std::vector<ExtentId>>> questions_;
  std::map<CallId, std::string> stores_;
  CallId call_ = 0;
};

}  // namespace ffrecord::server::cluster
