#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include <ffrecord/client/dataset.h>

#include "client/runtime/per_process.h"
#include "client/runtime/slab_pool.h"
#include "client/session/location.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::client {

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
  static std::shared_ptr<Session> Get(const net::Address& address,
                                      Transport transport = Transport::kAuto,
                                      const std::string& token_file = "",
                                      const std::string& tls_folder = "",
                                      const net::RdmaOptions& rdma = {});
  // The transport is the location's, or else that of `options`.
  static std::shared_ptr<Session> Get(const Location& location, const SessionOptions& options) {
    auto session = Get(location.address, location.transport.value_or(options.transport),
                       location.token_file, location.tls_folder, location.rdma);
    if (options.was_reached) session->NoteReached();
    return session;
  }

  Session(net::Address address, Transport transport, std::string token_file, std::string tls_folder,
          net::RdmaOptions rdma);  // For Get.
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // For messages: "ffrecord://host:port".
  const std::string& peer() const noexcept { return peer_; }

  // What `name` stands for. Fails with kNotFound, kInvalidArgument for a bad name.
  struct Resolved {
    DatasetManifest manifest;
    std::uint64_t revision = 0;
  };
  Result<Resolved> Resolve(std::string_view name, net::Deadline deadline);

  // Makes `name` stand for `manifest`, whose extents an Upload has brought; returns the revision.
  // Nothing is visible before, all of it after. With Mode::kSwap the name must be at
  // `expected_revision`. Fails with kConflict if the name is not as `mode` wants it, or if extents
  // of the manifest are gone because the upload was abandoned too long; kIo (ENOSPC).
  Result<std::uint64_t> Publish(std::string_view name, const DatasetManifest& manifest,
                                net::Publish::Mode mode, std::uint64_t expected_revision,
                                net::Deadline deadline);

  // Fails as a publication of `size_bytes` under `name` would for want of room: kIo with ENOSPC or
  // EDQUOT. A daemon that knows no such question has no objection.
  Result<void> CheckRoom(std::string_view name, std::uint64_t size_bytes, net::Deadline deadline);

  // The names that begin with `prefix`, sorted.
  Result<std::vector<net::ListReply::Entry>> List(std::string_view prefix, net::Deadline deadline);

  // Fails with kNotFound.
  Result<void> Remove(std::string_view name, net::Deadline deadline);

  // Runs `attempt` on a connection until it succeeds, fails with another code than kUnavailable,
  // or the deadline passes; kDeadlineExceeded is final too. `patient`: also a daemon that was never
  // reached is tried again. The thread's patience ends it too.
  using Attempt = std::function<Result<void>(net::Channel&)>;
  Result<void> Run(const Attempt& attempt, net::Deadline deadline, bool patient = false);

  // Which transport serves this process, and why; of the connection made last. Empty before.
  struct Link {
    std::string transport;
    std::string reason;
  };
  Link link();
  // Memory for what is to be read from this daemon: such that it can write there itself, if it can.
  Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const;

  // Before an upload over `channel`: gives the daemon memory to take it from, if it can. If that
  // may not be locked, link() says so and uploads go as payloads, unless the transport was
  // demanded.
  Result<void> PrepareUploads(net::Channel& channel, net::Deadline deadline);

  // A connection for the caller alone, beside those that calls share. Fails as they do, without
  // trying again.
  Result<std::unique_ptr<net::Channel>> ConnectApart(net::Deadline deadline) const;

  // The best of a few round trips.
  Result<std::chrono::microseconds> Ping(net::Deadline deadline);

  // Closes the idle connections for which `wanted` says no. For those who keep state in them.
  void CloseIdle(const std::function<bool(net::Channel&)>& unwanted);

 private:
  struct Pool;
  // Those that connect set `busy` if the daemon is too busy to greet.
  using RetryAfter = net::Channel::RetryAfter;
  Result<std::unique_ptr<net::Channel>> Take(net::Deadline deadline, RetryAfter& busy);
  Result<std::unique_ptr<net::Channel>> Connect(net::Deadline deadline, Link& link,
                                                RetryAfter& busy) const;
  // Makes `tcp` one over RDMA, or another one in its place.
  Result<void> GoOverRdma(std::unique_ptr<net::Channel>& tcp, net::Deadline deadline, Link& link,
                          std::span<const std::byte> token, RetryAfter& busy) const;
  Result<void> TakeRail(net::Channel& channel, std::size_t rail, net::Deadline deadline,
                        Link& link) const;
  // What becomes of a call whose demanded transport failed with `why`, while `tcp` was made.
  Error DemandFailed(net::Channel& tcp, Error why, std::string_view remedy,
                     net::Deadline deadline) const;
  Error CannotBeHad(const std::string& why, std::string_view remedy) const;
  Result<std::unique_ptr<net::Channel>> ConnectRemotely(net::Deadline deadline,
                                                        std::span<const std::byte> token,
                                                        RetryAfter& busy) const;
  Result<std::unique_ptr<net::Channel>> ConnectLocally(const net::Channel& tcp,
                                                       net::Deadline deadline,
                                                       RetryAfter& busy) const;
  void NoteReached();
  static bool WasReached(Pool& pool);
  static void CloseDead(Pool& pool);  // Of its idle connections. Requires its lock.
  void GiveBack(std::unique_ptr<net::Channel> channel);

  net::Address address_;
  Transport transport_;
  std::string token_file_;
  std::string tls_folder_;
  net::RdmaOptions rdma_;
  std::string peer_;
  // Whether daemons write into our memory over the connection made last; also in a forked child.
  std::atomic<bool> uses_slabs_ = false;
  mutable PerProcess<Pool> pool_;  // With a lock of its own.
};

}  // namespace ffrecord::client
