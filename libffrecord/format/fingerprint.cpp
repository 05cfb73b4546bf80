#include "libffrecord/format/fingerprint.h"

#include <array>
#include <cstring>

#include "libffrecord/base/endian.h"

namespace ffrecord {

FingerprintChain::FingerprintChain(std::span<const std::byte> schema_section) noexcept
    : digest_(Xxh3Digest(schema_section)) {}

void FingerprintChain::Add(std::span<const std::byte> raw_record) noexcept {
  const Digest128 record = Xxh3Digest(raw_record);
  std::array<std::byte, 40> link;
  std::memcpy(link.data(), digest_.data(), 16);
  StoreLittleEndian(std::span<std::byte>(link), 16, std::uint64_t{raw_record.size()});
  std::memcpy(link.data() + 24, record.data(), 16);
  digest_ = Xxh3Digest(link);
}

void ListFingerprint::Add(std::uint64_t record_count, const Digest128& fingerprint) noexcept {
  std::array<std::byte, 8> count;
  StoreLittleEndian(std::span<std::byte>(count), 0, record_count);
  stream_.Update(count);
  stream_.Update(fingerprint);
}

}  // namespace ffrecord
