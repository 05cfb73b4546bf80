#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <ffrecord/record_form.h>
#include <ffrecord/result.h>
#include <ffrecord/source_description.h>

namespace ffrecord {

// The front of an index in place (format.md, "Index in place"), behind which a version 2 file
// follows, but for the bytes of the source that lie in its middle.
struct InPlaceFront {
  // Size of the front; each part of the file and the source begins at a multiple of it.
  static constexpr std::size_t kSizeBytes = 4096;
  static constexpr std::size_t kPathSizeBytesMax = 4000;

  RecordForm form = RecordForm::kPlain;
  std::uint64_t head_size_bytes = 0;  // Size of the version 2 file, before the source.
  std::uint64_t source_size_bytes = 0;
  std::int64_t source_time_ns = 0;  // Time of its last change.
  std::string source_path;          // Absolute.
  SourceDescription description = {};

  bool operator==(const InPlaceFront&) const = default;
};

// Fails with kInvalidArgument if the bytes are no front, or need a newer library, and with
// kCorruption if they are short or damaged. Afterwards no sum of the sizes overflows.
Result<InPlaceFront> DecodeInPlaceFront(std::span<const std::byte> bytes);
// Requires a path of at most kPathSizeBytesMax.
void EncodeInPlaceFront(const InPlaceFront& front,
                        std::span<std::byte, InPlaceFront::kSizeBytes> encoded);

}  // namespace ffrecord
