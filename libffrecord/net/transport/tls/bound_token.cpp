#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/transport/tls/tls.h"

namespace ffrecord::net {

std::vector<std::byte> BindToken(std::span<const std::byte> token, const ChannelBinding& binding) {
  std::vector<std::byte> bound(token.begin(), token.end());
  ChannelBinding code{};
  if (bound.size() < code.size()) return bound;  // It is none, as the daemon will say.
  const auto own = token.last(code.size());
  unsigned size = 0;
  const auto* const made =
      ::HMAC(EVP_sha256(), own.data(), static_cast<int>(own.size()),
             reinterpret_cast<const unsigned char*>(binding.data()), binding.size(),
             reinterpret_cast<unsigned char*>(code.data()), &size);
  FFR_ASSERT(made != nullptr);
  FFR_ASSERT(size == code.size());
  std::ranges::copy(code, bound.end() - static_cast<std::ptrdiff_t>(code.size()));
  return bound;
}

}  // namespace ffrecord::net
