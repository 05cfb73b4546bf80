#include "server/service/local_tickets.h"

#include <openssl/crypto.h>
#include <sys/random.h>

#include <utility>

#include "libffrecord/base/assert.h"

namespace ffrecord::server {
namespace {

template <class Secret>
Secret NewSecret() {
  Secret secret;
  const ssize_t got = ::getrandom(secret.data(), secret.size(), 0);  // Not cut short below 256.
  FFR_ASSERT(got == static_cast<ssize_t>(secret.size()));
  return secret;
}

}  // namespace

net::LocalOffer LocalTickets::Issue(const std::optional<Token>& token) {
  const net::LocalOffer offer{machine_, NewSecret<net::LocalTicket>(),
                              NewSecret<net::LocalSecret>(), NewSecret<net::LocalSecret>()};
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
