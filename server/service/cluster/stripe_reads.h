#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "server/cluster/stripe_table.h"
#include "server/service/cluster/doubted_extents.h"
#include "server/service/cluster/task_threads.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// The members of stripes that clients read from this node while it does not hold them: when the
// first one asks, the extent is brought, from a node that has it or out of its stripe, and is an
// extent of this node like others from then on. Where it belongs elsewhere, it is surplus. Decision
// 52. Thread-safe. No call waits for other nodes or for a disk.
class StripeReads {
 public:
  // Brings an extent into the store, verified; on a thread of this.
  using Bring =
      std::function<Result<void>(const ManifestExtent& extent, const cluster::StripePlace& place)>;

  // `store` outlives it. `retry`: after a failure, until the next try.
  StripeReads(ExtentStore& store, Bring bring,
              std::chrono::milliseconds retry = std::chrono::milliseconds(1'000))
      : store_(store), doubts_(store), bring_(std::move(bring)), retry_(retry) {}
  ~StripeReads() { Stop(); }
  void Stop() {  // Waits for what is being brought or verified.
    threads_.Stop();
    doubts_.Stop();
  }

  // A name has stood for `before` and stands for `after` from now on. Null: for nothing.
  void Change(const std::shared_ptr<const DatasetManifest>& before,
              const std::shared_ptr<const DatasetManifest>& after);

  // A stand-in for a member that is not here, to be bound; on no disk. Null: no name has it in a
  // stripe.
  ExtentPtr Find(const ExtentId& id);
  // Its place in a stripe of some name; none: no name has it in a stripe.
  std::optional<cluster::StripePlace> PlaceOf(const ExtentId& id) const;
  // For each read of what Find() or Use() has returned: the extent of the store as soon as it is
  // there. Until then, if `may_bring`, one whose reads are answered BUSY while it is brought, and
  // NOT_HERE for a while after that has failed; else one whose reads are answered NOT_HERE. Null:
  // no name has it any more.
  ExtentPtr Use(const ExtentPtr& extent, bool may_bring);
  // For a read by a client that has found other bytes in an extent that is here than the right
  // ones: what its reads are to be answered from. It is verified (DoubtedExtents). Until then, of a
  // member, that is as of one that is being brought; one that is damaged counts as not here. Any
  // other extent is read as it is, as its reader has other replicas to turn to.
  ExtentPtr Doubted(const ExtentPtr& extent);

  const Counter& brought() const noexcept { return brought_; }
  const Counter& failed() const noexcept { return failed_; }
  const DoubtedExtents& doubts() const noexcept { return doubts_; }

 private:
  struct Entry {
    ManifestExtent extent;
    cluster::StripePlace place;
    std::uint32_t name_count = 0;
    std::shared_ptr<const Extent> awaited, refused;  // Made if needed.
    bool is_coming = false;
    Clock::time_point retry_at{};
  };

  ExtentPtr FindHere(const Entry& entry) const;
  static ExtentPtr StandIn(const Entry& entry, std::shared_ptr<const Extent>& made,
                           ErrorCode refusal);
  void Begin(Entry& entry);
  void BringOne(const ManifestExtent& extent, const cluster::StripePlace& place);

  ExtentStore& store_;
  DoubtedExtents doubts_;
  const Bring bring_;
  const std::chrono::milliseconds retry_;
  mutable std::mutex mutex_;
  std::unordered_map<ExtentId, Entry, HashExtentId> entries_;
  std::size_t coming_count_ = 0;
  Counter brought_, failed_;
  TaskThreads threads_{2};  // Each holds two extents in memory. Last: they use all the others.
};

}  // namespace ffrecord::server
