#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "server/cluster/machine.h"
#include "server/cluster/records.h"
#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// The record of a daemon that begins to wait now.
cluster::WaitingRecord WaitsFromNowOn(std::string address, std::string daemon);

// How a node comes into its cluster: it makes sure that the store is of the cluster that its data
// belongs to, or founds it, that it is not above this program's feature level, puts itself on
// record as one that waits, and goes on once it has been let in. The founder lets itself in. Until
// then none of its machines runs, so that nothing is concluded from the store of another cluster,
// or from one that was lost and made anew, and nobody counts on a node that nobody wanted.
//
// A machine, as those of server/cluster: stepped with time and answers, by one thread.
class Enrolment {
 public:
  struct Options {
    std::string node;
    std::string domain;
    std::uint32_t weight = 1;
    std::optional<net::ClusterId> known;           // That the data belongs to; none: it is new.
    std::uint32_t level = cluster::kFeatureLevel;  // That this program knows.
    // Stored in the coordinator while it waits; keeps the `since` of its earlier starts.
    cluster::WaitingRecord waiting = {};
  };
  explicit Enrolment(Options options) : options_(std::move(options)) {}

  bool is_done() const { return phase_ == Phase::kDone; }
  // Set once it is proved.
  const std::optional<net::ClusterId>& cluster() const { return cluster_; }
  // The coordinator has answered, and knows nothing of the cluster to which this node's data
  // belongs.
  bool finds_nothing() const { return finds_nothing_; }
  // An operator wants it: the cluster is founded again under its id, once, with these keys, if
  // there is still nothing of it and the compares hold.
  void BeginAnew(MetaStore::Commit keys);
  // The store has changed: does not wait with its next look.
  void LookNow() { next_ = {}; }
  // Why it is not done yet; empty once it is. For people.
  const std::string& trouble() const { return trouble_; }

  void Step(cluster::TimePoint now, cluster::Outbox& out);
  // False: that was not ours.
  bool Take(cluster::TimePoint now, const cluster::Answer& answer);
  cluster::TimePoint wake() const {
    return is_done() || call_ != 0 ? cluster::TimePoint::max() : next_;
  }

 private:
  enum class Phase {
    kLook,
    kFound,
    kLookAtLevel,
    kLookAtMember,
    kPutMember,
    kLookAtWaiting,
    kPutWaiting,
    kDone
  };
  using Found = Result<std::optional<MetaStore::KeyValue>>;

  void TakeCluster(cluster::TimePoint now, const Found& found);
  void TakeLevel(cluster::TimePoint now, const Found& found);
  void TakeMember(cluster::TimePoint now, const Found& found);
  void TakeWaiting(cluster::TimePoint now, const Found& found);
  void GoOnWaiting(cluster::TimePoint now);
  void TakeCommit(cluster::TimePoint now, const Result<MetaStore::Outcome>& outcome);
  cluster::MemberRecord Record(cluster::MemberRecord::State state) const;
  void Retry(cluster::TimePoint now, Phase phase, std::string why);

  const Options options_;
  Phase phase_ = Phase::kLook;
  std::optional<net::ClusterId> cluster_;
  std::string trouble_ = "the coordinator has not answered yet";
  bool finds_nothing_ = false;
  std::optional<MetaStore::Commit> keys_;  // To found it again with.
  std::uint64_t member_revision_ = 0;
  cluster::MemberRecord member_;
  std::uint64_t waiting_revision_ = 0;
  cluster::WaitingRecord waiting_;
  bool has_told_ = false;  // Its waiting record is in the store.
  cluster::TimePoint next_{};
  cluster::CallId call_ = 0;
};

}  // namespace ffrecord::server
