#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/cluster/view.h"

namespace ffrecord::server::cluster {

// Leads the cluster if nobody else does. The leader decides where slots lie, gives up silent
// uploads, takes tombstones away whose work is done, and lets new nodes join if it is to.
//
// The node that creates the key `leader` under its lease leads until that key is gone. All that a
// leader commits compares the key, so one that has been deposed changes nothing, whatever it
// believes.
class Leader {
 public:
  struct Options {
    std::uint32_t row_size = 3;  // Nodes for each slot.
    std::uint32_t replicas = 1;  // With fewer failure domains there is trouble.
    std::chrono::milliseconds interval{1'000};
    std::chrono::milliseconds patience{5'000};
    std::chrono::milliseconds down_grace{600'000};    // Before others take over a node's replicas.
    std::chrono::milliseconds upload_grace{600'000};  // Silence after which one is given up.
    bool approves_members = false;                    // Those that wait join without an operator.
  };
  explicit Leader(const Options& options) : options_(options) {}

  bool is_leading() const { return fence_ != 0; }
  // Why no map is made, or replicas have no place; empty: all is well. For people.
  const std::string& trouble() const { return trouble_; }

  void Update(const View& view);  // The mirror has changed.
  void Step(TimePoint now, const View& view, Outbox& out);
  bool Take(TimePoint now, const View& view, const Answer& answer, Outbox& out);
  TimePoint wake() const { return next_; }

 private:
  // A key, with its revision when the question was asked: the answers are about that one.
  struct Subject {
    std::string key;
    std::uint64_t revision = 0;
  };
  enum class Asked { kNothing, kLead, kMap, kFilled, kHeard, kBuried, kCommit };

  void Campaign(TimePoint now, const View& view, Outbox& out);
  void NoteDown(TimePoint now, const View& view);
  // Adds that this node leads from now on to the history of the metadata.
  void AddTerm(const View& view, MetaStore::Commit& commit);
  std::vector<PlacedNode> Placeable(TimePoint now, const View& view) const;
  // Each begins what it has to do, if there is something: one thing at a time.
  bool ApproveMembers(TimePoint now, const View& view, Outbox& out);
  bool ChangeMap(TimePoint now, const View& view, Outbox& out);
  bool ForgetRebuilt(TimePoint now, const View& view, Outbox& out);
  bool ForgetPending(TimePoint now, const View& view, Outbox& out);
  bool AskFilledNodes(TimePoint now, const View& view, Outbox& out);
  bool AskAboutUploads(TimePoint now, const View& view, Outbox& out);
  bool AskAboutTombstones(TimePoint now, const View& view, Outbox& out);
  void Finish(TimePoint now, const View& view, Outbox& out);
  void ForgetPreviousMap(TimePoint now, const View& view, Outbox& out);
  void NoteHeard(TimePoint now);
  void GiveUpUploads(TimePoint now, Outbox& out);
  void RemoveTombstones(TimePoint now, Outbox& out);
  void Commit(TimePoint now, MetaStore::Commit commit, Outbox& out);
  template <class Question>
  void Ask(TimePoint now, const std::string& node, Question question, Outbox& out);
  // To all members that count.
  template <class Question>
  void AskAll(TimePoint now, const View& view, const Question& question, Outbox& out);

  Options options_;
  TimePoint next_{};
  std::uint64_t campaign_count_ = 0;
  std::uint64_t fence_ = 0;  // Revision of our key `leader`; 0: we do not lead.
  std::string trouble_;
  std::map<std::string, TimePoint> down_since_;
  std::map<std::string, TimePoint> uploads_seen_;  // Since when, by key.
  Asked asked_ = Asked::kNothing;
  CallId commit_ = 0;
  std::uint64_t awaited_ = 0;  // The revision of our last commit: first the mirror has to show it.
  std::map<CallId, std::string> questions_;
  std::vector<Subject> subjects_;  // The subjects of the questions,
  Flags flags_;                    // and what all answers come to.
  std::string last_tombstone_;     // Asked about last.
  int turn_ = 0;
};

}  // namespace ffrecord::server::cluster
