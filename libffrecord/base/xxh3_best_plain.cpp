#include "libffrecord/base/xxh3_variant.h"

namespace ffrecord {

// Elsewhere the least processor has vector instructions already, and libxxhash uses them.
const Xxh3Variant& BestXxh3() noexcept { return kXxh3Plain; }

}  // namespace ffrecord
