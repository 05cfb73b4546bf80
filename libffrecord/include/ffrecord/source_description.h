#pragma once

#include <cstdint>

namespace ffrecord {

// Another file that says what the samples of a source are, as it was when the source was indexed.
struct SourceDescription {
  enum class Kind : std::uint32_t {
    kNone = 0,       // The source describes itself.
    kMegatron = 1,   // FILE.idx beside FILE.bin.
    kMdsFolder = 2,  // index.json in the folder of the source.
  };

  Kind kind = Kind::kNone;
  std::uint64_t size_bytes = 0;
  std::int64_t time_ns = 0;  // Time of its last change, since 1970.
  // Digest of the part that is about this source, for programs that make indexes: a change that
  // leaves it as it is does not concern the source.
  std::uint64_t digest = 0;

  bool operator==(const SourceDescription&) const = default;
};

}  // namespace ffrecord
