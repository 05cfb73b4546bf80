#include "libffrecord/base/linear_digest.h"

#include <array>

#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

using Table = std::array<std::uint64_t, 256>;

// The share of byte k of a value v in v * x^64.
std::array<Table, 8> MakeShifts() {
  std::array<Table, 8> tables{};
  for (std::size_t k = 0; k < tables.size(); ++k)
    for (std::uint64_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = MultiplyLinear(byte << (8 * k), PowerOfX(64));
  return tables;
}

// From the last byte to the first, for that is where the high powers are.
std::uint64_t DigestPlain(std::span<const std::byte> bytes) noexcept {
  static const std::array<Table, 8> shifts = MakeShifts();
  std::uint64_t digest = 0;
  std::size_t end = bytes.size();
  for (; end % 8 != 0; --end)
    digest = (digest << 8) ^ shifts[0][digest >> 56] ^ static_cast<std::uint64_t>(bytes[end - 1]);
  for (; end != 0; end -= 8) {
    std::uint64_t next = LoadLittleEndian<std::uint64_t>(bytes, end - 8);
    for (std::size_t k = 0; k < 8; ++k) next ^= shifts[k][digest >> (8 * k) & 0xff];
    digest = next;
  }
  return digest;
}

std::uint64_t MultiplyPlain(std::uint64_t a, std::uint64_t b) noexcept {
  return MultiplyLinear(a, b);
}

constexpr std::size_t kOffsetSize = 6;  // Bytes of an offset that may not be zero.

// x^(8 n) for each value that a byte of an offset n adds to it.
std::array<Table, kOffsetSize> MakeWeights() {
  std::array<Table, kOffsetSize> tables{};
  for (std::size_t k = 0; k < tables.size(); ++k) {
    const std::uint64_t step = PowerOfX(std::uint64_t{8} << (8 * k));
    tables[k][0] = 1;
    for (std::size_t byte = 1; byte < 256; ++byte)
      tables[k][byte] = MultiplyLinear(tables[k][byte - 1], step);
  }
  return tables;
}

}  // namespace

const LinearArithmetic kPlainLinear{&DigestPlain, &MultiplyPlain};

std::uint64_t LinearDigest(std::span<const std::byte> bytes, std::uint64_t offset_bytes) noexcept {
  static const std::array<Table, kOffsetSize> weights = MakeWeights();
  static const LinearArithmetic& best = BestLinear();
  std::uint64_t digest = best.digest(bytes);
  for (std::size_t k = 0; k < kOffsetSize; ++k) {
    const std::uint64_t byte = offset_bytes >> (8 * k) & 0xff;
    if (byte != 0) digest = best.multiply(digest, weights[k][byte]);
  }
  return digest;
}

}  // namespace ffrecord
