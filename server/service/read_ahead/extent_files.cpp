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
// Limit for the copied indexes of one dataset.
constexpr std::uint64_t kCopiedBytesMax = std::uint64_t{256} << 20;

Error TooLarge(const std::string& file) {
  return {ErrorCode::kUnavailable, file + ": too large an index to be read ahead by"};
}

}  // namespace

Result<std::unique_ptr<const ExtentFiles>> ExtentFiles::Open(DatasetManifest manifest,
                                                             const ExtentStore& extents,
                                                             Others others) {
  std::unique_ptr<ExtentFiles> files(
      new ExtentFiles(std::move(manifest), extents, std::move(others)));
  std::size_t first_extent = 0;
  for (const ManifestFile& file : files->manifest_.files) {
    files->first_extents_.push_back(first_extent);
    first_extent += file.extents.size();
    if (files->others_.read) continue;
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

template <class Work>
Result<void> ExtentFiles::ForEachPart(std::uint32_t file, std::uint64_t offset_bytes,
                                      std::uint64_t size_bytes, const Work& work) const {
  while (size_bytes > 0) {
    const std::uint64_t within = offset_bytes % kExtentSizeMax;
    const std::uint64_t size = std::min(size_bytes, kExtentSizeMax - within);
    const std::size_t number = offset_bytes / kExtentSizeMax;
    FFR_TRY(work(Part{&manifest_.files[file].extents[number].id, first_extents_[file] + number,
                      static_cast<std::uint32_t>(within), static_cast<std::uint32_t>(size)}));
    offset_bytes += size;
    size_bytes -= size;
  }
  return {};
}

ExtentPtr ExtentFiles::Here(const Part& part) const {
  return others_.read ? store_.Find(*part.id) : extents_[part.extent];
}

void ExtentFiles::Cut(std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                      std::vector<Piece>& pieces) const {
  (void)ForEachPart(file, offset_bytes, size_bytes, [&](const Part& part) -> Result<void> {
    // Whether it is here is the cheaper question, and most are not.
    ExtentPtr extent = Here(part);
    if (extent && (!others_.read || others_.is_ours(*part.id)))
      pieces.push_back({std::move(extent), part.offset_bytes, part.size_bytes});
    return {};
  });
}

Result<void> ExtentFiles::ReadInside(const RangeRead& range) const {
  auto rest = range.destination;
  return ForEachPart(range.file, range.offset_bytes, rest.size(),
                     [&](const Part& part) -> Result<void> {
                       FFR_TRY(ReadPart(part, rest.first(part.size_bytes)));
                       rest = rest.subspan(part.size_bytes);
                       return {};
                     });
}

Result<void> ExtentFiles::ReadPart(const Part& part, std::span<std::byte> destination) const {
  if (const ExtentPtr extent = Here(part)) {
    const auto read = [&]() -> Result<void> {
      const auto fd = FFR_TRY(ExtentStore::OpenFile(*extent));
      return ReadExactly(fd.get(), extent->disk->PathOf(extent->id), part.offset_bytes,
                         destination);
    }();
    if (read || !others_.read) return read;
  }
  return others_.read(*part.id, part.offset_bytes, destination);
}

Result<RangeReader::IndexBytes> ExtentFiles::MapInside(std::uint32_t file,
                                                       std::uint64_t offset_bytes,
                                                       std::uint64_t size_bytes) const {
  Piece whole;
  FFR_TRY(ForEachPart(file, offset_bytes, size_bytes, [&](const Part& part) -> Result<void> {
    if (part.size_bytes == size_bytes) whole = {Here(part), part.offset_bytes, part.size_bytes};
    return {};
  }));
  if (whole.extent) return MapWhole(whole, file);
  if (copied_bytes_.fetch_add(size_bytes, std::memory_order_relaxed) > kCopiedBytesMax)
    return TooLarge(file_name(file));
  return RangeReader::MapInside(file, offset_bytes, size_bytes);
}

// Its pages stay the kernel's, so that a large index costs no memory of ours.
Result<RangeReader::IndexBytes> ExtentFiles::MapWhole(const Piece& piece,
                                                      std::uint32_t file) const {
  if (mapping_count_.fetch_add(1, std::memory_order_relaxed) >= kIndexMappingsMax)
    return TooLarge(file_name(file));
  const auto fd = FFR_TRY(ExtentStore::OpenFile(*piece.extent));
  auto mapped = std::make_shared<MappedFile>(
      FFR_TRY(MappedFile::Map(fd.get(), piece.offset_bytes, piece.size_bytes)));
  const auto bytes = mapped->bytes();
  // A fault reads far around it else.
  ExpectRandomAccess(bytes);
  WillNeed(bytes);
  return IndexBytes{std::move(mapped), bytes};
}

}  // namespace ffrecord::server
