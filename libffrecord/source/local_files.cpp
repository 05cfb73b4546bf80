#include "libffrecord/source/local_files.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/machine_memory.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/source/local_files_impl.h"
#include "libffrecord/source/local_queue.h"

namespace ffrecord {
namespace {

using Way = OpenFiles::Way;

// The most mappings of one reader: half of the kernel's default limit for a process
// (vm.max_map_count), because memory and threads need some too.
constexpr std::uint32_t kMappingsMax = 32'000;

}  // namespace

LocalFiles::LocalFiles(std::unique_ptr<OpenFiles> files, const SourceOptions& options,
                       IoPolicy policy, bool page_cache_first,
                       std::vector<bool> tells_what_is_in_memory)
    : files_(std::move(files)),
      queue_depth_(options.queue_depth),
      policy_(policy),
      page_cache_first_(page_cache_first),
      tells_what_is_in_memory_(std::move(tells_what_is_in_memory)),
      whole_(files_->count()) {}

LocalFiles::~LocalFiles() {
  for (const auto& whole : whole_) delete whole.load();
}

Result<void> LocalFiles::ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                                  Patience& patience) const {
  return ReadLocalFiles(*this, ranges, arrived, patience);
}

Result<std::unique_ptr<RangeQueue>> LocalFiles::MakeQueue(QueueUse use) const {
  return MakeLocalQueue(*this, use);
}

std::span<const std::byte> LocalFiles::Mapped(std::uint32_t file) const {
  if (policy_ == IoPolicy::kDirect && !page_cache_first_) return {};
  const Mapping* whole = Whole(file);
  // If a page of the mapping was lost, a read tells whether the file has it.
  const bool is_whole = whole != nullptr && !(*whole)->has_lost();
  return is_whole ? (*whole)->bytes() : std::span<const std::byte>();
}

std::string LocalFiles::Trouble(std::uint32_t file, ErrorCode) const {
  const auto pin = files_->Take(file, WayOf(file));
  return pin ? std::string() : pin.error().message;
}

bool LocalFiles::HasChanged() const {
  for (std::uint32_t file = 0; file < files_->count(); ++file)
    if (files_->HasChanged(file)) return true;
  return false;
}

Result<OpenFiles::Pin> LocalFiles::Take(std::uint32_t file, Way way) const {
  auto pin = files_->Take(file, way);
  if (pin || pin.error().code == ErrorCode::kCorruption) return pin;
  return Error{ErrorCode::kIo, std::move(pin).error().message, pin.error().system_errno};
}

ErrorCode LocalFiles::StatusOf(const RangeRead& range, std::int64_t result) const noexcept {
  const bool is_whole = result == std::ssize(range.destination);
  if (is_whole && result > 0) return ErrorCode::kOk;
  if (PassesEnd(range)) return ErrorCode::kCorruption;
  if (result < 0) return ErrorCode::kIo;
  // An aligned read of the last block ends at the file's end and not before.
  const std::uint64_t end_bytes = range.offset_bytes + static_cast<std::uint64_t>(result);
  return is_whole || end_bytes >= file_size_bytes(range.file) ? ErrorCode::kOk
                                                              : ErrorCode::kCorruption;
}

void LocalFiles::ChooseWays(std::span<const RangeRead> ranges, std::vector<Way>& ways) const {
  ways.clear();
  for (const RangeRead& range : ranges) ways.push_back(WayOf(range.file));
  if (policy_ == IoPolicy::kDirect && page_cache_first_ && warm_guess_.Try())
    PreferPageCache(ranges, ways);
}

void LocalFiles::PreferPageCache(std::span<const RangeRead> ranges, std::vector<Way>& ways) const {
  std::size_t hits = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const RangeRead& range = ranges[i];
    if (!tells_what_is_in_memory_[range.file]) continue;
    const std::span<const std::byte> mapped = Mapped(range.file);
    if (range.offset_bytes >= mapped.size()) continue;
    const std::uint64_t size =
        std::min<std::uint64_t>(range.destination.size(), mapped.size() - range.offset_bytes);
    if (!IsInMemory(mapped.subspan(range.offset_bytes, size))) continue;
    ways[i] = Way::kBuffered;
    ++hits;
  }
  constexpr std::size_t kLooksPerHit = 16;  // A hit saves far more than so many looks cost.
  if (hits * kLooksPerHit < ranges.size())
    warm_guess_.Wrong();
  else
    warm_guess_.Right();
}

// Maps the whole file once, because address space is free, and hands out parts of it.
Result<RangeReader::IndexBytes> LocalFiles::MapInside(std::uint32_t file,
                                                      std::uint64_t offset_bytes,
                                                      std::uint64_t size_bytes) const {
  const Mapping* whole = Whole(file);
  // Under a limit of address space, a large file may not fit although its index does.
  if (whole == nullptr) return MapPart(file, offset_bytes, size_bytes);
  return IndexBytes{*whole, (*whole)->bytes().subspan(offset_bytes, size_bytes)};
}

// The mapping of the whole file, made when it is first asked for; null if that is not possible.
const LocalFiles::Mapping* LocalFiles::Whole(std::uint32_t file) const {
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
  // If two threads map at once, the second mapping is dropped. No mutex, because a fork could leave
  // it locked.
  if (whole_[file].compare_exchange_strong(whole, fresh.get())) whole = fresh.release();
  return whole;
}

// Maps a part of the file; reads it into memory if this reader has kMappingsMax mappings, or the
// kernel refuses one more, as with very many files.
Result<RangeReader::IndexBytes> LocalFiles::MapPart(std::uint32_t file, std::uint64_t offset_bytes,
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

Result<RangeReader::IndexBytes> LocalFiles::ReadPart(int fd, std::uint32_t file,
                                                     std::uint64_t offset_bytes,
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
  // The buffers of batches have no larger alignment.
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
  return OpenLocalFiles(paths, options, asks ? FreeMemoryBytes() : 0);
}

}  // namespace ffrecord
