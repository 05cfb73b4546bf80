#pragma once

#include <memory>
#include <optional>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "server/cluster/machine.h"
#include "server/cluster/records.h"
#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// How a node comes into its cluster: it makes sure that the store is of the cluster that its data
// belongs to, or founds it, and then puts itself on record as a member. Until then none of its
// machines runs, so that nothing is concluded from the store of another cluster, or from one that
// was lost and made anew.
//
// A machine, as those of server/cluster: stepped with time and answers, by one thread.
class Enrolment {
 public:
  struct Options {
    std::string node;
    std::string domain;
    std::uint32_t weight = 1;
    std::optional<net::ClusterId> known;  // That the data belongs to; none: it is new.
  };
  explicit Enrolment(Options options) : options_(std::move(options)) {}

  static constexpr std::string_view kClusterKey = "cluster";  // Its id, 16 bytes.

  bool is_done() const { return phase_ == Phase::kDone; }
  // Set once it is proved.
  const std::optional<net::ClusterId>& cluster() const { return cluster_; }
  // Why it does not go on; empty: it does. For people.
  const std::string& trouble() const { return trouble_; }

  void Step(cluster::TimePoint now, cluster::Outbox& out);
  // False: that was not ours.
  bool Take(cluster::TimePoint now, const cluster::Answer& answer);
  cluster::TimePoint wake() const {
    return is_done() || call_ != 0 ? cluster::TimePoint::max() : next_;
  }

 private:
  enum class Phase { kLook, kFound, kLookAtMember, kPutMember, kDone };
  using Found = Result<std::optional<MetaStore::KeyValue>>;

  void TakeCluster(cluster::TimePoint now, const Found& found);
  void TakeMember(cluster::TimePoint now, const Found& found);
  void TakeCommit(cluster::TimePoint now, const Result<MetaStore::Outcome>& outcome);
  void Retry(cluster::TimePoint now, Phase phase, std::string why);

  const Options options_;
  Phase phase_ = Phase::kLook;
  std::optional<net::ClusterId> cluster_;
  std::string trouble_ = "the coordinator has not answered yet";
  std::uint64_t member_revision_ = 0;
  cluster::MemberRecord member_;
  cluster::TimePoint next_{};
  cluster::CallId call_ = 0;
};

}  // namespace ffrecord::server
