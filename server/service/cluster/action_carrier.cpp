#include "server/service/cluster/action_carrier.h"

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <variant>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord::server {

using namespace cluster;  // NOLINT: the words of machines.

namespace {

using std::chrono_literals::operator""ms;

constexpr auto kLeaveTime = 500ms;

}  // namespace

// One action; a call for each kind.
struct ActionCarrier::Visitor {
  ActionCarrier& carrier;
  const CallId id;
  const TimePoint deadline;

  // The result of the store, as an answer. It comes on the store's thread, perhaps late.
  template <class T>
  MetaStore::Done<T> Answer() const {
    return [&carrier = carrier, inbox = carrier.machines_.inbox(), id = id](Result<T> result) {
      inbox->Post([&carrier, id, result = std::move(result)] {
        if (result) carrier.heard_ = Clock::now();
        carrier.machines_.Take({id, result});
      });
    };
  }

  void operator()(GetKey& call) const {
    carrier.store_.Get(std::move(call.key), deadline, Answer<std::optional<MetaStore::KeyValue>>());
  }
  void operator()(MetaStore::ListRequest& call) const {
    carrier.store_.List(std::move(call), deadline, Answer<MetaStore::Page>());
  }
  void operator()(MetaStore::Commit& call) const {
    carrier.store_.TryCommit(std::move(call), deadline, Answer<MetaStore::Outcome>());
  }
  void operator()(GrantLease& call) const {
    carrier.store_.GrantLease(call.ttl, deadline, Answer<MetaStore::Lease>());
  }
  void operator()(KeepLease& call) const {
    carrier.store_.KeepLease(call.lease, deadline,
                             Answer<std::optional<std::chrono::milliseconds>>());
  }
  void operator()(RevokeLease& call) const {
    carrier.store_.RevokeLease(call.lease, deadline, Answer<void>());
  }
  void operator()(WatchKeys& call) const {
    const auto watch = carrier.store_.Watch(
        std::move(call.prefix), call.from_revision,
        [&carrier = carrier, inbox = carrier.machines_.inbox(), id = id](MetaStore::News news) {
          inbox->Post([&carrier, id, news = std::move(news)] {
            if (news.kind == MetaStore::News::Kind::kEvents)
              carrier.heard_ = Clock::now();
            else
              carrier.watches_.erase(id);
            carrier.machines_.Take({id, news});
          });
        });
    carrier.watches_.emplace(id, watch);
  }

  void operator()(const EndWatch& call) const {
    const auto watch = carrier.watches_.extract(call.watch);
    if (!watch.empty()) carrier.store_.StopWatch(watch.mapped());
  }

  // Questions: to this node itself at once, to others by their threads.
  template <class T, class Question>
  void Ask(Question& question) const {
    const std::string node = question.node;
    if (node == carrier.node_)
      return carrier.Deliver(id, Result<T>(carrier.machines_.node().OnAsk(Clock::now(), question)));
    carrier.peers_.Ask<T>(
        node, deadline,
        [question = std::move(question), deadline = deadline](net::Channel& peer) {
          return CallPeer(peer, question, deadline);
        },
        [&carrier = carrier, id = id](Result<T> answer) { carrier.Deliver(id, answer); });
  }
  void operator()(AskHoldings& question) const { Ask<Holdings>(question); }
  void operator()(AskHeard& question) const { Ask<Flags>(question); }
  void operator()(AskBuried& question) const { Ask<Flags>(question); }
  void operator()(AskFilled& question) const { Ask<Flags>(question); }
  void operator()(AskKnown& question) const { Ask<Known>(question); }

  // Actions that move bytes: by threads that wait for disks and for other nodes.
  void operator()(FetchBody& call) const {
    carrier.peers_.PostBulk(
        [&carrier = carrier, id = id, deadline = deadline, call = std::move(call)] {
          carrier.Deliver(id, carrier.mover_.Fetch(call, deadline));
        });
  }
  void operator()(StoreBody& call) const {
    carrier.peers_.PostBulk(
        [&carrier = carrier, id = id, deadline = deadline, call = std::move(call)] {
          carrier.Deliver(id, carrier.mover_.Store(call, deadline));
        });
  }
  void operator()(PullExtent& call) const {
    // From now on: what its name leaves behind is not gone before it has come.
    auto coming = std::make_shared<NodeExtents::Coming>(carrier.extents_, call.extent.id);
    carrier.peers_.PostBulk([&carrier = carrier, id = id, deadline = deadline,
                             call = std::move(call), coming = std::move(coming)]() mutable {
      auto pulled = carrier.mover_.Pull(call, deadline);
      coming.reset();
      carrier.Deliver(id, std::move(pulled));
    });
  }
  void operator()(DropExtent& call) const {
    carrier.mover_.Drop(call.id);
    carrier.Deliver(id, Result<void>());
  }
};

void ActionCarrier::Carry(std::vector<Action> actions) {
  for (Action& action : actions)
    std::visit(Visitor{*this, action.id, action.deadline}, action.call);
}

void ActionCarrier::Deliver(CallId id, Reply reply) {
  machines_.Post([this, id, reply = std::move(reply)] { machines_.Take({id, reply}); });
}

void ActionCarrier::Leave(MetaStore::LeaseId lease) {
  for (const auto& [call, watch] : watches_) store_.StopWatch(watch);
  if (lease == 0) return;
  auto left = std::make_shared<std::promise<void>>();
  auto has_left = left->get_future();
  // So that the others need not wait until it has ended.
  store_.RevokeLease(lease, Clock::now() + kLeaveTime,
                     [left](const Result<void>&) { left->set_value(); });
  (void)WaitUntil(has_left, Clock::now() + kLeaveTime);
}

}  // namespace ffrecord::server
