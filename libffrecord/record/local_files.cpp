#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/record/range_reader.h"
#include "libffrecord/record/resident_guess.h"

namespace ffrecord {
namespace {

struct LocalFile {
  std::string name;
  ReadOnlyFile file;
  bool tells_what_is_in_memory = false;  // Asked only where direct reads are not all there is.

  // Blocks of direct reads; 1 where reads go through the page cache.
  std::uint32_t alignment_bytes() const noexcept {
    if (!file.direct_fd) return 1;
    return std::max(file.direct_alignment.memory_bytes, file.direct_alignment.offset_bytes);
  }
  int read_fd() const noexcept { return file.direct_fd ? file.direct_fd.get() : file.fd.get(); }
};

// The thread's memory for requests: what one call leaves to the next.
class Requests {
 public:
  Requests() : requests_(std::move(Kept())) { requests_.clear(); }
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests() {
    constexpr std::size_t kKeptMax = std::size_t{1} << 14;
    if (requests_.capacity() <= kKeptMax) Kept() = std::move(requests_);
  }
  std::vector<IoRequest>* operator->() noexcept { return &requests_; }
  std::vector<IoRequest>& operator*() noexcept { return requests_; }

 private:
  static std::vector<IoRequest>& Kept() {
    thread_local std::vector<IoRequest> kept;
    return kept;
  }
  std::vector<IoRequest> requests_;
};

// Descriptors are read at stated offsets only, so threads and forked children share them.
class LocalFiles final : public RangeReader {
 public:
  // `page_cache_first`: direct descriptors are for what the page cache does not hold.
  LocalFiles(std::vector<LocalFile> files, std::uint32_t queue_depth, IoPolicy policy,
             bool page_cache_first)
      : files_(std::move(files)),
        queue_depth_(queue_depth),
        policy_(policy),
        page_cache_first_(page_cache_first),
        whole_(files_.size()) {}
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
    Requests requests;
    for (RangeRead& range : ranges)
      requests->push_back({.fd = files_[range.file].read_fd(),
                           .offset_bytes = range.offset_bytes,
                           .buffer = range.destination,
                           .user = &range});
    if (policy_ == IoPolicy::kDirect && page_cache_first_ && warm_guess_.Try())
      PreferPageCache(*requests);
    IoEngine* engine = FFR_TRY(ThreadIoEngine(queue_depth_));
    return RunAll(*engine, *requests, queue_depth_, [&](const IoRequest& request) {
      auto& range = *static_cast<RangeRead*>(request.user);
      range.status = StatusOf(range, request.result);
      arrived(range);
    });
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
    if (policy_ == IoPolicy::kDirect && !page_cache_first_) return {};
    const Mapping* whole = Whole(file);
    return whole != nullptr ? (*whole)->bytes() : std::span<const std::byte>();
  }

  IoPolicy policy() const noexcept override { return policy_; }

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

  // Sends what is in the page cache to the descriptors that read from there.
  void PreferPageCache(std::vector<IoRequest>& requests) const {
    std::size_t hits = 0;
    for (IoRequest& request : requests) {
      const auto& range = *static_cast<const RangeRead*>(request.user);
      const LocalFile& local = files_[range.file];
      if (!local.tells_what_is_in_memory) continue;
      const std::span<const std::byte> mapped = Mapped(range.file);
      if (range.offset_bytes >= mapped.size()) continue;
      const std::uint64_t size =
          std::min<std::uint64_t>(range.destination.size(), mapped.size() - range.offset_bytes);
      if (!IsInMemory(mapped.subspan(range.offset_bytes, size))) continue;
      request.fd = local.file.fd.get();
      ++hits;
    }
    constexpr std::size_t kLooksPerHit = 16;  // A hit saves far more than so many looks cost.
    if (hits * kLooksPerHit < requests.size())
      warm_guess_.Wrong();
    else
      warm_guess_.Right();
  }

  // The mapping of the whole file, made when it is first asked for; null if that is not possible.
  const Mapping* Whole(std::uint32_t file) const {
    const Mapping* whole = whole_[file].load(std::memory_order_acquire);
    if (whole != nullptr) return whole;
    const ReadOnlyFile& opened = files_[file].file;
    auto mapped = MappedFile::Map(opened.fd.get(), 0, opened.size_bytes);
    if (!mapped) return nullptr;
    ExpectRandomAccess(mapped.value().bytes());
    auto fresh = std::make_unique<const Mapping>(
        std::make_shared<const MappedFile>(std::move(mapped).value()));
    // Of two threads that map at once, one wins and the other's goes. No mutex: see V2Index.
    if (whole_[file].compare_exchange_strong(whole, fresh.get())) whole = fresh.release();
    return whole;
  }

  // A part of the file, mapped; or read into memory, where the process has as many mappings as the
  // kernel allows (vm.max_map_count), as with more files than that.
  Result<IndexBytes> MapPart(std::uint32_t file, std::uint64_t offset_bytes,
                             std::uint64_t size_bytes) const {
    auto mapped = MappedFile::Map(files_[file].file.fd.get(), offset_bytes, size_bytes);
    if (!mapped && mapped.error().system_errno == ENOMEM)
      return ReadPart(file, offset_bytes, size_bytes);
    if (!mapped) return std::move(mapped).error();
    auto owner = std::make_shared<const MappedFile>(std::move(mapped).value());
    const auto bytes = owner->bytes();
    return IndexBytes{std::move(owner), bytes};
  }

  Result<IndexBytes> ReadPart(std::uint32_t file, std::uint64_t offset_bytes,
                              std::uint64_t size_bytes) const {
    auto memory = FFR_TRY(BufferPool::Process().Take(size_bytes));
    IoRequest request{
        .fd = files_[file].file.fd.get(), .offset_bytes = offset_bytes, .buffer = *memory};
    IoEngine* engine = FFR_TRY(ThreadIoEngine(queue_depth_));
    FFR_TRY(RunAll(*engine, {&request, 1}, 1));
    const RangeRead range{file, offset_bytes, *memory};
    const ErrorCode status = StatusOf(range, request.result);
    if (status != ErrorCode::kOk)
      return Error{status, files_[file].name + ": cannot read " + std::to_string(size_bytes) +
                               " bytes of index at " + std::to_string(offset_bytes)};
    const std::span<const std::byte> bytes = *memory;
    return IndexBytes{std::move(memory), bytes};
  }

  const std::vector<LocalFile> files_;
  const std::uint32_t queue_depth_;
  const IoPolicy policy_;  // Of what is not in memory.
  const bool page_cache_first_;
  mutable ResidentGuess warm_guess_;  // Whether anything is in the page cache.
  mutable std::vector<std::atomic<const Mapping*>> whole_;  // For each file; owned.
};

}  // namespace

Result<std::unique_ptr<RangeReader>> OpenLocalFiles(std::span<const std::filesystem::path> paths,
                                                    const RecordReader::Options& options,
                                                    std::uint64_t page_cache_room_bytes) {
  if (paths.empty())
    return Error{ErrorCode::kInvalidArgument, "open records: the list of files is empty"};
  std::vector<LocalFile> files;
  files.reserve(paths.size());
  MakeRoomForDescriptors(paths.size() * (options.io == IoPolicy::kBuffered ? 1 : 2));
  std::uint64_t size_bytes = 0;
  for (const std::filesystem::path& path : paths) {
    LocalFile local;
    local.name = path.string();
    local.file = FFR_TRY(OpenReadOnly(path, false));
    size_bytes += local.file.size_bytes;
    files.push_back(std::move(local));
  }
  const bool fits = size_bytes <= page_cache_room_bytes / 2;
  const bool direct = options.io == IoPolicy::kDirect || (options.io == IoPolicy::kAuto && !fits);
  for (LocalFile& local : files) {
    if (direct) OpenDirect(local.file);
    // Batches are aligned to this much and no more.
    if (local.alignment_bytes() > BufferPool::kAlignment) local.file.direct_fd.Reset();
    if (direct && options.io == IoPolicy::kAuto)
      local.tells_what_is_in_memory = TellsWhatIsInMemory(local.file.fd.get());
  }
  return std::unique_ptr<RangeReader>(std::make_unique<LocalFiles>(
      std::move(files), options.queue_depth, direct ? IoPolicy::kDirect : IoPolicy::kBuffered,
      options.io != IoPolicy::kDirect));
}

Result<std::unique_ptr<RangeReader>> OpenLocalFiles(std::span<const std::filesystem::path> paths,
                                                    const RecordReader::Options& options) {
  const bool asks = options.io == IoPolicy::kAuto;
  return OpenLocalFiles(paths, options, asks ? PageCacheRoomBytes() : 0);
}

}  // namespace ffrecord
