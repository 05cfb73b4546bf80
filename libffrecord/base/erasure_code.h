#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ffrecord {

// Reed-Solomon over GF(2^8), polynomial 0x11d, with a Cauchy matrix: of `data` members and `parity`
// members of a stripe, any `data` give all others. Fixed for good: it decides what is on disks.
// format.md, "Erasure code".
//
// Members are numbered, data first. A stripe may have fewer data members than the code; those that
// it lacks count as zeros, and so do the bytes that a shorter member lacks. Thread-safe.
struct ErasureCode {
  static constexpr std::uint8_t kDataMin = 2, kDataMax = 16;
  static constexpr std::uint8_t kParityMin = 1, kParityMax = 4;

  std::uint8_t data = 0;  // 0 with no parity: there is no code.
  std::uint8_t parity = 0;

  bool is_none() const noexcept { return data == 0 && parity == 0; }
  bool is_valid() const noexcept {
    return data >= kDataMin && data <= kDataMax && parity >= kParityMin && parity <= kParityMax;
  }
  // The coefficient in `row`, one of the parity members, for data member `column`: both from 0 on.
  std::uint8_t Coefficient(std::size_t row, std::size_t column) const noexcept;

  bool operator==(const ErasureCode&) const = default;
};

// How to compute member `lost` of a stripe with `data_count` data members: its coefficient for each
// member of `present`, which are `data_count` others. Requires a valid code, numbers below
// data_count + code.parity, each once.
std::vector<std::uint8_t> RebuildCoefficients(const ErasureCode& code, std::size_t data_count,
                                              std::size_t lost,
                                              std::span<const std::size_t> present);

// Adds, in GF(2^8), `coefficient` times the bytes of `from` to those at the begin of `to`, which is
// at least as long.
void AddMultiple(std::uint8_t coefficient, std::span<const std::byte> from,
                 std::span<std::byte> to);

}  // namespace ffrecord
