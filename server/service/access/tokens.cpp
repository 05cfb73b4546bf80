#include "server/service/access/tokens.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/net/protocol/fields.h"
#include "server/service/access/secret_file.h"

namespace ffrecord::server {
namespace {

constexpr std::size_t kKeySizeBytesMin = 32;
constexpr std::size_t kMacSizeBytes = 32;
constexpr std::uint8_t kVersion = 1;
constexpr std::uint8_t kAllRights = 31;

using Mac = std::array<std::byte, kMacSizeBytes>;

Error Denied() {
  return {ErrorCode::kDenied,
          "access denied: this daemon requires a valid token; name the file that holds one in the "
          "address: ?token_file=PATH"};
}

// Only who holds the token learns this.
Error Expired(WallClock::time_point expires) {
  const std::time_t time = WallClock::to_time_t(expires);
  std::tm utc{};
  std::array<char, 32> text{};
  ::gmtime_r(&time, &utc);
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return {ErrorCode::kDenied,
          std::string("access denied: the token expired at ") + text.data() +
              "; get a new one, or set this host's clock if that is still to come"};
}

std::string_view NameOf(Right right) {
  switch (right) {
    case Right::kRead:
      return "read";
    case Right::kWrite:
      return "write";
    case Right::kDelete:
      return "delete";
    case Right::kPeer:
      return "peer";
    case Right::kAdmin:
      return "admin";
  }
  return "";
}

std::optional<Mac> MacOf(std::span<const std::byte> key, std::span<const std::byte> bytes) {
  Mac mac;
  unsigned size = 0;
  const auto* const made =
      ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
             reinterpret_cast<unsigned char*>(mac.data()), &size);
  if (made == nullptr || size != mac.size()) return std::nullopt;
  return mac;
}

}  // namespace

Error Token::Denial(Right right) const {
  std::string why = "access denied: the token ";
  if (Has(right))
    why += "is for names that begin with \"" + prefix + "\"; get one for this name";
  else
    why.append("lacks the right \"").append(NameOf(right)).append("\"; get one that has it");
  return {ErrorCode::kDenied, why + ", made with `ffrecord token`"};
}

Result<TokenKeys> TokenKeys::Load(const std::filesystem::path& path) {
  const std::string text = FFR_TRY(ReadSecret(path));
  const auto bad = [&](const char* why) {
    return Error{ErrorCode::kInvalidArgument,
                 path.string() + ": " + why +
                     "; a key is a line of 64 or more hexadecimal digits, as openssl rand -hex 32 "
                     "makes them"};
  };
  std::vector<Key> keys;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    Key key(line.size() / 2);
    if (!FromHex(line, key)) return bad("a line is not a key");
    if (key.size() < kKeySizeBytesMin) return bad("a key is too short");
    keys.push_back(std::move(key));
  }
  if (keys.empty()) return bad("there is no key in it");
  return TokenKeys(std::move(keys));
}

Result<Token> TokenKeys::Check(std::span<const std::byte> credential, WallClock::time_point now,
                               const std::optional<net::ChannelBinding>& binding) const {
  if (credential.size() < kMacSizeBytes) return Denied();
  const auto signed_bytes = credential.first(credential.size() - kMacSizeBytes);
  const auto mac = credential.last(kMacSizeBytes);
  bool is_ours = false;
  for (const Key& key : keys_) {
    auto expected = MacOf(key, signed_bytes);
    if (expected && binding) expected = MacOf(*expected, *binding);
    // No way out at the first that fits, and none at the first byte that does not.
    if (expected && ::CRYPTO_memcmp(expected->data(), mac.data(), mac.size()) == 0) is_ours = true;
  }
  if (!is_ours) return Denied();

  // From here on the bytes are those that a holder of a key has chosen.
  Token token;
  std::uint8_t version = 0;
  std::uint64_t expires_s = 0;
  constexpr std::uint64_t kExpiresMax = std::uint64_t{1} << 33;  // Beyond the year 2200.
  if (!net::DecodeFields(signed_bytes, version, token.rights, net::Zeros<2>(), expires_s,
                         token.prefix, token.client) ||
      version != kVersion || (token.rights & ~kAllRights) != 0 || expires_s > kExpiresMax)
    return Denied();
  token.expires = WallClock::time_point(std::chrono::seconds(expires_s));
  if (now >= token.expires) return Expired(token.expires);
  return token;
}

Result<std::vector<std::byte>> TokenKeys::Sign(const Token& token) const {
  const auto since_epoch = token.expires.time_since_epoch();
  const auto expires_s = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(since_epoch).count());
  auto bytes = net::EncodeFields(kVersion, token.rights, net::Zeros<2>(), expires_s, token.prefix,
                                 token.client);
  const auto mac = MacOf(keys_.front(), bytes);
  if (!mac) return Error{ErrorCode::kIo, "a token could not be signed"};
  bytes.insert(bytes.end(), mac->begin(), mac->end());
  return bytes;
}

}  // namespace ffrecord::server
