#include "libffrecord/object_store/digests.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "libffrecord/base/assert.h"

namespace ffrecord::object_store {
namespace {

template <std::size_t kSize>
std::optional<std::array<std::byte, kSize>> Digest(const EVP_MD* sum,
                                                   std::span<const std::byte> bytes) {
  std::array<std::byte, kSize> digest{};
  unsigned size = 0;
  const int made = EVP_Digest(bytes.data(), bytes.size(),
                              reinterpret_cast<unsigned char*>(digest.data()), &size, sum, nullptr);
  if (made != 1) return std::nullopt;
  FFR_ASSERT(size == kSize);
  return digest;
}

}  // namespace

Sha256Digest Sha256(std::span<const std::byte> bytes) {
  const auto digest = Digest<32>(EVP_sha256(), bytes);
  FFR_ASSERT(digest.has_value());
  return *digest;
}

std::optional<Sha1Digest> Sha1(std::span<const std::byte> bytes) {
  return Digest<20>(EVP_sha1(), bytes);
}

std::optional<Md5Digest> Md5(std::span<const std::byte> bytes) {
  return Digest<16>(EVP_md5(), bytes);
}

Sha256Digest HmacSha256(std::span<const std::byte> key, std::span<const std::byte> bytes) {
  Sha256Digest digest{};
  unsigned size = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                          reinterpret_cast<unsigned char*>(digest.data()), &size);
  FFR_ASSERT(made != nullptr);
  FFR_ASSERT(size == digest.size());
  return digest;
}

}  // namespace ffrecord::object_store
