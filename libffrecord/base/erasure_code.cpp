#include "libffrecord/base/erasure_code.h"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <array>

#include "libffrecord/base/assert.h"

namespace ffrecord {
namespace {

// ISA-L counts in int.
constexpr std::size_t kStepBytes = std::size_t{1} << 30;
constexpr std::size_t kTableBytes = 32;

}  // namespace

std::uint8_t ErasureCode::Coefficient(std::size_t row, std::size_t column) const noexcept {
  return gf_inv(static_cast<unsigned char>((data + row) ^ column));
}

std::vector<std::uint8_t> RebuildCoefficients(const ErasureCode& code, std::size_t data_count,
                                              std::size_t lost,
                                              std::span<const std::size_t> present) {
  FFR_ASSERT(code.is_valid() && present.size() == data_count && data_count > 0 &&
             data_count <= code.data && lost < data_count + code.parity);
  const auto at = [&](std::size_t member, std::size_t column) -> std::uint8_t {
    if (member < data_count) return member == column ? 1 : 0;
    return code.Coefficient(member - data_count, column);
  };
  std::vector<std::uint8_t> matrix;
  for (const std::size_t member : present)
    for (std::size_t column = 0; column < data_count; ++column)
      matrix.push_back(at(member, column));
  // By it, data members are sums of those that are present.
  std::vector<std::uint8_t> inverse(matrix.size());
  const int failed = gf_invert_matrix(matrix.data(), inverse.data(), static_cast<int>(data_count));
  FFR_ASSERT(failed == 0);  // Any rows of a Cauchy matrix and of the identity can be inverted.
  std::vector<std::uint8_t> coefficients(data_count, 0);
  for (std::size_t i = 0; i < data_count; ++i)
    for (std::size_t column = 0; column < data_count; ++column)
      coefficients[i] ^= gf_mul(at(lost, column), inverse[column * data_count + i]);
  return coefficients;
}

void AddMultiple(std::uint8_t coefficient, std::span<const std::byte> from,
                 std::span<std::byte> to) {
  FFR_ASSERT(from.size() <= to.size());
  std::array<unsigned char, kTableBytes> table{};
  gf_vect_mul_init(coefficient, table.data());
  for (std::size_t at = 0; at < from.size(); at += kStepBytes) {
    const auto part = from.subspan(at, std::min(kStepBytes, from.size() - at));
    auto* sum = reinterpret_cast<unsigned char*>(to.data() + at);
    // It does not write there; its type says nothing of that.
    auto* bytes = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(part.data()));
    ec_encode_data_update(static_cast<int>(part.size()), 1, 1, 0, table.data(), bytes, &sum);
  }
}

}  // namespace ffrecord
