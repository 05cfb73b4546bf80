#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <ffrecord/result.h>

#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/peer_calls.h"
#include "server/service/cluster/task_threads.h"

namespace ffrecord::server {

// The other nodes, as this one asks them. Each has a thread and a connection of its own for
// questions, so that one that is silent holds up no question to another; what moves bytes has
// connections and a few threads beside them. Thread-safe.
class Peers {
 public:
  // The address of a node; empty: it is not known. Called from any thread.
  using AddressOf = std::function<std::string(const std::string& node)>;

  Peers(PeerDialer dialer, AddressOf address_of)
      : dialer_(std::move(dialer)), address_of_(std::move(address_of)) {}
  ~Peers() { Stop(); }
  void Stop();  // Joins; what has not been asked is dropped.

  template <class T>
  using Done = std::function<void(Result<T>)>;
  // `ask` of a channel to that node, on the node's thread.
  template <class T>
  void Ask(const std::string& node, net::Deadline deadline,
           std::function<Result<T>(net::Channel&)> ask, Done<T> done) {
    Post(node, [this, node, deadline, ask = std::move(ask), done = std::move(done)](Link& link) {
      done(AskOver<T>(link, node, deadline, ask));
    });
  }

  // Has a thread do something that moves bytes.
  void PostBulk(TaskThreads::Task task) { bulk_.Post(std::move(task)); }
  // For those tasks: a connection to that node.
  Result<std::unique_ptr<net::Channel>> Dial(const std::string& node, net::Deadline deadline) const;
  // The verified bytes of the extent, from the first node that has them. Fails with kUnavailable.
  Result<std::vector<std::byte>> Fetch(const ManifestExtent& extent,
                                       std::span<const std::string> nodes,
                                       net::Deadline deadline) const;

 private:
  // Of one connection: less than its token is good for.
  static constexpr std::chrono::minutes kLinkTime{4};

  struct Link {
    std::string address;
    std::unique_ptr<net::Channel> channel;
    net::Deadline made{};
    TaskThreads thread{1};
  };
  void Post(const std::string& node, std::function<void(Link&)> task);

  template <class T>
  Result<T> AskOver(Link& link, const std::string& node, net::Deadline deadline,
                    const std::function<Result<T>(net::Channel&)>& ask) {
    const std::string address = address_of_(node);
    const bool is_old = net::Clock::now() - link.made > kLinkTime;
    if (is_old || link.address != address || !link.channel || !link.channel->reusable() ||
        !link.channel->Alive()) {
      link.channel = nullptr;
      link.channel = FFR_TRY(Dial(node, deadline));
      link.address = address;
      link.made = net::Clock::now();
    }
    auto answer = ask(*link.channel);
    if (!answer && !link.channel->reusable()) link.channel = nullptr;
    return answer;
  }

  const PeerDialer dialer_;
  const AddressOf address_of_;
  std::mutex mutex_;
  bool is_stopped_ = false;
  std::map<std::string, std::unique_ptr<Link>> links_;
  // As many as a node pulls at a time, and as many again for manifests.
  TaskThreads bulk_{8};
};

}  // namespace ffrecord::server
