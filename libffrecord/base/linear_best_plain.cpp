#include "libffrecord/base/linear_digest.h"

namespace ffrecord {

const LinearArithmetic& BestLinear() noexcept { return kPlainLinear; }

}  // namespace ffrecord
