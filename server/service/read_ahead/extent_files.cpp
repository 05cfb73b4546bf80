#include "server/service/read_ahead/extent_files.h"

#include <algorithm>

#include "libffrecord/base/hex.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/page_cache.h"

namespace ffrecord::server {
namespace {

// A process may have some ten thousands of mappings, most of which are those of open files. A
// segment of an index holds 64 thousand records and more.
constexpr std::uint32_t kIndexMappingsMax = 2048;

}  // namespace

Result<std::unique_ptr<const ExtentFiles>> ExtentFiles::Open(DatasetManifest manifest,
                                                             const ExtentStore& extents) {
  std::unique_ptr<ExtentFiles> files(new ExtentFiles(std::move(manifest)));
  for (const ManifestFile& file : files->manifest_.files) {
    files->first_extents_.push_back(files->extents_.size());
    for (const ManifestExtent& wanted : file.extents) {
      files->extents_.push_back(extents.Find(wanted.id));
      if (!files->extents_.back())
        return Error{ErrorCode::kNotFound,
                     file.name + ": extent " + Hex(wanted.id) + " is not here"};
    }
  }
  return std::unique_ptr<const ExtentFiles>(std::move(files));
}

Result<void> ExtentFiles::ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                                   Patience& patience) const {
  for (RangeRead& range : ranges) {
    if (patience.IsOver()) return GivenUp();
    range.status = PassesEnd(range) ? ErrorCode::kCorruption : ErrorCode::kOk;
    if (range.status == ErrorCode::kOk) {
      const auto read = ReadInside(range);
      if (!read) range.status = read.error().code;
    }
    arrived(range);
  }
  return {};
}

void ExtentFiles::Cut(std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                      std::vector<Piece>& pieces) const {
  while (size_bytes > 0) {
    const std::uint64_t within = offset_bytes % kExtentSizeMax;
    const std::uint64_t size = std::min(size_bytes, kExtentSizeMax - within);
    pieces.push_back({&extents_[first_extents_[file] + offset_bytes / kExtentSizeMax],
                      static_cast<std::uint32_t>(within), static_cast<std::uint32_t>(size)});
    offset_bytes += size;
    size_bytes -= size;
  }
}

Result<void> ExtentFiles::ReadInside(const RangeRead& range) const {
  std::vector<Piece> pieces;
  Cut(range.file, range.offset_bytes, range.destination.size(), pieces);
  auto rest = range.destination;
  for (const Piece& piece : pieces) {
    const Extent& extent = **piece.extent;
    const auto fd = FFR_TRY(ExtentStore::OpenFile(extent));
    FFR_TRY(ReadExactly(fd.get(), extent.disk->PathOf(extent.id), piece.offset_bytes,
                        rest.first(piece.size_bytes)));
    rest = rest.subspan(piece.size_bytes);
  }
  return {};
}

Result<RangeReader::IndexBytes> ExtentFiles::MapInside(std::uint32_t file,
                                                       std::uint64_t offset_bytes,
                                                       std::uint64_t size_bytes) const {
  std::vector<Piece> pieces;
  Cut(file, offset_bytes, size_bytes, pieces);
  return pieces.size() == 1 ? MapWhole(pieces.front(), file)
                            : RangeReader::MapInside(file, offset_bytes, size_bytes);
}

// Its pages stay the kernel's, so that a large index costs no memory of ours.
Result<RangeReader::IndexBytes> ExtentFiles::MapWhole(const Piece& piece,
                                                      std::uint32_t file) const {
  if (mapping_count_.fetch_add(1, std::memory_order_relaxed) >= kIndexMappingsMax)
    return Error{ErrorCode::kUnavailable,
                 file_name(file) + ": too large an index to be read ahead by"};
  const auto fd = FFR_TRY(ExtentStore::OpenFile(**piece.extent));
  auto mapped = std::make_shared<MappedFile>(
      FFR_TRY(MappedFile::Map(fd.get(), piece.offset_bytes, piece.size_bytes)));
  const auto bytes = mapped->bytes();
  // A fault reads far around it else.
  ExpectRandomAccess(bytes);
  WillNeed(bytes);
  return IndexBytes{std::move(mapped), bytes};
}

}  // namespace ffrecord::server
