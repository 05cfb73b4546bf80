// Goal: no bytes that a client sends as its token can be believed but those made with a key, and
// none, with a key or without, can make the parser read past them.
// Method: the input as a token, which must be refused; then the input signed with the key, so that
// all of the parser is reached: what is believed must be what was signed.

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "libffrecord/net/transport/tls/tls.h"
#include "server/service/access/tokens.h"

using ffrecord::server::TokenKeys;

namespace {

constexpr std::array<unsigned char, 32> kKey{};
constexpr std::size_t kMacSize = 32;
constexpr std::size_t kFixedSize = 16;  // All of a token but its texts and the code.

const TokenKeys& Keys() {
  static const TokenKeys keys = [] {
    std::string path = "/tmp/token-fuzz-XXXXXX";  // Made with mode 0600.
    const int fd = ::mkstemp(path.data());
    const std::string text = std::string(2 * kKey.size(), '0') + "\n";
    if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      std::abort();
    ::close(fd);
    auto loaded = TokenKeys::Load(path);
    ::unlink(path.c_str());
    if (!loaded) std::abort();
    return std::move(loaded).value();
  }();
  return keys;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  const auto now = std::chrono::system_clock::time_point(std::chrono::seconds(1'000'000));
  if (Keys().Check(input, now)) __builtin_trap();  // A code of 32 bytes is not found by chance.

  std::vector<std::byte> made(input.begin(), input.end());
  made.resize(size + kMacSize);
  unsigned mac_size = 0;
  if (::HMAC(EVP_sha256(), kKey.data(), static_cast<int>(kKey.size()), data, size,
             reinterpret_cast<unsigned char*>(made.data() + size), &mac_size) == nullptr)
    std::abort();
  const auto token = Keys().Check(made, now);
  if (!token) return 0;
  if (token.value().expires <= now || token.value().rights > 31) __builtin_trap();
  if (token.value().prefix.size() + token.value().client.size() + kFixedSize != size)
    __builtin_trap();
  // Over TLS it has to be bound to the connection, and is good for no other.
  const auto binding_of = [](std::size_t number) {
    ffrecord::net::ChannelBinding binding{};
    binding[number % binding.size()] = std::byte{1};
    return binding;
  };
  const auto bound = ffrecord::net::BindToken(made, binding_of(size));
  if (!Keys().Check(bound, now, binding_of(size))) __builtin_trap();
  if (Keys().Check(bound, now, binding_of(size + 1)) || Keys().Check(bound, now)) __builtin_trap();
  if (Keys().Check(made, now, binding_of(size))) __builtin_trap();
  // One bit of it changed, it is nobody's.
  made[size / 2] ^= std::byte{1};
  if (Keys().Check(made, now)) __builtin_trap();
  return 0;
}
