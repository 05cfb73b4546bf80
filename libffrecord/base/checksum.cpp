#include "libffrecord/base/checksum.h"

#include <isa-l/crc.h>
#include <xxhash.h>

#include <cstring>
#include <new>
#include <utility>

#include "libffrecord/base/xxh3_variant.h"

namespace ffrecord {

std::uint32_t Crc32(std::span<const std::byte> bytes, std::uint32_t seed) noexcept {
  // An empty span may hold a null pointer, which ISA-L's signature does not promise to accept.
  if (bytes.empty()) return seed;
  return crc32_gzip_refl(seed, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::uint64_t Xxh3(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  static const auto hash64 = BestXxh3().hash64;
  return hash64(bytes.data(), bytes.size(), seed);
}

namespace {

Digest128 Canonical(XXH128_hash_t hash) noexcept {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest128 digest;
  static_assert(sizeof(canonical.digest) == sizeof(digest));
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

XXH3_state_t* State(void* state) noexcept { return static_cast<XXH3_state_t*>(state); }

}  // namespace

const Xxh3Variant kXxh3Plain{
    "plain",
    [](const void* bytes, std::size_t size, std::uint64_t seed) noexcept -> std::uint64_t {
      return XXH3_64bits_withSeed(bytes, size, seed);
    },
    [](const void* bytes, std::size_t size, unsigned char* digest) noexcept {
      const Digest128 canonical = Canonical(XXH3_128bits(bytes, size));
      std::memcpy(digest, canonical.data(), canonical.size());
    },
    [](void* state, const void* bytes, std::size_t size) noexcept {
      XXH3_128bits_update(State(state), bytes, size);
    }};

Digest128 Xxh3Digest(std::span<const std::byte> bytes) noexcept {
  Digest128 digest;
  BestXxh3().hash128(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

Xxh3Stream::Xxh3Stream() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();  // No room for a small object ends the process.
  Reset();
}
Xxh3Stream::Xxh3Stream(Xxh3Stream&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)) {}
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
Xxh3Stream::~Xxh3Stream() { XXH3_freeState(State(state_)); }
void Xxh3Stream::Reset() noexcept { XXH3_128bits_reset(State(state_)); }
void Xxh3Stream::Update(std::span<const std::byte> bytes) noexcept {
  BestXxh3().update(state_, bytes.data(), bytes.size());
}
Digest128 Xxh3Stream::Finish() const noexcept {
  return Canonical(XXH3_128bits_digest(State(state_)));
}
// One state serves both sizes: xxHash updates them alike and they differ in the digest alone.
std::uint64_t Xxh3Stream::Finish64() const noexcept { return XXH3_64bits_digest(State(state_)); }

}  // namespace ffrecord
