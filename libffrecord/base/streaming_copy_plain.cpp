#include <cstring>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/streaming_copy.h"

namespace ffrecord {

void StreamingCopy(std::span<std::byte> to, std::span<const std::byte> from) noexcept {
  FFR_ASSERT(to.size() >= from.size());
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace ffrecord
