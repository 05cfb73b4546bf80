#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::server {

// The rights of a client.
enum class Right : std::uint8_t {
  kRead = 1,
  kWrite = 2,
  kDelete = 4,
  kPeer = 8,    // Ask what the nodes of a cluster ask each other.
  kAdmin = 16,  // Change who is in a cluster.
};

// The contents of a token, once it has been believed: these rights on the names that begin with
// `prefix`, until `expires`. protocol.md, "Tokens".
struct Token {
  std::uint8_t rights = 0;  // Right values, or-ed.
  WallClock::time_point expires;
  std::string prefix;  // Empty: all names.
  std::string client;  // For the log.

  bool Has(Right right) const noexcept { return (rights & static_cast<std::uint8_t>(right)) != 0; }
  bool Allows(Right right, std::string_view name) const noexcept {
    return Has(right) && name.starts_with(prefix);
  }
  // Says to its holder why it does not allow this.
  Error Denial(Right right) const;
};

// The secrets that tokens are made with. A process that has one can make any token.
class TokenKeys {
 public:
  // One key a line, in hexadecimal digits, at least 32 bytes each: the first of several is the one
  // in use, the others are on their way out. Fails with kNotFound, kDenied if others than the owner
  // can read the file, kInvalidArgument if it holds something else. No message quotes a key.
  static Result<TokenKeys> Load(const std::filesystem::path& path);

  // Checks `credential`, which came over a connection of that binding, if it has one: then only a
  // token that is bound to it will do. Fails with kDenied, always in the same words, if it was made
  // with none of the keys, is malformed, or bound otherwise; takes the same time for each of these.
  // Fails with kDenied, and says when, if it has expired at `now`.
  Result<Token> Check(std::span<const std::byte> credential, WallClock::time_point now,
                      const std::optional<net::ChannelBinding>& binding = std::nullopt) const;

  // A token that says so, made with the key in use. Fails with kIo.
  Result<std::vector<std::byte>> Sign(const Token& token) const;

 private:
  using Key = std::vector<std::byte>;
  explicit TokenKeys(std::vector<Key> keys) : keys_(std::move(keys)) {}
  std::vector<Key> keys_;
};

}  // namespace ffrecord::server
