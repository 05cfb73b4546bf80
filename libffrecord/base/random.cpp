#include "libffrecord/base/random.h"

#include <sys/random.h>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/uninterrupted.h"

namespace ffrecord {

void FillRandom(std::span<std::byte> bytes) noexcept {
  // Up to 256 bytes come whole.
  const ssize_t got = Uninterrupted([&] { return ::getrandom(bytes.data(), bytes.size(), 0); });
  FFR_ASSERT(got == static_cast<ssize_t>(bytes.size()));
}

std::uint64_t RandomNumber() noexcept {
  std::uint64_t number = 0;
  FillRandom(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

}  // namespace ffrecord
