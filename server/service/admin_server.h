#pragma once

#include <functional>
#include <memory>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::server {

// What operators look at, over HTTP: GET of
//
//   /             the dashboard, one page that asks for nothing but the two below
//   /metrics      Prometheus text
//   /datasets     JSON: {"datasets": [{"name", "size_bytes", "file_count"}], "more": false}
//   /healthz      200: the process answers
//   /readyz       200 if it takes requests, else 503 and why
//
// It changes nothing and asks nobody who they are. A web page of somebody else's cannot read it,
// under whatever name it reaches this port.
class AdminServer {
 public:
  // Called from threads of the admin server, several at a time.
  struct Pages {
    std::function<std::string()> metrics;
    std::function<Result<std::string>()> datasets;
    std::function<std::string()> not_ready;  // Why; empty: ready.
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

}  // namespace ffrecord::server
