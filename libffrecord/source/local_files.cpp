#include "libffrecord/source/local_files.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/thread_scratch.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/open_files.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/source/resident_guess.h"

namespace ffrecord {
namespace {

using Way = OpenFiles::Way;

// Mappings that one reader makes: half of what the kernel allows a process by default
// (vm.max_map_count), for memory and threads need some too.
constexpr std::uint32_t kMappingsMax = 32'000;

// For how many milliseconds a thread waits for a descriptor while others use them all.
constexpr int kWaitCountMax = 5000;

struct PendingRead {
  RangeRead* range;
  Way way;
};

struct CallMemory {
  bool Recycle() {
    constexpr std::size_t kKeptMax = std::size_t{1} << 14;
    pending.clear();
    requests.clear();
    pins.clear();
    return pending.capacity() <= kKeptMax;
  }

  std::vector<PendingRead> pending;
  std::vector<IoRequest> requests;  // Of the pending reads, those whose files are open.
  std::vector<OpenFiles::Pin> pins;
};

// Descriptors are read at stated offsets only, so threads and forked children share them.
class LocalFiles final : public RangeReader {
 public:
  // `page_cache_first`: direct descriptors are for what the page cache does not hold; which files
  // tell what that is.
  LocalFiles(std::unique_ptr<OpenFiles> files, const SourceOptions& options, IoPolicy policy,
             bool page_cache_first, std::vector<bool> tells_what_is_in_memory)
      : files_(std::move(files)),
        queue_depth_(options.queue_depth),
        policy_(policy),
        page_cache_first_(page_cache_first),
        tells_what_is_in_memory_(std::move(tells_what_is_in_memory)),
        whole_(files_->count()) {}
  ~LocalFiles() override {
    for (const auto& whole : whole_) delete whole.load();
  }

  std::size_t file_count() const noexcept override { return files_->count(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return files_->name(file);
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return files_->size_bytes(file);
  }
  // Blocks of direct reads; 1 where reads go through the page cache.
  std::uint32_t alignment_bytes(std::uint32_t file) const noexcept override {
    return std::max(files_->direct_alignment_bytes(file), 1U);
  }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    if (ranges.empty()) return {};
    const ThreadScratch<CallMemory> memory;
    for (RangeRead& range : ranges) memory->pending.push_back({&range, WayOf(range.file)});
    if (policy_ == IoPolicy::kDirect && page_cache_first_ && warm_guess_.Try())
      PreferPageCache(memory->pending);
    IoEngine* engine = FFR_TRY(ThreadIoEngine(queue_depth_));
    const auto ended = [&](const IoRequest& request) {
      auto& range = *static_cast<RangeRead*>(request.user);
      range.status = StatusOf(range, request.result);
      arrived(range);
    };
    std::span<const PendingRead> left = memory->pending;
    while (!left.empty()) {
      left = left.subspan(PinFiles(left, *memory, arrived));
      auto run = RunAll(*engine, memory->requests, queue_depth_, ended, &patience);
      if (patience.was_over()) return GivenUp();
      FFR_TRY(std::move(run));
      memory->requests.clear();
      memory->pins.clear();
    }
    return {};
  }

  std::span<const std::byte> Mapped(std::uint32_t file) const override {
    if (policy_ == IoPolicy::kDirect && !page_cache_first_) return {};
    const Mapping* whole = Whole(file);
    // Where it has lost a page, a read knows whether the file has it.
    const bool is_whole = whole != nullptr && !(*whole)->has_lost();
    return is_whole ? (*whole)->bytes() : std::span<const std::byte>();
  }

  std::string Trouble(std::uint32_t file, ErrorCode) const override {
    const auto pin = files_->Take(file, WayOf(file));
    return pin ? std::string() : pin.error().message;
  }

  bool HasChanged() const override {
    for (std::uint32_t file = 0; file < files_->count(); ++file)
      if (files_->HasChanged(file)) return true;
    return false;
  }

  bool HasShrunk(std::uint32_t file) const override { return files_->HasShrunk(file); }

  IoPolicy policy() const noexcept override { return policy_; }

 protected:
  // The whole file is mapped once, for addresses cost nothing; parts of it are handed out.
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override {
    const Mapping* whole = Whole(file);
    // Under a limit of address space a large file may not fit, though its index does.
    if (whole == nullptr) return MapPart(file, offset_bytes, size_bytes);
    return IndexBytes{*whole, (*whole)->bytes().subspan(offset_bytes, size_bytes)};
  }

 private:
  using Mapping = std::shared_ptr<const MappedFile>;

  Way WayOf(std::uint32_t file) const noexcept {
    return files_->direct_alignment_bytes(file) > 0 ? Way::kDirect : Way::kBuffered;
  }

  // The file's descriptor. A file that is gone now, but was there, is an error of I/O.
  Result<OpenFiles::Pin> Take(std::uint32_t file, Way way) const {
    auto pin = files_->Take(file, way);
    if (pin || pin.error().code == ErrorCode::kCorruption) return pin;
    return Error{ErrorCode::kIo, std::move(pin).error().message, pin.error().system_errno};
  }

  static bool IsExhausted(const Result<OpenFiles::Pin>& pin) noexcept {
    return !pin && (pin.error().system_errno == EMFILE || pin.error().system_errno == ENFILE);
  }

  // Opens the files of as many reads from the front of `pending` as can have them open at a time,
  // and adds the requests to `memory`. Of a read whose file does not open, `arrived` learns it.
  // Returns how many reads are done with.
  std::size_t PinFiles(std::span<const PendingRead> pending, CallMemory& memory,
                       const Arrived& arrived) const {
    std::vector<OpenFiles::Pin>& pins = memory.pins;
    const PendingRead* pinned = nullptr;  // The read for which the last pin was taken.
    for (std::size_t seen = 0; seen < pending.size(); ++seen) {
      const auto& [range, way] = pending[seen];
      if (pinned == nullptr || way != pinned->way || range->file != pinned->range->file) {
        if (pins.size() == files_->pin_count_max()) return seen;
        auto pin = Take(range->file, way);
        // Others have all descriptors. Those of this round come back with it; without one, somebody
        // else's round ends.
        if (IsExhausted(pin) && !pins.empty()) return seen;
        for (int wait = 0; IsExhausted(pin) && wait < kWaitCountMax; ++wait) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          pin = Take(range->file, way);
        }
        if (!pin) {
          range->status =
              pin.error().code == ErrorCode::kCorruption ? ErrorCode::kCorruption : ErrorCode::kIo;
          arrived(*range);
          continue;
        }
        pins.push_back(std::move(pin).value());
        pinned = &pending[seen];
      }
      memory.requests.push_back({.fd = pins.back().fd(),
                                 .offset_bytes = range->offset_bytes,
                                 .buffer = range->destination,
                                 .user = range});
    }
    return pending.size();
  }

  ErrorCode StatusOf(const RangeRead& range, std::int64_t result) const noexcept {
    const bool is_whole = result == std::ssize(range.destination);
    if (is_whole && result > 0) return ErrorCode::kOk;
    if (PassesEnd(range)) return ErrorCode::kCorruption;
    if (result < 0) return ErrorCode::kIo;
    // An aligned read of the last block ends at the file's end and not before.
    const std::uint64_t end_bytes = range.offset_bytes + static_cast<std::uint64_t>(result);
    return is_whole || end_bytes >= file_size_bytes(range.file) ? ErrorCode::kOk
                                                                : ErrorCode::kCorruption;
  }

  // Sends what is in the page cache the way that reads from there.
  void PreferPageCache(std::vector<PendingRead>& pending) const {
    std::size_t hits = 0;
    for (auto& [read, way] : pending) {
      const RangeRead& range = *read;
      if (!tells_what_is_in_memory_[range.file]) continue;
      const std::span<const std::byte> mapped = Mapped(range.file);
      if (range.offset_bytes >= mapped.size()) continue;
      const std::uint64_t size =
          std::min<std::uint64_t>(range.destination.size(), mapped.size() - range.offset_bytes);
      if (!IsInMemory(mapped.subspan(range.offset_bytes, size))) continue;
      way = Way::kBuffered;
      ++hits;
    }
    constexpr std::size_t kLooksPerHit = 16;  // A hit saves far more than so many looks cost.
    if (hits * kLooksPerHit < pending.size())
      warm_guess_.Wrong();
    else
      warm_guess_.Right();
  }

  // The mapping of the whole file, made when it is first asked for; null if that is not possible.
  const Mapping* Whole(std::uint32_t file) const {
    const Mapping* whole = whole_[file].load(std::memory_order_acquire);
    if (whole != nullptr) return whole;
    if (mapping_count_.load(std::memory_order_relaxed) >= kMappingsMax) return nullptr;
    const auto pin = files_->Take(file, Way::kBuffered);
    if (!pin) return nullptr;
    auto mapped = MappedFile::Map(pin.value().fd(), 0, file_size_bytes(file));
    if (!mapped) return nullptr;
    mapping_count_.fetch_add(1, std::memory_order_relaxed);
    ExpectRandomAccess(mapped.value().bytes());
    auto fresh = std::make_unique<const Mapping>(
        std::make_shared<const MappedFile>(std::move(mapped).value()));
    // Of two threads that map at once, one wins and the other's goes. No mutex: see V2Index.
    if (whole_[file].compare_exchange_strong(whole, fresh.get())) whole = fresh.release();
    return whole;
  }

  // A part of the file, mapped; or read into memory, where there are as many mappings as this
  // reader makes or the kernel allows, as with more files than that.
  Result<IndexBytes> MapPart(std::uint32_t file, std::uint64_t offset_bytes,
                             std::uint64_t size_bytes) const {
    const auto pin = FFR_TRY(Take(file, Way::kBuffered));
    if (mapping_count_.load(std::memory_order_relaxed) >= kMappingsMax)
      return ReadPart(pin.fd(), file, offset_bytes, size_bytes);
    auto mapped = MappedFile::Map(pin.fd(), offset_bytes, size_bytes);
    if (!mapped && mapped.error().system_errno == ENOMEM)
      return ReadPart(pin.fd(), file, offset_bytes, size_bytes);
    if (!mapped) return std::move(mapped).error();
    mapping_count_.fetch_add(1, std::memory_order_relaxed);
    auto owner = std::make_shared<const MappedFile>(std::move(mapped).value());
    const auto bytes = owner->bytes();
    return IndexBytes{std::move(owner), bytes};
  }

  Result<IndexBytes> ReadPart(int fd, std::uint32_t file, std::uint64_t offset_bytes,
                              std::uint64_t size_bytes) const {
    auto memory = FFR_TRY(BufferPool::Process().Take(size_bytes));
    IoRequest request{.fd = fd, .offset_bytes = offset_bytes, .buffer = *memory};
    IoEngine* engine = FFR_TRY(ThreadIoEngine(queue_depth_));
    FFR_TRY(RunAll(*engine, {&request, 1}, 1));
    const RangeRead range{file, offset_bytes, *memory};
    const ErrorCode status = StatusOf(range, request.result);
    if (status != ErrorCode::kOk)
      return Error{status, file_name(file) + ": cannot read " + std::to_string(size_bytes) +
                               " bytes of index at " + std::to_string(offset_bytes)};
    const std::span<const std::byte> bytes = *memory;
    return IndexBytes{std::move(memory), bytes};
  }

  const std::unique_ptr<const OpenFiles> files_;
  const std::uint32_t queue_depth_;
  const IoPolicy policy_;  // Of what is not in memory.
  const bool page_cache_first_;
  const std::vector<bool> tells_what_is_in_memory_;  // Asked only where that is of use.
  mutable std::atomic<std::uint32_t> mapping_count_{0};
  mutable ResidentGuess warm_guess_;  // Whether anything is in the page cache.
  mutable std::vector<std::atomic<const Mapping*>> whole_;  // For each file; owned.
};

}  // namespace

Result<std::unique_ptr<RangeReader>> OpenLocalFiles(std::span<const std::filesystem::path> paths,
                                                    const SourceOptions& options,
                                                    std::uint64_t page_cache_room_bytes) {
  if (paths.empty())
    return Error{ErrorCode::kInvalidArgument, "open records: the list of files is empty"};
  auto files = FFR_TRY(OpenFiles::Open(paths, options.io != IoPolicy::kBuffered));
  std::uint64_t size_bytes = 0;
  for (std::uint32_t file = 0; file < paths.size(); ++file) size_bytes += files->size_bytes(file);
  const bool fits = size_bytes <= page_cache_room_bytes / 2;
  const bool direct = options.io == IoPolicy::kDirect || (options.io == IoPolicy::kAuto && !fits);
  // Batches are aligned to this much and no more.
  if (direct) FFR_TRY(files->OpenDirectly(BufferPool::kAlignment));
  std::vector<bool> tells(paths.size());
  if (direct && options.io == IoPolicy::kAuto)
    for (std::uint32_t file = 0; file < paths.size(); ++file)
      tells[file] = TellsWhatIsInMemory(FFR_TRY(files->Take(file, Way::kBuffered)).fd());
  return std::unique_ptr<RangeReader>(std::make_unique<LocalFiles>(
      std::move(files), options, direct ? IoPolicy::kDirect : IoPolicy::kBuffered,
      options.io != IoPolicy::kDirect, std::move(tells)));
}

Result<std::unique_ptr<RangeReader>> OpenLocalFiles(std::span<const std::filesystem::path> paths,
                                                    const SourceOptions& options) {
  const bool asks = options.io == IoPolicy::kAuto;
  return OpenLocalFiles(paths, options, asks ? PageCacheRoomBytes() : 0);
}

}  // namespace ffrecord
