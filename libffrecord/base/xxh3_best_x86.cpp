#include "libffrecord/base/xxh3_variant.h"

namespace ffrecord {

const Xxh3Variant& BestXxh3() noexcept {
  static const Xxh3Variant& best = __builtin_cpu_supports("avx512f") ? kXxh3Avx512
                                   : __builtin_cpu_supports("avx2")  ? kXxh3Avx2
                                                                     : kXxh3Plain;
  return best;
}

}  // namespace ffrecord
