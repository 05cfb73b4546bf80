#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "client/checkpoint/target.h"
#include "libffrecord/io/scratch_file.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

// Segments of a step that may be kept compressed: under the name of the segment with this behind
// it, either all of them or none.
inline constexpr std::string_view kPackedSuffix = ".packed";

// Opens segments as they are called in manifests, whichever way they are kept: the reader gives
// their bytes, and sizes, as they were. Fails as CommittedStep::OpenFiles, and with kCorruption.
Result<std::unique_ptr<RangeReader>> OpenSegments(const CommittedStep& step,
                                                  std::span<const std::string> names);

// The files that were packed into the files of `packed`, each with the name of its packed file.
// Whole frames are read and decompressed in the caller's thread, for each call anew. Fails with
// kCorruption, and if the ends of the files cannot be read.
Result<std::unique_ptr<RangeReader>> OpenPackedFiles(std::unique_ptr<RangeReader> packed);

// A packed file in the making, in an unnamed file below TMPDIR, or /var/tmp without it: how large
// it becomes is known at its end. Thread-bound.
class PackedSpool {
 public:
  // Packs all of `source`, `size_bytes` of it. Fails with kIo, naming the folder; as `source` does.
  static Result<PackedSpool> Fill(std::uint64_t size_bytes, const FileSource& source);

  std::uint64_t size_bytes() const noexcept { return file_.size_bytes(); }
  // A FileSource. Requires an offset below size_bytes().
  Result<std::span<const std::byte>> At(std::uint64_t offset, std::uint64_t size_max);

 private:
  explicit PackedSpool(ScratchFile file) noexcept : file_(std::move(file)) {}
  ScratchFile file_;
  std::vector<std::byte> buffer_;
};

}  // namespace ffrecord::client
