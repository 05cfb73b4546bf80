#include "server/service/cluster/cluster_service.h"

#include <spdlog/spdlog.h>

#include <optional>

namespace ffrecord::server {
namespace {

cluster::ClusterNode::Options KnownTo(const ClusterState& state, const cluster::HistoryMark& mark) {
  cluster::ClusterNode::Options known;
  known.mark = mark;
  known.ancestors = state.ancestors;
  for (const auto& [text, name] : *state.names) known.known[text] = {name.record, name.revision};
  return known;
}

}  // namespace

Result<std::unique_ptr<ClusterService>> ClusterService::Start(const Options& options,
                                                              std::shared_ptr<MetaStore> store,
                                                              ExtentStore& extents,
                                                              BlockingStore& home) {
  if (!options.tls.certificate.empty() && options.tls.authorities.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "the nodes of a cluster with TLS check each other's certificates, and no "
                 "authority is given"};
  if (!options.adopt) FFR_TRY(Adoption::Finish(home));
  ClusterCache cache(home);
  const auto id = FFR_TRY(cache.ReadId());
  FFR_TRY(cache.CheckNode(options.node));
  auto state = FFR_TRY(cache.Load());
  if (id) state.cluster = *id;
  const auto mark = FFR_TRY(cache.ReadMark());
  auto adoption = options.adopt ? FFR_TRY(Adoption::Open(home)) : nullptr;
  std::unique_ptr<ClusterService> service(
      new ClusterService(options, std::move(store), extents,
                         {std::move(cache), std::move(state), mark, std::move(adoption)}));
  service->machines_.Enrol(id);
  service->loop_.Start();
  return service;
}

ClusterService::ClusterService(const Options& options, std::shared_ptr<MetaStore> store,
                               ExtentStore& extents, Known known)
    : options_(options),
      store_(std::move(store)),
      adoption_(std::move(known.adoption)),
      extents_(extents),
      shown_({options.node, options.replicas, options.adopt,
              [this](const ShownState::Manifest& before, const ShownState::Manifest& after) {
                stripe_reads_.Change(before, after);
                if (options_.on_name) options_.on_name(before.get(), after.get());
              }}),
      keeper_(std::move(known.cache), options.node, [inbox = inbox_] { inbox->Post([] {}); }),
      peers_(
          PeerDialer(options.node, options.token_keys, options.tls),
          [this](const std::string& node) {
            const ClusterStatePtr shown = state();
            return Peers::Place{shown->AddressOf(node), shown->cluster, shown->map_version(),
                                shown->IsGone(node)};
          },
          options.pull_bytes_per_s, options.pull_clock),
      doctor_(options.node, shown_, extents_, peers_),
      stripe_reads_(extents,
                    [this](const ManifestExtent& extent, const cluster::StripePlace& place) {
                      return doctor_.BringMember(extent, place);
                    }),
      holders_(options.node, options.replicas, shown_, stripe_reads_),
      mover_(options.node, shown_, extents_, peers_, doctor_,
             [this](const net::PutSeal& seal) { return clients_.CheckSeal(seal); }),
      machines_(
          options_, KnownTo(known.state, known.mark), extents_, inbox_, shown_, keeper_,
          [this](std::vector<cluster::Action> actions) { carrier_.Carry(std::move(actions)); }),
      carrier_(options.node, *store_, machines_, peers_, extents_, mover_),
      clients_(machines_, extents_, shown_, keeper_),
      operators_(options_, *store_, machines_),
      metadata_(options_, *store_, machines_, shown_),
      status_(options_, machines_, shown_, carrier_, peers_, adoption_.get()),
      driver_(adoption_ == nullptr
                  ? nullptr
                  : std::make_unique<AdoptionDriver>(options_, *adoption_, machines_, clients_,
                                                     extents_, keeper_)),
      loop_({machines_, shown_, keeper_, extents_, peers_, metadata_, driver_.get()},
            options.upload_grace) {
  if (adoption_ != nullptr) {
    extents_.Keep(adoption_->extents());
    spdlog::info("event=adopting names={} extents={}", adoption_->left_count(),
                 adoption_->extents().size());
  }
  shown_.Begin(std::move(known.state));
  AddMetrics();
}

void ClusterService::AddMetrics() {
  const auto show = [this](const char* name, const char* help, const Counter& counter) {
    metrics_.Add({name, help, "", &counter});
  };
  const ExtentMover::Counters& moved = mover_.counters();
  show("ffrecord_cluster_pulled_total", "Extents copied from other nodes.", moved.pulled);
  show("ffrecord_cluster_pulled_bytes_total", "Bytes of them.", moved.pulled_bytes);
  show("ffrecord_cluster_rebuilt_total", "Of them, members of stripes that were computed.",
       moved.rebuilt);
  show("ffrecord_cluster_brought_total",
       "Members of stripes that readers wanted here, copied or computed.", stripe_reads_.brought());
  show("ffrecord_cluster_brought_failures_total", "Tries to bring one that failed.",
       stripe_reads_.failed());
  show("ffrecord_cluster_dropped_total", "Extents that the cluster had the node remove.",
       moved.dropped);
  show("ffrecord_cluster_doubted_damaged_total",
       "Extents that readers reported, and that were damaged.", stripe_reads_.doubts().damaged());
  show("ffrecord_cluster_healed_total", "Damaged extents replaced from other nodes.",
       extents_.healed());
}

void ClusterService::Stop() {
  if (!loop_.Stop()) return;
  stripe_reads_.Stop();
  peers_.Stop();
  keeper_.Stop();
  carrier_.Leave(machines_.view().lease.lease());
  // The store answers all waiting calls as it ends: their callers must still be there.
  store_.reset();
}

std::shared_ptr<PeerRanges> ClusterService::MakePeerRanges() const {
  return std::make_shared<PeerRanges>(peers_,
                                      [this](const ExtentId& id) { return holders_.OthersOf(id); });
}

}  // namespace ffrecord::server
