#include "client/dataset/daemons.h"

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

Result<Daemons> DaemonFinder::Find() {
  {
    const std::lock_guard lock(mutex_);
    if (found_) return *found_;
  }
  const auto cluster = FFR_TRY(Cluster::Find(locations_, options_));
  if (cluster == nullptr && locations_.size() > 1)
    return Error{ErrorCode::kInvalidArgument,
                 locations_.front().address.ToString() +
                     " is of no cluster: several daemons that are not one cluster are for reading "
                     "and publishing datasets only"};
  const Daemons found = cluster != nullptr
                            ? Daemons(cluster)
                            : Daemons(net::Session::Get(locations_.front(), options_));
  const std::lock_guard lock(mutex_);
  if (!found_) found_ = found;
  return *found_;
}

}  // namespace ffrecord::client
