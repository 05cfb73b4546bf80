#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/rpc/daemon_connection.h"
#include "libffrecord/net/rpc/rails.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::net {

// Makes connections to one daemon, over the best transport that both ends have, or the one that was
// demanded. Thread-safe.
//
// Fails as Channel does; with kInvalidArgument if a demanded transport cannot be had, or if the
// token's or TLS's files are not what they should be. `busy` is set if the daemon is too busy to
// greet, or is not the node that it should be.
class Connector {
 public:
  using RetryAfter = Channel::RetryAfter;

  // Which transport serves, and why; for people.
  struct Link {
    std::string transport;  // "shm", "rdma", "tcp" or "tls".
    std::string reason;
  };
  struct Connected {
    std::unique_ptr<Connection> connection;
    Link link;
  };

  // `node`: the one that is to answer; with any other daemon it fails with kUnavailable, before
  // that is asked for anything. A daemon that is too old to say which one it is passes for it.
  // None: whichever daemon answers.
  Connector(Address address, Transport transport, std::string tls_folder, RdmaOptions rdma,
            std::optional<NodeIdentity> node);

  // For messages: "ffrecord://host:port".
  const std::string& peer() const noexcept { return peer_; }
  Transport transport() const noexcept { return transport_; }

  // One connection. `token`: as TokenFile::Read() has it. `rails` are those of this process.
  Result<Connected> Connect(std::span<const std::byte> token, Rails& rails, Deadline deadline,
                            RetryAfter& busy) const;

  // That the demanded transport cannot be had, for which there is a remedy.
  Error CannotBeHad(const std::string& why, std::string_view remedy) const;

 private:
  using Made = Result<std::unique_ptr<Connection>>;
  Made Greet(Deadline deadline, std::span<const std::byte> token, RetryAfter& busy) const;
  Made ConnectRemotely(Deadline deadline, std::span<const std::byte> token, RetryAfter& busy) const;
  // That the right daemon answers.
  Result<void> CheckIdentity(const Channel& channel) const;
  Made ConnectLocally(const Connection& tcp, Deadline deadline, RetryAfter& busy) const;
  // Makes `tcp` one over RDMA, or another one in its place.
  Result<Link> GoOverRdma(std::unique_ptr<Connection>& tcp, Rails& rails, Deadline deadline,
                          std::span<const std::byte> token, RetryAfter& busy) const;
  Result<Link> TakeRail(Connection& tcp, Rails& rails, std::size_t rail, Deadline deadline) const;
  // The error of a call whose demanded transport failed with `why`, while `tcp` was made.
  Error DemandFailed(Connection& tcp, Error why, std::string_view remedy, Deadline deadline) const;

  Address address_;
  Transport transport_;
  std::string tls_folder_;
  RdmaOptions rdma_;
  std::optional<NodeIdentity> node_;
  std::string peer_;
};

}  // namespace ffrecord::net
