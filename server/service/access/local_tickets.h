#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "libffrecord/net/protocol/messages.h"
#include "server/service/access/tokens.h"

namespace ffrecord::server {

// The clients that may come over the local socket: they were admitted over another connection,
// which stays open meanwhile. There each client receives a ticket, with a secret for each end, and
// on the local socket it is the client that it was on that connection: no token is shown there. A
// ticket is good once.
//
// Thread-safe.
class LocalTickets {
 public:
  explicit LocalTickets(std::uint64_t machine) : machine_(machine) {}

  // A new ticket for a client that was admitted with `token`; it is good until Withdraw() of it.
  net::LocalOffer Issue(const std::optional<Token>& token);
  void Withdraw(const net::LocalTicket& ticket);

  struct Admission {
    net::LocalSecret daemon_secret;  // Proves to the client that it has found the daemon.
    net::LocalSecret client_secret;
    std::optional<Token> token;
    // In constant time.
    bool IsProvedBy(std::span<const std::byte> credential) const;
  };
  // None: there is no such ticket, or no longer.
  std::optional<Admission> Take(const net::LocalTicket& ticket);

 private:
  const std::uint64_t machine_;
  std::mutex mutex_;
  std::map<net::LocalTicket, Admission> admissions_;  // At most one for each connection.
};

}  // namespace ffrecord::server
