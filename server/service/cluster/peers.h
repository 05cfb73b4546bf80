#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/peer_calls.h"
#include "server/service/cluster/pull_pace.h"
#include "server/service/cluster/task_threads.h"

namespace ffrecord::server {

// The other nodes, as this one asks them. Each has a thread and a connection of its own for
// questions, so that one that is silent holds up no question to another; what moves bytes has
// connections and a few threads beside them. Thread-safe.
class Peers {
 public:
  // Life of one connection: less than its token is good for.
  static constexpr std::chrono::minutes kLinkTime{4};

  // Where a node is, and what this one knows of the cluster that both are of.
  struct Place {
    std::string address;  // Empty: it is not known.
    net::ClusterId cluster{};
    std::uint32_t map_version = 0;
    bool is_gone = false;  // The cluster does without it, and it is down.
  };
  // Called from any thread.
  using FindPlace = std::function<Place(const std::string& node)>;

  // `pull_bytes_per_s`: of all pulls together; 0: no limit.
  Peers(PeerDialer dialer, FindPlace find_place, std::uint64_t pull_bytes_per_s,
        PullClock pull_clock)
      : dialer_(std::move(dialer)),
        find_place_(std::move(find_place)),
        pull_clock_(std::move(pull_clock)),
        pull_pace_(pull_bytes_per_s) {}
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
  // For those tasks: a connection to that node, which has said that it is the one.
  Result<std::unique_ptr<net::Channel>> Dial(const std::string& node, net::Deadline deadline) const;
  // The nodes that this one cannot talk to since one of the two does not accept the other's
  // certificate or token, or since another node is at its address, and why.
  std::map<std::string, std::string> Refusals() const;
  // Asks those again, for nobody else may have a question to them: else a refusal that has ended
  // would be shown for ever. Forgets those that are gone. Does not wait.
  void AskRefusedAgain();
  // The verified bytes of the extent, from the first node that has them. Fails with kUnavailable.
  Result<std::vector<std::byte>> Fetch(const ManifestExtent& extent,
                                       std::span<const std::string> nodes,
                                       net::Deadline deadline) const {
    return Fetch(extent, nodes, deadline, {});
  }
  // Fetches an extent that this node is to hold, no faster than all pulls may be. Fails as Fetch().
  Result<std::vector<std::byte>> Pull(const ManifestExtent& extent,
                                      std::span<const std::string> nodes, net::Deadline deadline);

 private:
  struct Link {
    std::string address;
    std::unique_ptr<net::Channel> channel;
    net::Deadline made{};
    bool is_failing = false;
    TaskThreads thread{1};
  };
  void Post(const std::string& node, std::function<void(Link&)> task);
  Result<std::vector<std::byte>> Fetch(const ManifestExtent& extent,
                                       std::span<const std::string> nodes, net::Deadline deadline,
                                       const PauseBefore& pause) const;
  Result<void> AwaitPull(std::uint64_t size_bytes);

  // Tells operators once that a node begins to fail, with the reason, and that it answers again.
  static void Note(Link& link, const std::string& node, const Error* error);

  template <class T>
  Result<T> AskOver(Link& link, const std::string& node, net::Deadline deadline,
                    const std::function<Result<T>(net::Channel&)>& ask) {
    auto answer = TryOver<T>(link, node, deadline, ask);
    Note(link, node, answer ? nullptr : &answer.error());
    NoteRefusal(node, answer ? nullptr : &answer.error());
    return answer;
  }

  template <class T>
  Result<T> TryOver(Link& link, const std::string& node, net::Deadline deadline,
                    const std::function<Result<T>(net::Channel&)>& ask) {
    const std::string address = find_place_(node).address;
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

  std::vector<std::string> Refused() const;
  // Tells of a refusal once, until it has ended.
  void NoteRefusal(const std::string& node, const Error* error) const;

  const PeerDialer dialer_;
  const FindPlace find_place_;
  const PullClock pull_clock_;
  PullPace pull_pace_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::string> refusals_;
  std::set<std::string> asked_again_;  // And not answered yet.
  bool is_stopped_ = false;
  std::map<std::string, std::unique_ptr<Link>> links_;
  // As many as a node pulls at a time, and as many again for manifests.
  TaskThreads bulk_{8};
};

}  // namespace ffrecord::server
