#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "libffrecord/base/checksum.h"

namespace ffrecord {

// The fingerprint of a version 2 file, record by record. format.md, "Fingerprint". A value.
class FingerprintChain {
 public:
  // `schema_section` is empty if there is none.
  explicit FingerprintChain(std::span<const std::byte> schema_section) noexcept;
  // Goes on behind the record after which the chain was at `digest`.
  static FingerprintChain ResumedAt(const Digest128& digest) noexcept {
    FingerprintChain chain({});
    chain.digest_ = digest;
    return chain;
  }

  void Add(std::span<const std::byte> raw_record) noexcept;
  const Digest128& digest() const noexcept { return digest_; }

 private:
  Digest128 digest_;
};

// The fingerprint of a list of files, file by file. A value.
class ListFingerprint {
 public:
  void Add(std::uint64_t record_count, const Digest128& fingerprint) noexcept;
  Digest128 Finish() const noexcept { return stream_.Finish(); }

 private:
  Xxh3Stream stream_;
};

}  // namespace ffrecord
