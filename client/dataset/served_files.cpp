#include <ffrecord/client/served_files.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "client/dataset/published_files.h"
#include "client/dataset/verified_extents.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/rpc/location.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {
namespace {

// Depends on its bytes alone: the same file, published again, gets the same version.
std::string VersionOf(const ManifestFile& file) {
  std::vector<std::byte> sums(file.extents.size() * sizeof(std::uint64_t));
  for (std::size_t i = 0; i < file.extents.size(); ++i)
    StoreLittleEndian(std::span(sums), i * sizeof(std::uint64_t), file.extents[i].xxh3);
  return Hex(Xxh3(sums, file.size_bytes));
}

// No read is longer than what the source reads best at once.
void Cut(const ServedFiles::Range& range, std::uint64_t piece_bytes_max,
         std::vector<RangeRead>& pieces) {
  const std::uint64_t size_bytes = range.destination.size();
  for (std::uint64_t at = 0; at < size_bytes; at += piece_bytes_max)
    pieces.push_back({range.file, range.offset_bytes + at,
                      range.destination.subspan(at, std::min(piece_bytes_max, size_bytes - at))});
}

Error NotRead(const RangeReader& files, const RangeRead& piece) {
  const std::string trouble = files.Trouble(piece.file, piece.status);
  return {piece.status, files.file_name(piece.file) + ": cannot read " +
                            std::to_string(piece.destination.size()) + " bytes at " +
                            std::to_string(piece.offset_bytes) +
                            (trouble.empty() ? "" : ": " + trouble)};
}

static_assert(ServedFiles::kVerifiedBytes == kExtentSizeMax);

}  // namespace

struct ServedFiles::Impl {
  std::shared_ptr<const RangeReader> source;
  std::vector<ManifestFile> manifest;
  std::vector<File> files;
};

ServedFiles::ServedFiles(std::shared_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}

const std::vector<ServedFiles::File>& ServedFiles::files() const noexcept { return impl_->files; }

Result<ServedFiles> ServedFiles::Open(std::string_view address, const SessionOptions& options,
                                      const std::function<bool()>& give_up) {
  const Patience patience(give_up);
  const auto locations = FFR_TRY(net::Location::ParseAll(address));
  FFR_TRY(net::CheckName(locations.front().name));
  auto published = FFR_TRY(OpenPublished(locations, options));
  auto impl = std::make_shared<Impl>();
  impl->source = std::move(published.files);
  impl->manifest = std::move(published.manifest.files);
  for (const ManifestFile& file : impl->manifest)
    impl->files.push_back({file.name, file.size_bytes, VersionOf(file)});
  return ServedFiles(std::move(impl));
}

Result<void> ServedFiles::Read(std::span<const Range> ranges,
                               const std::function<bool()>& give_up) const {
  const RangeReader& source = *impl_->source;
  const std::uint64_t piece_bytes_max = source.coalescing().piece_bytes_max;
  std::vector<RangeRead> pieces;
  for (const Range& range : ranges) {
    if (range.file >= impl_->files.size())
      return Error{ErrorCode::kInvalidArgument, "file " + std::to_string(range.file) + " of " +
                                                    std::to_string(impl_->files.size())};
    const std::uint64_t file_size_bytes = impl_->files[range.file].size_bytes;
    if (range.offset_bytes > file_size_bytes ||
        range.destination.size() > file_size_bytes - range.offset_bytes)
      return Error{ErrorCode::kInvalidArgument,
                   source.file_name(range.file) + ": " + std::to_string(range.destination.size()) +
                       " bytes at " + std::to_string(range.offset_bytes) +
                       " pass the end of the file, which has " + std::to_string(file_size_bytes)};
    Cut(range, piece_bytes_max, pieces);
  }
  const Patience patience(give_up);
  FFR_TRY(source.Read(pieces));
  for (const RangeRead& piece : pieces)
    if (piece.status != ErrorCode::kOk) return NotRead(source, piece);
  for (const Range& range : ranges)
    FFR_TRY(VerifyExtents(source, range.file, impl_->manifest[range.file], range.offset_bytes,
                          range.destination));
  return {};
}

}  // namespace ffrecord::client
