#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::server {

// Pages for operators, over HTTP: GET of
//
//   /             the dashboard, one page that asks for nothing but the two below
//   /metrics      Prometheus text
//   /datasets     JSON: {"datasets": [{"name", "size_bytes", "file_count"}], "more": false}
//   /cluster      JSON: what a node of a cluster knows of it; else 404
//   /cluster/slots  JSON: for each slot its nodes, its extents, and how many of them lack replicas
//   /cluster/plan   JSON: what would be copied if ?down=lost, ?without=NODE (many times)
//   /cluster/lost   JSON: names with extents that no node holds undamaged
//   /healthz      200: the process answers
//   /readyz       200 if it takes requests, else 503 and why
//
// It changes nothing, and reads no body. Each exchange has a time and a number of bytes, and a
// connection beyond those that are served at one time cuts off the oldest: a client that is slow
// holds up nobody. With a token it asks for that, as a bearer token or, for browsers, as the
// password of anybody; but health it tells everybody. A web page of somebody else's cannot read it,
// under whatever name it reaches this port.
class AdminServer {
 public:
  // A change of a cluster, as its plan is asked for.
  struct PlannedChange {
    bool are_down_lost = false;
    std::set<std::string> without;
  };
  // Called from threads of the admin server, several at a time.
  struct Pages {
    std::function<std::string()> metrics;
    std::function<Result<std::string>()> datasets;
    std::function<Result<std::string>()> cluster;
    std::function<Result<std::string>()> cluster_slots;
    std::function<Result<std::string>(const PlannedChange&)> cluster_plan;
    std::function<Result<std::string>()> cluster_lost;
    std::function<std::string()> not_ready;  // Why; empty: ready.
    std::function<std::string()> remark;     // A remark that /readyz adds when the daemon is ready.
    std::string token;                       // The token that all but health wants; empty: none.
  };

  // Serves when it returns. Fails with kConflict if the port is in use, kInvalidArgument if there
  // is no such address here.
  static Result<std::unique_ptr<AdminServer>> Start(const net::Address& address, Pages pages);
  ~AdminServer();  // Waits for what is being answered.
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  const net::Address& address() const noexcept;

 private:
  struct Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// The token in the file at `path`: its first line. Empty: no path. Fails with kNotFound, kDenied if
// others than the owner can read it, kInvalidArgument if it has fewer than 16 characters.
Result<std::string> ReadAdminToken(const std::filesystem::path& path);

}  // namespace ffrecord::server
