#include "client/dataset/verified_extents.h"

#include <algorithm>
#include <string>

#include "libffrecord/base/checksum.h"
#include "libffrecord/source/file_copies.h"

namespace ffrecord::client {

Result<void> VerifyExtents(const RangeReader& source, std::uint32_t number,
                           const ManifestFile& file, std::uint64_t offset_bytes,
                           std::span<std::byte> bytes) {
  const std::uint64_t end = offset_bytes + bytes.size();
  const std::uint64_t first =
      offset_bytes / kExtentSizeMax + (offset_bytes % kExtentSizeMax == 0 ? 0 : 1);
  for (std::uint64_t i = first; i < file.extents.size(); ++i) {
    const ManifestExtent& extent = file.extents[i];
    const std::uint64_t begin = i * kExtentSizeMax;
    if (begin + extent.size_bytes > end) break;
    const auto whole = bytes.subspan(begin - offset_bytes, extent.size_bytes);
    const auto is_right = [&](std::span<const std::byte> read) {
      return Xxh3(read) == extent.xxh3;
    };
    if (is_right(whole)) continue;
    const auto copy = FileCopies::ReadRight(source, number, begin, extent.size_bytes, is_right);
    if (!copy)
      return Error{copy.error().code, source.file_name(number) + ": " +
                                          std::to_string(extent.size_bytes) + " bytes at " +
                                          std::to_string(begin) +
                                          " fail their checksum: " + copy.error().message};
    std::ranges::copy(copy.value()->first(extent.size_bytes), whole.begin());
  }
  return {};
}

}  // namespace ffrecord::client
