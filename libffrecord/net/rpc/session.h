#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "libffrecord/base/back_off.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/per_process.h"
#include "libffrecord/net/rpc/breaker.h"
#include "libffrecord/net/rpc/connector.h"
#include "libffrecord/net/rpc/daemon_connection.h"
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
// A call that begins after the token in its file was replaced is made by the new one.
class Session {
 public:
  static std::shared_ptr<Session> Get(const Address& address,
                                      Transport transport = Transport::kAuto,
                                      const std::string& token_file = "",
                                      const std::string& tls_folder = "",
                                      const RdmaOptions& rdma = {},
                                      const std::optional<NodeIdentity>& node = std::nullopt);
  // The transport is the location's, or else that of `options`.
  static std::shared_ptr<Session> Get(const Location& location, const SessionOptions& options) {
    auto session = Get(location.address, location.transport.value_or(options.transport),
                       location.token_file, location.tls_folder, location.rdma, location.node);
    if (options.assume_running) session->NoteReached();
    return session;
  }

  Session(Connector connector, std::string token_file);  // For Get.
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // For messages: "ffrecord://host:port".
  const std::string& peer() const noexcept { return connector_.peer(); }

  // Runs `attempt` on a connection until it succeeds, fails with another code than kUnavailable,
  // or the deadline passes; kDeadlineExceeded is final too. `patient`: also a daemon that was never
  // reached is tried again. The thread's patience ends it too. `note`, if not empty, is called
  // after each try that failed with kUnavailable; `is_busy`: the daemon said BUSY.
  using Attempt = std::function<Result<void>(Connection&)>;
  using FailureNote = std::function<void(const Error&, bool is_busy)>;
  Result<void> Run(const Attempt& attempt, Deadline deadline, bool patient = false,
                   const FailureNote& note = {});

  // The work of Run() around each attempt, for code that does more with a connection than one call.
  class Tries;

  // Link of the connection made last; empty before.
  Connector::Link link();
  // Whether daemons write into our memory over the connection made last.
  bool uses_slabs() const noexcept { return uses_slabs_.load(std::memory_order_relaxed); }
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
  Result<Connector::Connected> Connect(Deadline deadline, RetryAfter& busy) const;
  // One that was made by the token of this number. Null: there is none. Requires the pool's lock.
  std::unique_ptr<Connection> TakeIdle(Pool& pool, std::uint64_t token);
  void NoteReached();
  static bool WasReached(Pool& pool);
  static void CloseDead(Pool& pool);  // Closes dead idle connections. Requires its lock.
  void GiveBack(std::unique_ptr<Connection> connection, bool was_parked);

  const Connector connector_;
  const std::string token_file_;  // Empty: there is no token.
  // Also in a forked child.
  std::atomic<bool> uses_slabs_ = false;
  mutable PerProcess<Pool> pool_;  // With a lock of its own.
};

// For the end of a call that failed with `last` until there was no time left: that says more than
// the deadline.
Error TriedUntilTimeout(Error last, const std::string& peer);

// One caller's tries to be served by the daemon: after each failure with kUnavailable it waits a
// while, which grows, for a place among the other callers, and for a connection.
//
// Thread-bound, but it may go from one thread to another. At its end it has no connection.
class Session::Tries {
 public:
  // When Begin() gives up a daemon that does not answer.
  enum class Until : std::uint8_t {
    kNeverReached,  // At once if it was never reached, else at the deadline: as Run().
    kDeadline,      // As Run() with `patient`.
    kFirstFailure,  // At once: its caller has other daemons to turn to.
  };
  Tries(Session& session, Until until, FailureNote note = {})
      : session_(session), until_(until), failure_note_(std::move(note)) {}

  // Takes a connection. Waits, and fails for good with what Run() would have returned.
  Result<void> Begin(Deadline deadline);
  // Takes a connection if that takes no wait; else false.
  bool BeginAtOnce();
  Connection* connection() noexcept { return connection_.get(); }
  // It is kept for long: nobody waits for what comes of it.
  void NoteConnected();
  // The caller keeps the connection, on which late answers are still to come, but asks for nothing:
  // others may have its place. False: too many are kept like this, so it has to be given back.
  bool Park();
  bool is_parked() const noexcept { return is_parked_; }
  // The caller asks again. False: all places are taken, so it has to be given back.
  bool Unpark();
  // The daemon has done what was asked for: the next failure is the first one.
  void NoteServed() noexcept { back_off_.reset(); }
  // Gives the connection back, with what came of it. kUnavailable: it may begin again.
  Result<void> End(Result<void> done);

 private:
  void Note(const Error& error, bool has_answered, std::chrono::milliseconds at_least);

  Session& session_;
  const Until until_;
  const FailureNote failure_note_;
  std::unique_ptr<Connection> connection_;
  bool is_parked_ = false;
  Breaker::Entry entry_ = Breaker::Entry::kNotYet;
  std::optional<Error> last_;
  std::optional<BackOff> back_off_;  // A random number costs more than many a call.
  Deadline next_{};
};

}  // namespace ffrecord::net
