// Carries out the actions that the machines of a node want done: calls of the store, questions to
// other nodes, work with extents.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "libffrecord/base/clock.h"
#include "server/service/cluster/cluster_service.h"

namespace ffrecord::server {

using namespace cluster;  // NOLINT: the words of machines.

// One action; a call for each kind.
struct ClusterService::Carrier {
  ClusterService& service;
  const CallId id;
  const TimePoint deadline;

  // The result of the store, as an answer. It comes on the store's thread, perhaps late.
  template <class T>
  MetaStore::Done<T> Answer() const {
    return [&service = service, inbox = service.inbox_, id = id](Result<T> result) {
      inbox->Post([&service, id, result = std::move(result)] {
        if (result) service.heard_ = Clock::now();
        service.Take({id, result});
      });
    };
  }

  void operator()(GetKey& call) const {
    service.store_->Get(std::move(call.key), deadline,
                        Answer<std::optional<MetaStore::KeyValue>>());
  }
  void operator()(MetaStore::ListRequest& call) const {
    service.store_->List(std::move(call), deadline, Answer<MetaStore::Page>());
  }
  void operator()(MetaStore::Commit& call) const {
    service.store_->TryCommit(std::move(call), deadline, Answer<MetaStore::Outcome>());
  }
  void operator()(GrantLease& call) const {
    service.store_->GrantLease(call.ttl, deadline, Answer<MetaStore::Lease>());
  }
  void operator()(KeepLease& call) const {
    service.store_->KeepLease(call.lease, deadline,
                              Answer<std::optional<std::chrono::milliseconds>>());
  }
  void operator()(RevokeLease& call) const {
    service.store_->RevokeLease(call.lease, deadline, Answer<void>());
  }
  void operator()(WatchKeys& call) const {
    const auto watch = service.store_->Watch(
        std::move(call.prefix), call.from_revision,
        [&service = service, inbox = service.inbox_, id = id](MetaStore::News news) {
          inbox->Post([&service, id, news = std::move(news)] {
            if (news.kind == MetaStore::News::Kind::kEvents)
              service.heard_ = Clock::now();
            else
              service.watches_.erase(id);
            service.Take({id, news});
          });
        });
    service.watches_.emplace(id, watch);
  }

  void operator()(const EndWatch& call) const {
    const auto watch = service.watches_.extract(call.watch);
    if (!watch.empty()) service.store_->StopWatch(watch.mapped());
  }

  // Questions: to this node itself at once, to others by their threads.
  template <class T, class Question>
  void Ask(Question& question) const {
    const std::string node = question.node;
    if (node == service.options_.node)
      return service.Deliver(id, Result<T>(service.node_.OnAsk(Clock::now(), question)));
    service.peers_.Ask<T>(
        node, deadline,
        [question = std::move(question), deadline = deadline](net::Channel& peer) {
          return CallPeer(peer, question, deadline);
        },
        [&service = service, id = id](Result<T> answer) { service.Deliver(id, answer); });
  }
  void operator()(AskHoldings& question) const { Ask<Holdings>(question); }
  void operator()(AskHeard& question) const { Ask<Flags>(question); }
  void operator()(AskBuried& question) const { Ask<Flags>(question); }
  void operator()(AskFilled& question) const { Ask<Flags>(question); }
  void operator()(AskKnown& question) const { Ask<Known>(question); }

  // Actions that move bytes: by threads that wait for disks and for other nodes.
  void operator()(FetchBody& call) const {
    service.peers_.PostBulk(
        [&service = service, id = id, deadline = deadline, call = std::move(call)] {
          service.Deliver(id, FetchAll(service, call, deadline));
        });
  }
  void operator()(StoreBody& call) const {
    service.peers_.PostBulk(
        [&service = service, id = id, deadline = deadline, call = std::move(call)] {
          service.Deliver(id, Store(service, call, deadline));
        });
  }
  void operator()(PullExtent& call) const {
    // From now on: what its name leaves behind is not gone before it has come.
    auto coming = std::make_shared<NodeExtents::Coming>(service.extents_, call.extent.id);
    service.peers_.PostBulk([&service = service, id = id, deadline = deadline,
                             call = std::move(call), coming = std::move(coming)]() mutable {
      auto pulled = Pull(service, call, deadline);
      coming.reset();
      service.Deliver(id, std::move(pulled));
    });
  }
  void operator()(DropExtent& call) const {
    service.extents_.Drop(call.id);
    service.counters_.dropped.Add();
    service.Deliver(id, Result<void>());
  }

  // All but this node.
  static std::vector<std::string> Others(const ClusterService& service,
                                         std::vector<std::string> nodes) {
    std::erase(nodes, service.options_.node);
    return nodes;
  }

  static Result<Body> FetchAll(ClusterService& service, const FetchBody& call, TimePoint deadline) {
    const auto others = Others(service, call.nodes);
    Body body;
    for (const ManifestExtent& extent : call.extents) {
      auto bytes = service.extents_.Read(extent);
      if (!bytes) bytes = service.peers_.Fetch(extent, others, deadline);
      if (!bytes) bytes = Restore(service, extent, std::move(bytes).error());
      if (!bytes) return std::move(bytes).error();
      body.insert(body.end(), bytes.value().begin(), bytes.value().end());
    }
    return body;
  }

  // Where no node has the extent of a manifest any more, this node may still know what it said:
  // then it is put on disk again, for all. `why`: what is returned if it does not.
  static Result<Body> Restore(ClusterService& service, const ManifestExtent& extent, Error why) {
    const ClusterStatePtr known = service.state();
    const auto is_of = [&](const auto& entry) {
      return entry.second.manifest && entry.second.record.body == std::vector{extent};
    };
    const auto name = std::ranges::find_if(*known->names, is_of);
    if (name == known->names->end()) return why;
    auto bytes = FFR_TRY(EncodeDatasetManifest(*name->second.manifest));
    FFR_TRY(CheckBytes(extent, bytes));
    spdlog::warn("event=manifest_restored name={} why=\"{}\"", name->first, why.message);
    if (const auto written = service.extents_.Write(extent, bytes); !written)
      spdlog::error("event=manifest_not_restored name={} error=\"{}\"", name->first,
                    written.error().message);
    return bytes;
  }

  static Result<void> Store(ClusterService& service, const StoreBody& call, TimePoint deadline) {
    if (call.node != service.options_.node) {
      const auto peer = FFR_TRY(service.peers_.Dial(call.node, deadline));
      return StoreExtent(*peer, call.extent, call.bytes, deadline);
    }
    service.extents_.NoteHeard(UploadOf(call.extent.id));
    FFR_TRY(service.CheckSeal({call.extent.id, call.extent.xxh3}));
    return service.extents_.Write(call.extent, call.bytes);
  }

  static Result<Body> BytesOf(ClusterService& service, const PullExtent& call, TimePoint deadline) {
    if (!call.nodes.empty())
      return service.peers_.Pull(call.extent, Others(service, call.nodes), deadline);
    if (call.part) return service.Rebuild(*call.part, deadline, /*is_paced=*/true);
    return Restore(service, call.extent, {ErrorCode::kNotFound, "no node that answers has it"});
  }

  static Result<void> Pull(ClusterService& service, const PullExtent& call, TimePoint deadline) {
    // Before its bytes cross the network.
    FFR_TRY(service.extents_.store().CheckTakes(call.extent.size_bytes));
    const auto bytes = FFR_TRY(BytesOf(service, call, deadline));
    if (call.nodes.empty() && call.part) service.counters_.rebuilt.Add();
    FFR_TRY(service.extents_.Write(call.extent, bytes));
    service.counters_.pulled.Add();
    service.counters_.pulled_bytes.Add(bytes.size());
    return {};
  }
};

void ClusterService::Carry(std::vector<Action> actions) {
  for (Action& action : actions)
    std::visit(Carrier{*this, action.id, action.deadline}, action.call);
}

void ClusterService::Deliver(CallId id, Reply reply) {
  inbox_->Post([this, id, reply = std::move(reply)] { Take({id, reply}); });
}

}  // namespace ffrecord::server
