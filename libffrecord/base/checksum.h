#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libffrecord/base/endian.h"
#include "libffrecord/base/mix.h"

namespace ffrecord {

// CRC-32 as zlib computes it (IEEE 802.3, reflected). `seed` is the CRC of what came before.
std::uint32_t Crc32(std::span<const std::byte> bytes, std::uint32_t seed = 0) noexcept;

// XXH3-64 with a seed.
std::uint64_t Xxh3(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;

// XXH3-128 in canonical (big-endian) byte order, as `xxhsum -H2` prints it.
using Digest128 = std::array<std::byte, 16>;
Digest128 Xxh3Digest(std::span<const std::byte> bytes) noexcept;

// XXH3-128 and XXH3-64 of bytes that arrive in pieces. Thread-bound.
class Xxh3Stream {
 public:
  Xxh3Stream();
  Xxh3Stream(Xxh3Stream&& other) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&& other) noexcept;
  ~Xxh3Stream();
  void Reset() noexcept;
  void Update(std::span<const std::byte> bytes) noexcept;
  Digest128 Finish() const noexcept;
  std::uint64_t Finish64() const noexcept;  // The result of Xxh3 for the whole.

 private:
  void* state_;
};

// The seeds of checksums that belong to one place each: the owner's 128-bit id and a number there
// (a record index, a page number, an offset). Bytes moved to another place or owner then fail.
// Specified in format.md, "Seeds". Keeps what depends on the id alone.
class PlaceSeeds {
 public:
  explicit PlaceSeeds(std::span<const std::byte, 16> id) noexcept
      : of_id_(Mix64(LoadLittleEndian<std::uint64_t>(id, 0) + kGoldenGamma) ^
               LoadLittleEndian<std::uint64_t>(id, 8)) {}
  std::uint64_t Of(std::uint64_t number) const noexcept {
    return Mix64(of_id_ ^ Mix64(number + kGoldenGamma));
  }

 private:
  std::uint64_t of_id_;
};

inline std::uint64_t PlaceSeed(std::span<const std::byte, 16> id, std::uint64_t number) noexcept {
  return PlaceSeeds(id).Of(number);
}

}  // namespace ffrecord
