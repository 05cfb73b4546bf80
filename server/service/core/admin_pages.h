#pragma once

#include <string>
#include <string_view>

#include <ffrecord/result.h>

#include "server/service/admin/admin_server.h"
#include "server/service/core/server_parts.h"
#include "server/service/core/upkeep.h"
#include "server/service/metrics_page.h"
#include "server/storage/write_health.h"

namespace ffrecord::server {

// The pages of a daemon for its operators: metrics, health, names and the cluster.
//
// Thread-safe: the admin server's threads call what Make() returns, from before the daemon's parts
// are there. Owns nothing.
class AdminPages {
 public:
  // Both outlive this, and the pages that were made.
  AdminPages(const ServerParts& parts, const Upkeep& upkeep) : parts_(parts), upkeep_(upkeep) {}
  AdminPages(const AdminPages&) = delete;
  AdminPages& operator=(const AdminPages&) = delete;

  // All pages; the token is left out.
  AdminServer::Pages Make() const;
  // "none", or which clients are let in: "tokens", "certificates", "certificates,tokens".
  std::string_view Authentication() const;

 private:
  bool is_starting() const;
  std::string WhyNotReady() const;
  WriteHealth::Report Writes() const;
  std::string Remark() const;
  std::string Metrics() const;
  void ShowDaemon(MetricsPage& page, bool is_open) const;
  void ShowDisks(MetricsPage& page, bool is_open) const;
  Result<void> MayShowNames() const;
  Result<std::string> Datasets() const;
  Result<ClusterService*> ClusterOrError() const;
  Result<std::string> Lost() const;

  const ServerParts& parts_;
  const Upkeep& upkeep_;
};

}  // namespace ffrecord::server
