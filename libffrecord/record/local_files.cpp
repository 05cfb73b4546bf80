#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/record/range_reader.h"

namespace ffrecord {
namespace {

struct LocalFile {
  std::string name;
  ReadOnlyFile file;

  // Blocks of direct reads; 1 where reads go through the page cache.
  std::uint32_t alignment_bytes() const noexcept {
    if (!file.direct_fd) return 1;
    return std::max(file.direct_alignment.memory_bytes, file.direct_alignment.offset_bytes);
  }
  int read_fd() const noexcept { return file.direct_fd ? file.direct_fd.get() : file.fd.get(); }
};

// Descriptors are read at stated offsets only, so threads and forked children share them.
class LocalFiles final : public RangeReader {
 public:
  LocalFiles(std::vector<LocalFile> files, std::uint32_t queue_depth)
      : files_(std::move(files)), queue_depth_(queue_depth), whole_(files_.size()) {}
  ~LocalFiles() override {
    for (const auto& whole : whole_) delete whole.load();
  }

  std::size_t file_count() const noexcept override { return files_.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return files_[file].name;
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return files_[file].file.size_bytes;
  }
  std::uint32_t alignment_bytes(std::uint32_t file) const noexcept override {
    return files_[file].alignment_bytes();
  }

  Result<void> Read(std::span<RangeRead> ranges) const override {
    return ReadEach(ranges, [](RangeRead&) {});
  }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived) const override {
    if (ranges.empty()) return {};
    // Memory that one call leaves to the next of its thread.
    thread_local std::vector<IoRequest> kept;
    std::vector<IoRequest> requests = std::move(kept);
    requests.assign(ranges.size(), {});
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      requests[i].fd = files_[ranges[i].file].read_fd();
      requests[i].offset_bytes = ranges[i].offset_bytes;
      requests[i].buffer = ranges[i].destination;
    }
    IoEngine* engine = FFR_TRY(ThreadIoEngine(queue_depth_));
    auto run = RunAll(*engine, requests, queue_depth_, [&](const IoRequest& request) {
      RangeRead& range = ranges[static_cast<std::size_t>(&request - requests.data())];
      range.status = StatusOf(range, request.result);
      arrived(range);
    });
    constexpr std::size_t kKeptRequestsMax = std::size_t{1} << 14;
    if (requests.capacity() <= kKeptRequestsMax) kept = std::move(requests);
    return run;
  }

  // The whole file is mapped once, for addresses cost nothing; parts of it are handed out.
  Result<IndexBytes> MapIndex(std::uint32_t file, std::uint64_t offset_bytes,
                              std::uint64_t size_bytes) const override {
    const ReadOnlyFile& opened = files_[file].file;
    if (offset_bytes > opened.size_bytes || size_bytes > opened.size_bytes - offset_bytes)
      return Error{ErrorCode::kCorruption,
                   files_[file].name + ": an index of " + std::to_string(size_bytes) +
                       " bytes at " + std::to_string(offset_bytes) + " passes the end of the file"};
    const Mapping* whole = Whole(file);
    // Under a limit of address space a large file may not fit, though its index does.
    if (whole == nullptr) return MapPart(file, offset_bytes, size_bytes);
    return IndexBytes{*whole, (*whole)->bytes().subspan(offset_bytes, size_bytes)};
  }

  std::span<const std::byte> Mapped(std::uint32_t file) const override {
    if (files_[file].file.direct_fd) return {};
    const Mapping* whole = Whole(file);
    return whole != nullptr ? (*whole)->bytes() : std::span<const std::byte>();
  }

  bool IsInMemory(std::uint32_t file, std::uint64_t offset_bytes) const override {
    return IsInPageCache(files_[file].file.fd.get(), offset_bytes);
  }

 private:
  using Mapping = std::shared_ptr<const MappedFile>;

  ErrorCode StatusOf(const RangeRead& range, std::int64_t result) const noexcept {
    if (result < 0) return ErrorCode::kIo;
    const auto arrived_bytes = static_cast<std::uint64_t>(result);
    if (arrived_bytes == range.destination.size()) return ErrorCode::kOk;
    // A widened read of the last block may end early, at the file's end and not before.
    const bool to_the_end = files_[range.file].alignment_bytes() > 1 &&
                            range.offset_bytes + arrived_bytes >= file_size_bytes(range.file);
    return to_the_end ? ErrorCode::kOk : ErrorCode::kCorruption;
  }

  // The mapping of the whole file, made when it is first asked for; null if that is not possible.
  const Mapping* Whole(std::uint32_t file) const {
    const Mapping* whole = whole_[file].load(std::memory_order_acquire);
    if (whole != nullptr) return whole;
    const ReadOnlyFile& opened = files_[file].file;
    auto mapped = MappedFile::Map(opened.fd.get(), 0, opened.size_bytes);
    if (!mapped) return nullptr;
    auto fresh = std::make_unique<const Mapping>(
        std::make_shared<const MappedFile>(std::move(mapped).value()));
    // Of two threads that map at once, one wins and the other's goes. No mutex: see V2Index.
    if (whole_[file].compare_exchange_strong(whole, fresh.get())) whole = fresh.release();
    return whole;
  }

  Result<IndexBytes> MapPart(std::uint32_t file, std::uint64_t offset_bytes,
                             std::uint64_t size_bytes) const {
    auto mapped = FFR_TRY(MappedFile::Map(files_[file].file.fd.get(), offset_bytes, size_bytes));
    auto owner = std::make_shared<const MappedFile>(std::move(mapped));
    const auto bytes = owner->bytes();
    return IndexBytes{std::move(owner), bytes};
  }

  const std::vector<LocalFile> files_;
  const std::uint32_t queue_depth_;
  mutable std::vector<std::atomic<const Mapping*>> whole_;  // For each file; owned.
};

}  // namespace

Result<std::unique_ptr<RangeReader>> OpenLocalFiles(std::span<const std::filesystem::path> paths,
                                                    const RecordReader::Options& options) {
  if (paths.empty())
    return Error{ErrorCode::kInvalidArgument, "open records: the list of files is empty"};
  std::vector<LocalFile> files;
  files.reserve(paths.size());
  for (const std::filesystem::path& path : paths) {
    LocalFile local;
    local.name = path.string();
    local.file = FFR_TRY(OpenReadOnly(path, options.io == IoPolicy::kDirect));
    // Batches are aligned to this much and no more.
    if (local.alignment_bytes() > BufferPool::kAlignment) local.file.direct_fd.Reset();
    files.push_back(std::move(local));
  }
  return std::unique_ptr<RangeReader>(
      std::make_unique<LocalFiles>(std::move(files), options.queue_depth));
}

}  // namespace ffrecord
