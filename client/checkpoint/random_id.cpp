#include "client/checkpoint/random_id.h"

#include <sys/random.h>

#include "libffrecord/base/assert.h"

namespace ffrecord::client {

std::array<std::byte, 16> RandomId() {
  std::array<std::byte, 16> id{};
  // Up to 256 bytes are given whole and without interruption.
  const auto got = ::getrandom(id.data(), id.size(), 0);
  FFR_ASSERT(got == static_cast<ssize_t>(id.size()));
  return id;
}

std::string Hex(std::span<const std::byte, 16> id) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : id) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

}  // namespace ffrecord::client
