#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/cluster/view.h"

namespace ffrecord::server::cluster {

// Brings this node's replicas to what the names and the slot map want: pulls those that it should
// hold and does not, those first that the fewest further losses would take from the cluster, and
// drops those that are others'. A member of a stripe that no node has is computed from the others.
// It looks at both by turns: what cannot be pulled, for want of room or of a replica, must not keep
// what is dropped from making room. If one look cannot take all extents, the next look takes those
// that follow, so that extents that cannot be pulled or dropped hold up nothing else.
//
// The lists of files of names that this node knows are never lost: one that no node has on its
// disks is written out anew.
//
// A replica is dropped only when every owner has promised to keep its own, by the same version of
// the slot map as this node's, and while this node's lease holds. An owner promises only by the
// version that it has itself. So two nodes never drop for each other's sake: of two versions, the
// holder of the older one gets no promise from the holder of the newer one, and the other way
// round.
class Replication {
 public:
  struct Options {
    std::chrono::milliseconds interval{1'000};  // Between two looks at everything.
    std::chrono::milliseconds patience{5'000};  // With a question.
    std::chrono::minutes pull_patience{5};
    std::size_t pulls_max = 4;     // At a time.
    std::size_t batch_max = 4096;  // Extents of one look.
  };
  explicit Replication(const Options& options) : options_(options) {}

  // Answers a peer's question.
  static Holdings OnAskHoldings(TimePoint now, const View& view, const AskHoldings& question);

  // All that this node should hold by that version of the slot map is here.
  bool IsFilled(const View& view, std::uint32_t version) const;
  // Extents that were wanted here when all that one look takes was last gone through, and for which
  // there was no room.
  std::uint64_t refused_count() const { return refused_count_; }

  // Extents that should be here and are not, and that no node that has answered holds undamaged.
  const std::set<ExtentId>& unheld() const { return unheld_; }
  // Extents that wait to be pulled and that another node says to hold undamaged, or that can be
  // computed: clients that want them are better served there.
  const std::set<ExtentId>& elsewhere() const { return elsewhere_; }

  void Step(TimePoint now, const View& view, Outbox& out);
  bool Take(TimePoint now, const View& view, const Answer& answer, Outbox& out);
  TimePoint wake() const { return next_; }

 private:
  struct Missing {
    ManifestExtent extent;
    std::vector<std::string> holders = {};  // Other nodes, as far as they have answered.
    std::vector<ExtentId> others = {};      // If there are none: the other members of its stripe,
    std::size_t needed_count = 0;           // of which it takes so many to compute it.
    bool is_known_list = false;             // Or: what is in it this node knows.
  };
  struct Question {
    std::string node;
    std::vector<ExtentId> extents;
    bool is_of_members = false;  // Asks about stripes, besides what is missing here.
  };
  struct Pulled {
    ExtentId id{};
    bool is_rebuilt = false;  // From its stripe, or from what this node knows.
  };
  struct Surplus {
    std::set<std::string> owners;    // All of them,
    std::set<std::string> promises;  // and those that have promised.
  };

  // The inputs of a look at everything.
  struct Seen {
    std::uint64_t names = 0;  // Change counts.
    std::uint64_t extents = 0;
    std::uint32_t map_version = 0;
    std::set<std::string> live;

    bool operator==(const Seen&) const = default;
  };
  static Seen LookAt(const View& view);

  void Look(TimePoint now, const View& view, Outbox& out);
  // Each asks other nodes about a batch of them. False: there are none.
  bool AskForMissing(TimePoint now, const View& view, Outbox& out);
  bool AskForSurplus(TimePoint now, const View& view, Outbox& out);
  // Asks for the members of stripes out of which something has to be computed: whether they are
  // where they are most likely to be.
  void AskForMembers(TimePoint now, const View& view, Outbox& out);
  // Finds, among extents that no node has that answers, those that are lists of files of names that
  // this node knows.
  void FindKnownLists(const View& view);
  // Nothing that was asked is left without an answer.
  void GoOn(TimePoint now, const View& view, Outbox& out);
  std::vector<ManifestExtent> FindMissing(const View& view, bool may_conclude, Outbox& out);
  std::vector<ManifestExtent> FindSurplus(const View& view) const;
  void Ask(TimePoint now, const std::map<std::string, std::vector<ManifestExtent>>& questions,
           std::uint32_t promise_version, bool is_of_members, Outbox& out);
  void NoteHoldings(const Question& question, const Holdings& holdings);
  static const StripePlace* PlaceOf(const View& view, const Missing& missing);
  static std::optional<StripePart> PartOf(const View& view, const Missing& missing);
  std::size_t Rank(const View& view, const Missing& missing) const;
  void Pull(TimePoint now, const View& view, Outbox& out);
  void Drop(TimePoint now, const View& view, Outbox& out);

  Options options_;
  TimePoint next_{};
  std::map<CallId, Question> questions_;
  std::map<CallId, Pulled> pulls_;
  std::map<ExtentId, Missing> missing_;
  std::multimap<std::size_t, ExtentId> order_;  // Missing extents by rank.
  std::set<ExtentId> members_held_;             // Members of stripes that some node holds.
  bool were_members_asked_ = false;
  std::map<ExtentId, Surplus> surplus_;
  std::uint32_t surplus_version_ = 0;  // Version of the slot map by which they are surplus.
  bool is_turn_of_missing_ = false;
  bool has_pulled_ = false;  // Since the last look.
  // The last ones of the batches that were looked at.
  ExtentId last_missing_{}, last_surplus_{};
  // Nothing was missing, or surplus, when all was so: there is no use in another walk. A walk over
  // 10^6 extents takes half a second.
  std::optional<Seen> filled_, tidy_;
  std::uint64_t refused_count_ = 0, refusing_count_ = 0;  // And of what is gone through now.
  std::set<ExtentId> unheld_;
  std::set<ExtentId> elsewhere_;
};

}  // namespace ffrecord::server::cluster
