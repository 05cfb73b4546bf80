#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "server/cluster/machine.h"
#include "server/cluster/records.h"

namespace ffrecord::server::cluster {

// Keeps the lease of this node, and the key nodes/<id> under it: so others know that it is there.
//
// A lease is renewed at a third of its time. This node believes in it for less time than the store
// does: it counts from before it asked, and leaves out a sixteenth, so that its clock may run
// slower than the store's by as much. Where another process has the same id, this one has no lease
// until the other's has ended.
class LeaseKeeper {
 public:
  struct Options {
    std::string node;
    NodeRecord record;  // Its lease is filled in.
    std::chrono::milliseconds ttl{10'000};
    std::chrono::milliseconds retry{1'000};  // After a failure.
  };
  explicit LeaseKeeper(Options options) : options_(std::move(options)) {}

  // The node counts as one of the cluster: it may drop extents, promise to keep them, and lead.
  bool IsLeased(TimePoint now) const { return is_named_ && now < valid_until_; }
  // Half of the time is left: it takes uploads and publications.
  bool MayWrite(TimePoint now) const { return IsLeased(now) && valid_until_ - now >= ttl_ / 2; }
  std::uint64_t epoch() const { return options_.record.epoch; }
  // Where another process runs under this node's id, as long as it keeps this one from its lease;
  // empty: there is none.
  const std::string& rival() const { return rival_; }
  // 0 while there is none.
  MetaStore::LeaseId lease() const { return lease_; }

  // Whether the store may be asked, before Step(): not while it may be another than this node
  // knows. An older one may still have the lease without the key, or know it as another node's.
  void Allow(bool may_ask) { may_ask_ = may_ask; }
  // The store may have lost the key, though the lease goes on: not leased until it was looked at.
  void LookAgain(TimePoint now);
  void Step(TimePoint now, Outbox& out);
  // False: that was not ours.
  bool Take(TimePoint now, const Answer& answer, Outbox& out);
  TimePoint wake() const { return may_ask_ && call_ == 0 ? next_ : TimePoint::max(); }

 private:
  enum class Asked { kNothing, kGrant, kKeep, kName, kLook };

  void Ask(Asked what, Call call, TimePoint now, Outbox& out);
  void Forget(TimePoint retry_at);
  void Renewed(std::chrono::milliseconds ttl);
  void Granted(TimePoint now, const Answer& answer);
  void Kept(TimePoint now, const Answer& answer);
  void Named(TimePoint now, const Answer& answer);
  void Looked(TimePoint now, const Answer& answer);
  std::vector<std::byte> Value() const;

  const Options options_;
  std::chrono::milliseconds ttl_{};  // That the store granted.
  MetaStore::LeaseId lease_ = 0;
  bool is_named_ = false;
  bool may_ask_ = true;
  bool must_look_ = false;  // At what the key is: our commit lost, or may have been lost.
  std::string rival_;
  std::uint64_t replaced_revision_ = 0;  // Revision of our own key, under an older lease.
  TimePoint valid_until_{};
  TimePoint renew_at_{};
  TimePoint next_{};  // When there is something to do.
  CallId call_ = 0;   // One at a time.
  Asked asked_ = Asked::kNothing;
  TimePoint asked_at_{};
};

}  // namespace ffrecord::server::cluster
