#include "client/dataset/cluster_files.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "client/dataset/prefetch_hint.h"
#include "libffrecord/base/per_process.h"
#include "libffrecord/format/stripes.h"
#include "libffrecord/net/replicas/replica_places.h"
#include "libffrecord/net/replicas/replicated_files.h"
#include "libffrecord/net/rpc/remote_files.h"

namespace ffrecord::client {
namespace {

// The slot of each extent, in the order in which a manifest has them.
using Slots = std::vector<std::uint16_t>;

Slots SlotsOf(const DatasetManifest& manifest) {
  Slots slots;
  for (const ManifestFile& file : manifest.files)
    for (const ManifestExtent& extent : file.extents)
      slots.push_back(static_cast<std::uint16_t>(SlotOf(extent.id)));
  return slots;
}

// At most this many of the nodes that are up are asked to fetch or bring an extent.
constexpr std::size_t kFetchersMax = 4;

void KeepFetchers(const ClusterView& view, std::vector<net::NodeIndex>& nodes) {
  std::size_t up_count = 0;
  const auto is_last = [&](net::NodeIndex node) {
    return view.IsUp(node) && ++up_count == kFetchersMax;
  };
  const auto last = std::ranges::find_if(nodes, is_last);
  if (last != nodes.end()) nodes.erase(std::next(last), nodes.end());
}

// The extents of one manifest, by one slot map.
//
// For an extent with an origin, each node that is asked fetches what it lacks: the first is asked,
// and the next one only where that does not answer. Nodes that are down do not count among the few
// that may be asked.
class SlottedReplicas final : public net::ReplicaMap {
 public:
  // `replicas`: of each extent; 0: as many as the cluster has.
  SlottedReplicas(const ClusterView& view, std::shared_ptr<const Slots> slots, std::size_t replicas,
                  bool has_origins)
      : slots_(std::move(slots)), candidates_(kSlotCount), has_origins_(has_origins) {
    for (const std::uint16_t slot : *slots_) {
      ClusterView::Candidates& candidates = candidates_[slot];
      if (!candidates.nodes.empty()) continue;
      candidates = has_origins ? view.FetchersOf(slot) : view.CandidatesOf(slot, replicas);
      if (has_origins) KeepFetchers(view, candidates.nodes);
    }
  }

  std::span<const net::NodeIndex> NodesOf(std::uint32_t extent) const override {
    return candidates_[(*slots_)[extent]].nodes;
  }
  std::size_t OwnerCountOf(std::uint32_t extent) const override {
    return candidates_[(*slots_)[extent]].owner_count;
  }
  bool MovesExtents() const override { return true; }
  bool AsksInOrder() const override { return has_origins_; }

 private:
  const std::shared_ptr<const Slots> slots_;
  std::vector<ClusterView::Candidates> candidates_;  // The candidates of each slot that is used.
  const bool has_origins_;
};

// The extents of one manifest with an erasure code, by one slot map. Where an extent's owner does
// not answer, another node is asked, which brings what it lacks.
class StripedReplicas final : public net::ReplicaMap {
 public:
  StripedReplicas(const ClusterView& view, const std::vector<Stripe>& stripes) {
    std::map<std::pair<std::uint32_t, std::size_t>, std::vector<std::uint16_t>> owners;
    for (const Stripe& stripe : stripes) {
      auto& of_slot = owners[{stripe.slot(), stripe.members.size()}];
      if (of_slot.empty()) of_slot = view.map.StripeOwners(stripe.slot(), stripe.members.size());
      for (std::size_t i = 0; i < stripe.data_count; ++i) {
        candidates_.push_back(view.BringersOf(of_slot[i], SlotOf(stripe.members[i].id)));
        KeepFetchers(view, candidates_.back().nodes);
      }
    }
  }

  std::span<const net::NodeIndex> NodesOf(std::uint32_t extent) const override {
    return candidates_[extent].nodes;
  }
  std::size_t OwnerCountOf(std::uint32_t extent) const override {
    return candidates_[extent].owner_count;
  }
  bool MovesExtents() const override { return true; }
  bool AsksInOrder() const override { return true; }

 private:
  std::vector<ClusterView::Candidates> candidates_;  // The candidates of each extent.
};

class ClusterPlaces final : public net::ReplicaPlaces {
 public:
  ClusterPlaces(std::shared_ptr<Cluster> cluster, DatasetManifest manifest, std::string location)
      : cluster_(std::move(cluster)),
        manifest_(std::move(manifest)),
        location_(std::move(location)),
        slots_(std::make_shared<const Slots>(SlotsOf(manifest_))),
        stripes_(StripesOf(manifest_)),
        first_([this] {
          const auto view = cluster_->view();
          return Known{view, Make(*view, {})};
        }()),
        known_([] { return new Guarded; }) {}

  std::shared_ptr<const net::ReplicaView> Now() override {
    if (cluster_->view() == first_.cluster) return first_.replicas;
    Guarded& known = known_.Get();
    const std::lock_guard lock(known.mutex);
    const auto view = cluster_->view();  // No older one than that of a call before.
    if (known.newest.cluster != view) {
      const Known& before = known.newest.cluster != nullptr ? known.newest : first_;
      known.newest = {view, Make(*view, before.replicas->replicas)};
    }
    return known.newest.replicas;
  }
  void NoteVersion(std::uint32_t map_version) override { cluster_->NoteVersion(map_version); }
  void NoteFailure() override { cluster_->NoteFailure(); }

 private:
  using Replicas = std::vector<std::shared_ptr<const net::RemoteFiles>>;
  struct Known {
    std::shared_ptr<const ClusterView> cluster;
    std::shared_ptr<const net::ReplicaView> replicas;
  };
  struct Guarded {  // The views in one process.
    std::mutex mutex;
    Known newest;
  };

  // With the files at those places that `replicas` does not have yet.
  std::shared_ptr<const net::ReplicaView> Make(const ClusterView& view, Replicas replicas) const {
    for (std::size_t i = replicas.size(); i < view.places.size(); ++i)
      replicas.push_back(std::make_shared<const net::RemoteFiles>(
          cluster_->SessionAt(view.places[i]), manifest_, location_, cluster_->options()));
    return std::make_shared<const net::ReplicaView>(
        net::ReplicaView{std::move(replicas), MapOf(view)});
  }

  std::shared_ptr<const net::ReplicaMap> MapOf(const ClusterView& view) const {
    if (manifest_.has_code()) return std::make_shared<const StripedReplicas>(view, stripes_);
    return std::make_shared<const SlottedReplicas>(view, slots_, manifest_.replicas,
                                                   manifest_.has_origins());
  }

  const std::shared_ptr<Cluster> cluster_;
  const DatasetManifest manifest_;
  const std::string location_;
  const std::shared_ptr<const Slots> slots_;
  const std::vector<Stripe> stripes_;
  const Known first_;
  PerProcess<Guarded> known_;
};

std::unique_ptr<net::ReplicatedFiles> MakeFiles(std::shared_ptr<Cluster> cluster,
                                                DatasetManifest manifest,
                                                const std::string& location) {
  const SessionOptions options = cluster->options();
  return std::make_unique<net::ReplicatedFiles>(
      std::make_shared<ClusterPlaces>(std::move(cluster), std::move(manifest), location), options);
}

// Hints at several nodes, whose order is kept to meanwhile.
class ClusterHint final : public PrefetchHint {
 public:
  ClusterHint(std::shared_ptr<const net::ReplicatedFiles> files,
              std::vector<std::unique_ptr<PrefetchHint>> hints)
      : files_(std::move(files)), hints_(std::move(hints)) {
    files_->KeepToOrder();
  }
  ~ClusterHint() override { files_->StopKeepingToOrder(); }
  // If one is lost, all are to be sent again: the others read ahead what its node did.
  bool alive() override {
    return std::ranges::all_of(hints_, [](const auto& hint) { return hint->alive(); });
  }

 private:
  const std::shared_ptr<const net::ReplicatedFiles> files_;
  const std::vector<std::unique_ptr<PrefetchHint>> hints_;
};

// A node that does not accept a connection is left out.
constexpr std::chrono::milliseconds kConnectTime{500};

// Sends the plan to all nodes that are up before it awaits the first answer: each opens the
// indexes. Empty if no node takes hints; fails if none takes this one.
Result<std::vector<std::unique_ptr<PrefetchHint>>> HintAtNodes(const Cluster& cluster,
                                                               const std::string& name,
                                                               std::uint64_t revision,
                                                               const EpochPlan& plan) {
  const auto view = cluster.view();
  const auto now = net::Clock::now();
  const auto deadline = now + std::min(cluster.options().timeout, kHintTimeout);
  std::vector<HintCall> calls;
  std::optional<Error> trouble;
  for (const net::NodeIndex place : view->PlacesUp()) {
    const auto session = cluster.SessionAt(view->places[place]);
    const auto connected = std::min<net::Deadline>(deadline, net::Clock::now() + kConnectTime);
    auto call = HintCall::Begin(*session, name, revision, plan, connected);
    if (call)
      calls.push_back(std::move(call).value());
    else
      trouble = std::move(call).error();
  }
  std::vector<std::unique_ptr<PrefetchHint>> hints;
  bool has_any = false;
  for (HintCall& call : calls) {
    auto hint = call.Await(deadline);
    has_any = has_any || hint;
    if (!hint)
      trouble = std::move(hint).error();
    else if (hint.value())
      hints.push_back(std::move(hint).value());
  }
  if (!has_any && trouble) return *std::move(trouble);
  return hints;
}

// --- A single daemon has everything: reads and hints need no choice ------------------------------

std::unique_ptr<RangeReader> FilesAtOne(const Cluster& cluster, DatasetManifest manifest,
                                        const std::string& location) {
  return std::make_unique<net::RemoteFiles>(cluster.SessionAt(cluster.view()->places.front()),
                                            std::move(manifest), location, cluster.options());
}

PublishedFiles OpenAtOne(const Cluster& cluster, DatasetManifest manifest, std::uint64_t revision,
                         const net::Location& location) {
  auto hinter = [session = cluster.SessionAt(cluster.view()->places.front()), name = location.name,
                 revision,
                 wait = std::min(cluster.options().timeout, kHintTimeout)](const EpochPlan& plan) {
    return SendPrefetchHint(*session, name, revision, plan, net::Clock::now() + wait);
  };
  return {FilesAtOne(cluster, manifest, location.ToString()), std::move(hinter),
          std::move(manifest)};
}

}  // namespace

std::unique_ptr<RangeReader> OpenClusterFiles(std::shared_ptr<Cluster> cluster,
                                              DatasetManifest manifest,
                                              const std::string& location) {
  if (cluster->is_one_daemon()) return FilesAtOne(*cluster, std::move(manifest), location);
  return MakeFiles(std::move(cluster), std::move(manifest), location);
}

PublishedFiles OpenClusterDataset(std::shared_ptr<Cluster> cluster, DatasetManifest manifest,
                                  std::uint64_t revision, const net::Location& location) {
  if (cluster->is_one_daemon()) return OpenAtOne(*cluster, std::move(manifest), revision, location);
  const bool has_origins = manifest.has_origins();
  const std::shared_ptr<const net::ReplicatedFiles> files =
      MakeFiles(cluster, manifest, location.ToString());
  // Nodes fetch what they lack at the first read.
  if (has_origins) return {files, {}, std::move(manifest)};
  auto hinter =
      [=, name = location.name](const EpochPlan& plan) -> Result<std::unique_ptr<PrefetchHint>> {
    auto hints = FFR_TRY(HintAtNodes(*cluster, name, revision, plan));
    if (hints.empty()) return std::unique_ptr<PrefetchHint>();
    return std::unique_ptr<PrefetchHint>(std::make_unique<ClusterHint>(files, std::move(hints)));
  };
  return {files, std::move(hinter), std::move(manifest)};
}

}  // namespace ffrecord::client
