#include "libffrecord/base/permutation_rounds.h"

namespace ffrecord {

PermutationRounds BestPermutationRounds() noexcept { return &PermuteAbreast; }

}  // namespace ffrecord
