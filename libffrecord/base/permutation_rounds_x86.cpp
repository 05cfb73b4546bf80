#include "libffrecord/base/permutation_rounds.h"

namespace ffrecord {
namespace {

void PermuteSse2(const PermutationShape& shape, std::uint64_t* values, std::size_t count) noexcept {
  PermuteAbreast(shape, values, count);
}

[[gnu::target("avx2")]] void PermuteAvx2(const PermutationShape& shape, std::uint64_t* values,
                                         std::size_t count) noexcept {
  PermuteAbreast(shape, values, count);
}

}  // namespace

PermutationRounds BestPermutationRounds() noexcept {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  return has_avx2 ? &PermuteAvx2 : &PermuteSse2;
}

}  // namespace ffrecord
