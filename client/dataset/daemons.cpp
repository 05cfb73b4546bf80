#include "client/dataset/daemons.h"

#include <utility>

namespace ffrecord::client {

std::string Daemons::peer() const {
  if (session != nullptr) return session->peer();
  const auto view = cluster->view();
  return std::string(net::Location::kScheme) + view->places.front().location.address.ToString();
}

Result<void> Daemons::Run(const Cluster::Attempt& attempt, net::Deadline deadline,
                          std::chrono::milliseconds answer_time, Cluster::Absence absence) const {
  if (cluster != nullptr) return cluster->Run(attempt, deadline, answer_time, absence);
  return session->Run([&](net::Connection& connection) { return attempt(connection, deadline); },
                      deadline);
}

Result<Daemons> FindDaemons(std::span<const net::Location> locations,
                            const SessionOptions& options) {
  if (auto cluster = FFR_TRY(Cluster::Find(locations, options))) return Daemons(std::move(cluster));
  if (locations.size() == 1) return Daemons(net::Session::Get(locations.front(), options));
  std::string addresses;
  for (const net::Location& location : locations)
    addresses += (addresses.empty() ? "" : ", ") + location.address.ToString();
  return Error{ErrorCode::kInvalidArgument,
               addresses +
                   ": an address of several daemons is that of a cluster, and these are of no "
                   "cluster; name one of them, or make them nodes of one, which keeps replicas "
                   "(ffrecordd --cluster)"};
}

Result<Daemons> DaemonFinder::Find() {
  {
    const std::lock_guard lock(mutex_);
    if (found_) return *found_;
  }
  const Daemons found = FFR_TRY(FindDaemons(locations_, options_));
  const std::lock_guard lock(mutex_);
  if (!found_) found_ = found;
  return *found_;
}

}  // namespace ffrecord::client
