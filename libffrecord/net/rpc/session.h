#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/per_process.h"
#include "libffrecord/net/rpc/connection.h"
#include "libffrecord/net/rpc/connector.h"
#include "libffrecord/net/rpc/location.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::net {

// One daemon as this process sees it: connections to it, and calls with a deadline that are tried
// again while it cannot be reached.
//
// One for each address with what is said behind it, and process, shared by all who talk to that
// daemon.
// Thread-safe: each call takes a connection for itself. A forked child starts with connections of
// its own.
//
// Every call ends by its deadline. A daemon that was never reached is given up at once with
// kUnavailable, which says how to start one; after a first success a call tries again, with
// back-off, until its deadline. A daemon that says BUSY is left alone for as long as it wants; to
// one that does not answer only one caller goes at a time. A call that was repeated has one effect.
class Session {
 public:
  static std::shared_ptr<Session> Get(const Address& address,
                                      Transport transport = Transport::kAuto,
                                      const std::string& token_file = "",
                                      const std::string& tls_folder = "",
                                      const RdmaOptions& rdma = {});
  // The transport is the location's, or else that of `options`.
  static std::shared_ptr<Session> Get(const Location& location, const SessionOptions& options) {
    auto session = Get(location.address, location.transport.value_or(options.transport),
                       location.token_file, location.tls_folder, location.rdma);
    if (options.assume_running) session->NoteReached();
    return session;
  }

  explicit Session(Connector connector);  // For Get.
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // For messages: "ffrecord://host:port".
  const std::string& peer() const noexcept { return connector_.peer(); }

  // Runs `attempt` on a connection until it succeeds, fails with another code than kUnavailable,
  // or the deadline passes; kDeadlineExceeded is final too. `patient`: also a daemon that was never
  // reached is tried again. The thread's patience ends it too.
  using Attempt = std::function<Result<void>(Connection&)>;
  Result<void> Run(const Attempt& attempt, Deadline deadline, bool patient = false);

  // Of the connection made last; empty before.
  Connector::Link link();
  // Memory for what is to be read from this daemon: such that it can write there itself, if it can.
  Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const;

  // Before an upload over `connection`: gives the daemon memory to take it from, if it can. If that
  // may not be locked, link() says so and uploads go as payloads, unless the transport was
  // demanded.
  Result<void> PrepareUploads(Connection& connection, Deadline deadline);

  // A connection for the caller alone, beside those that calls share. Fails as they do, without
  // trying again.
  Result<std::unique_ptr<Connection>> ConnectApart(Deadline deadline) const;

  // The best of a few round trips.
  Result<std::chrono::microseconds> Ping(Deadline deadline);

  // Closes the idle connections for which `wanted` says no. For those who keep state in them.
  void CloseIdle(const std::function<bool(Connection&)>& unwanted);

 private:
  struct Pool;
  using RetryAfter = Channel::RetryAfter;
  Result<std::unique_ptr<Connection>> Take(Deadline deadline, RetryAfter& busy);
  void NoteReached();
  static bool WasReached(Pool& pool);
  static void CloseDead(Pool& pool);  // Of its idle connections. Requires its lock.
  void GiveBack(std::unique_ptr<Connection> channel);

  const Connector connector_;
  // Whether daemons write into our memory over the connection made last; also in a forked child.
  std::atomic<bool> uses_slabs_ = false;
  mutable PerProcess<Pool> pool_;  // With a lock of its own.
};

}  // namespace ffrecord::net
