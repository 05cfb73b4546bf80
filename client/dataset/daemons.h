#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "client/dataset/cluster.h"
#include "libffrecord/net/rpc/location.h"
#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {

// The server side of an address: either one daemon, or a cluster, whose nodes give the same
// answers. A value; one of the two is null.
struct Daemons {
  std::shared_ptr<net::Session> session;
  std::shared_ptr<Cluster> cluster;

  Daemons(std::shared_ptr<net::Session> one) : session(std::move(one)) {}
  Daemons(std::shared_ptr<Cluster> many) : cluster(std::move(many)) {}

  // For messages.
  std::string peer() const;
  // Runs `attempt` until it succeeds or `deadline`: at the daemon, as Session::Run, or at the
  // nodes, as Cluster::Run.
  Result<void> Run(const Cluster::Attempt& attempt, net::Deadline deadline,
                   std::chrono::milliseconds answer_time,
                   Cluster::Absence absence = Cluster::Absence::kIsAnAnswer) const;
};

// Finds out who serves an address. Several `locations` are one place only as nodes of a cluster:
// fails with kInvalidArgument if they are of none, and as Cluster::Find.
Result<Daemons> FindDaemons(std::span<const net::Location> locations,
                            const SessionOptions& options);

// Runs FindDaemons() at the first Find(). Thread-safe.
class DaemonFinder {
 public:
  DaemonFinder(std::vector<net::Location> locations, const SessionOptions& options)
      : locations_(std::move(locations)), options_(options) {}

  // Fails as FindDaemons, until it has once succeeded.
  Result<Daemons> Find();

 private:
  const std::vector<net::Location> locations_;
  const SessionOptions options_;
  std::mutex mutex_;
  std::optional<Daemons> found_;
};

}  // namespace ffrecord::client
