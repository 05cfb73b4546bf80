#include "server/service/access/local_tickets.h"

#include <openssl/crypto.h>

#include <utility>

#include "libffrecord/base/random.h"

namespace ffrecord::server {

net::LocalOffer LocalTickets::Issue(const std::optional<Token>& token) {
  const net::LocalOffer offer{machine_, Random<net::LocalTicket>(), Random<net::LocalSecret>(),
                              Random<net::LocalSecret>()};
  const std::lock_guard lock(mutex_);
  admissions_.emplace(offer.ticket, Admission{offer.daemon_secret, offer.client_secret, token});
  return offer;
}

void LocalTickets::Withdraw(const net::LocalTicket& ticket) {
  const std::lock_guard lock(mutex_);
  admissions_.erase(ticket);
}

std::optional<LocalTickets::Admission> LocalTickets::Take(const net::LocalTicket& ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = admissions_.find(ticket);
  if (found == admissions_.end()) return std::nullopt;
  auto admission = std::move(found->second);
  admissions_.erase(found);
  return admission;
}

bool LocalTickets::Admission::IsProvedBy(std::span<const std::byte> credential) const {
  return credential.size() == client_secret.size() &&
         ::CRYPTO_memcmp(credential.data(), client_secret.data(), client_secret.size()) == 0;
}

}  // namespace ffrecord::server
