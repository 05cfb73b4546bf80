// Compiled once for each instruction set, with FFR_XXH3_VARIANT and FFR_XXH3_NAME set by the build.
//
// Includes nothing that defines functions with external linkage, not even inline ones: the linker
// might keep the copy made here, and run it on a processor that lacks the instructions.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "libffrecord/base/xxh3_variant.h"

namespace ffrecord {
namespace {

std::uint64_t Hash64(const void* bytes, std::size_t size, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes, size, seed);
}

void Hash128(const void* bytes, std::size_t size, unsigned char* digest) noexcept {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, size));
  __builtin_memcpy(digest, canonical.digest, sizeof(canonical.digest));
}

void Update(void* state, const void* bytes, std::size_t size) noexcept {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), bytes, size);
}

}  // namespace

const Xxh3Variant FFR_XXH3_VARIANT{FFR_XXH3_NAME, &Hash64, &Hash128, &Update};

}  // namespace ffrecord
