#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/record_writer.h>

#include "libffrecord/base/endian.h"
#include "libffrecord/format/v1_tables.h"
#include "libffrecord/format/v2_record.h"
#include "libffrecord/io/atomic_file.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/record/write/record_writer_impl.h"

namespace ffrecord {
namespace {

// Table entries that are kept until they are written in one piece.
constexpr std::size_t kEntriesKeptMax = 65'536;

// One of the two tables in front of the data, written as it grows.
class TableWriter {
 public:
  TableWriter(std::uint64_t begin_bytes, std::size_t entry_size_bytes)
      : end_bytes_(begin_bytes), entry_size_bytes_(entry_size_bytes) {}

  Result<void> Add(AtomicFile& file, std::uint64_t value) {
    kept_.resize(kept_.size() + entry_size_bytes_);
    StoreLittleEndian(std::span<std::byte>(kept_), kept_.size() - entry_size_bytes_, value,
                      entry_size_bytes_);
    if (kept_.size() < kEntriesKeptMax * entry_size_bytes_) return {};
    return Flush(file);
  }

  Result<void> Flush(AtomicFile& file) {
    if (kept_.empty()) return {};
    FFR_TRY(file.WriteAt(end_bytes_, kept_));
    crc32_ = Crc32(kept_, crc32_);
    end_bytes_ += kept_.size();
    kept_.clear();
    return {};
  }

  std::uint32_t crc32() const noexcept { return crc32_; }

 private:
  std::uint64_t end_bytes_;
  std::size_t entry_size_bytes_;
  std::uint32_t crc32_ = 0;  // Checksum of the flushed bytes.
  std::vector<std::byte> kept_;
};

}  // namespace

// Memory: a part of each table, and AtomicFile's buffers.
struct V1Writer::Impl {
  std::filesystem::path path;
  V1Header header;
  AtomicFile file;
  TableWriter crcs;
  TableWriter offsets;
  std::uint64_t written_count = 0;
  std::uint64_t raw_size_bytes = 0;
  std::optional<Error> broken;
  bool closed = false;

  Impl(std::filesystem::path name, const V1Header& header_, AtomicFile file_)
      : path(std::move(name)),
        header(header_),
        file(std::move(file_)),
        crcs(V1Header::kEncodedSizeBytes, 4),
        offsets(V1Header::kEncodedSizeBytes + 4 * header.record_count, 8) {}

  Error Invalid(const std::string& found) const {
    return {ErrorCode::kInvalidArgument, path.string() + ": " + found};
  }
  Result<void> Kept(Result<void> result) {
    if (!result && !broken) broken = result.error();
    return result;
  }

  Result<void> Append(std::span<const std::byte> record);
  Result<void> Finish();
  Result<Digest128> PublishedFingerprint() const;
};

Result<void> V1Writer::Impl::Append(std::span<const std::byte> record) {
  FFR_TRY(crcs.Add(file, Crc32(record)));
  FFR_TRY(offsets.Add(file, file.size_bytes()));
  FFR_TRY(file.Append(record));
  raw_size_bytes += record.size();
  ++written_count;
  return {};
}

Result<void> V1Writer::Impl::Finish() {
  FFR_TRY(crcs.Flush(file));
  FFR_TRY(offsets.Flush(file));
  std::array<std::byte, V1Header::kEncodedSizeBytes> encoded{};
  const std::span<std::byte> bytes = encoded;
  StoreLittleEndian(bytes, 4, header.record_count);
  // The CRC runs over count, CRCs and offsets; the two tables were written side by side.
  std::uint32_t crc32 = Crc32(bytes.subspan(4));
  crc32 = CombineCrc32(crc32, crcs.crc32(), 4 * header.record_count);
  crc32 = CombineCrc32(crc32, offsets.crc32(), 8 * header.record_count);
  StoreLittleEndian(bytes, 0, crc32);
  FFR_TRY(file.WriteAt(0, bytes));
  return file.Publish();
}

// Only the file has the whole tables. It is read through its descriptor, because its name may be
// another file's by now.
Result<Digest128> V1Writer::Impl::PublishedFingerprint() const {
  const MappedFile metadata = FFR_TRY(MappedFile::Map(file.fd(), 0, header.metadata_size_bytes()));
  return V1Fingerprint(metadata.bytes(), file.size_bytes());
}

Result<V1Writer> CreateV1Writer(const std::filesystem::path& path, std::uint64_t record_count,
                                bool replace, std::unique_ptr<IoEngine> engine) {
  if (record_count >= kRecordCountMax)
    return Error{ErrorCode::kInvalidArgument, "create " + path.string() + ": record_count is " +
                                                  std::to_string(record_count) +
                                                  ", must be below 2^48"};
  const V1Header header{0, record_count};
  AtomicFile::Options options;
  options.direct = true;
  options.buffer_size_bytes = kWriteSizeBytes;
  options.replace = replace;
  options.expected_size_bytes = header.metadata_size_bytes();
  auto file = FFR_TRY(AtomicFile::Create(path, options, std::move(engine)));
  auto impl = std::make_unique<V1Writer::Impl>(path, header, std::move(file));
  FFR_TRY(impl->Kept(impl->file.AppendZeros(header.metadata_size_bytes())));
  return V1Writer(std::move(impl));
}

Result<V1Writer> V1Writer::Create(const std::filesystem::path& path, std::uint64_t record_count,
                                  bool replace) {
  return CreateV1Writer(path, record_count, replace, nullptr);
}

V1Writer::V1Writer(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
V1Writer::V1Writer(V1Writer&&) noexcept = default;
V1Writer& V1Writer::operator=(V1Writer&&) noexcept = default;
V1Writer::~V1Writer() = default;

Result<void> V1Writer::Write(std::span<const std::byte> record) {
  if (impl_->closed) return impl_->Invalid("the writer is closed");
  if (impl_->broken) return *impl_->broken;
  if (impl_->written_count == impl_->header.record_count)
    return impl_->Invalid("all " + std::to_string(impl_->header.record_count) +
                          " declared records are written; declare more");
  return impl_->Kept(impl_->Append(record));
}

Result<WriteSummary> V1Writer::Close() {
  if (impl_->closed) return impl_->Invalid("the writer is closed already");
  if (impl_->broken) return *impl_->broken;
  if (impl_->written_count < impl_->header.record_count)
    return impl_->Invalid("only " + std::to_string(impl_->written_count) + " of " +
                          std::to_string(impl_->header.record_count) +
                          " declared records are written; nothing is published");
  impl_->closed = true;
  auto finished = impl_->Kept(impl_->Finish());
  if (!finished) return std::move(finished).error();
  const Digest128 fingerprint = FFR_TRY(impl_->PublishedFingerprint());
  return WriteSummary{impl_->written_count, impl_->raw_size_bytes, impl_->file.size_bytes(),
                      fingerprint};
}

}  // namespace ffrecord
