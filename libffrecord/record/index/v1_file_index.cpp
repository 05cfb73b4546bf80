#include <utility>

#include "libffrecord/io/page_cache.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/source/file_copies.h"

namespace ffrecord {
namespace {

class V1Index final : public FileIndex {
 public:
  V1Index(const V1Header& header, RangeReader::IndexBytes metadata, std::uint64_t file_size_bytes,
          std::vector<std::string> warnings)
      : header_(header),
        metadata_(std::move(metadata)),
        file_size_bytes_(file_size_bytes),
        fingerprint_(V1Fingerprint(metadata_.bytes, file_size_bytes)),
        warnings_(std::move(warnings)) {}

  std::uint32_t format_version() const noexcept override { return 1; }
  std::uint64_t record_count() const noexcept override { return header_.record_count; }
  const Schema& schema() const noexcept override { return schema_; }
  const Digest128& fingerprint() const noexcept override { return fingerprint_; }
  std::span<const std::string> warnings() const noexcept override { return warnings_; }

  // Checks the entry here too: opening may not have checked the tables, and the file may have
  // changed since.
  ErrorCode Locate(std::uint64_t index, RecordLocation& location) const override {
    const V1Entry entry = LoadV1Entry(header_, metadata_.bytes, index, file_size_bytes_);
    if (!IsSane(entry)) return ErrorCode::kCorruption;
    const std::uint64_t size_bytes = entry.end_bytes - entry.begin_bytes;
    location = {entry.crc32, entry.begin_bytes, size_bytes, size_bytes};
    return ErrorCode::kOk;
  }

  bool Matches(std::uint64_t, std::uint64_t check,
               std::span<const std::byte> stored) const noexcept override {
    return Crc32(stored) == check;
  }

  std::string Explain(std::uint64_t index) const override {
    const V1Entry entry = LoadV1Entry(header_, metadata_.bytes, index, file_size_bytes_);
    if (IsSane(entry)) return {};
    return "its table entry, bytes " + std::to_string(entry.begin_bytes) + " to " +
           std::to_string(entry.end_bytes) + ", does not lie inside the file";
  }

 private:
  bool IsSane(const V1Entry& entry) const noexcept {
    return entry.begin_bytes >= header_.metadata_size_bytes() &&
           entry.begin_bytes <= entry.end_bytes && entry.end_bytes <= file_size_bytes_;
  }

  V1Header header_;
  RangeReader::IndexBytes metadata_;
  std::uint64_t file_size_bytes_;
  Digest128 fingerprint_;
  std::vector<std::string> warnings_;
  Schema schema_;
};

// The tables of another copy of the file, of which the header is a part.
Result<RangeReader::IndexBytes> FetchTablesFromCopies(const RangeReader& source, std::uint32_t file,
                                                      std::uint64_t size_bytes) {
  const std::uint64_t file_size_bytes = source.file_size_bytes(file);
  const auto is_right = [&](std::span<const std::byte> bytes) {
    const auto header = DecodeV1Header(bytes, file_size_bytes);
    return header && header.value().metadata_size_bytes() == bytes.size() &&
           CheckV1Tables(header.value(), bytes, file_size_bytes);
  };
  auto copy = FFR_TRY(FileCopies::ReadRight(source, file, 0, size_bytes, is_right));
  const std::span<const std::byte> bytes = *copy;
  return RangeReader::IndexBytes{std::move(copy), bytes};
}

// The same if the header may be what is damaged, and with it the size of the tables.
Result<RangeReader::IndexBytes> FetchFromCopies(const RangeReader& source, std::uint32_t file,
                                                const V1Header& damaged) {
  auto tables = FetchTablesFromCopies(source, file, damaged.metadata_size_bytes());
  if (tables || tables.error().code != ErrorCode::kCorruption) return tables;
  const std::uint64_t file_size_bytes = source.file_size_bytes(file);
  const auto is_another = [&](std::span<const std::byte> bytes) {
    const auto header = DecodeV1Header(bytes, file_size_bytes);
    return header && header.value().record_count != damaged.record_count;
  };
  const auto copy =
      FFR_TRY(FileCopies::ReadRight(source, file, 0, V1Header::kEncodedSizeBytes, is_another));
  const auto header = FFR_TRY(DecodeV1Header(*copy, file_size_bytes));
  return FetchTablesFromCopies(source, file, header.metadata_size_bytes());
}

}  // namespace

Result<std::unique_ptr<FileIndex>> OpenV1Index(const RangeReader& source, std::uint32_t file,
                                               const V1Header& found_header,
                                               const RecordReader::Options& options) {
  V1Header header = found_header;
  const std::uint64_t file_size_bytes = source.file_size_bytes(file);
  auto metadata = FFR_TRY(source.MapIndex(file, 0, header.metadata_size_bytes()));
  WillNeed(metadata.bytes);  // All of it is checked next.
  std::vector<std::string> warnings;
  if (header.metadata_crc32 == 0)
    warnings.push_back(source.file_name(file) +
                       ": has no metadata checksum: written before September 2021. Its records "
                       "are still checked one by one");
  if (options.verify_checksums) {
    auto checked = CheckV1Tables(header, metadata.bytes, file_size_bytes);
    if (!checked) {
      auto other = FetchFromCopies(source, file, header);
      if (!other && other.error().code != ErrorCode::kCorruption) return std::move(other).error();
      if (other) {
        metadata = std::move(other).value();
        header = FFR_TRY(DecodeV1Header(metadata.bytes, file_size_bytes));
        checked = {};
      }
    }
    if (!checked && !options.salvage) return std::move(checked).error();
    if (!checked)
      warnings.push_back(source.file_name(file) +
                         ": opened with salvage though damaged: " + checked.error().message);
  }
  return std::unique_ptr<FileIndex>(
      new V1Index(header, std::move(metadata), file_size_bytes, std::move(warnings)));
}

}  // namespace ffrecord
