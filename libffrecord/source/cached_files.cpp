#include "libffrecord/source/cached_files.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "libffrecord/base/align.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/per_process.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/source/cached_view.h"
#include "libffrecord/source/resident_files.h"

namespace ffrecord {
namespace {

constexpr std::uint32_t kReadsAtOnce = 64;

class CachedFiles final : public RangeReader, public ResidentFiles {
 public:
  CachedFiles(std::shared_ptr<const RangeReader> source, std::shared_ptr<const BlockCache> cache,
              const std::vector<std::string>& identities)
      : source_(std::move(source)), cache_(std::move(cache)) {
    FFR_ASSERT(identities.size() == source_->file_count());
    for (std::uint32_t file = 0; file < identities.size(); ++file) {
      FFR_ASSERT(source_->alignment_bytes(file) == 1);
      files_.push_back(
          {Xxh3Digest(std::as_bytes(std::span(identities[file]))), source_->file_size_bytes(file)});
    }
  }

  std::size_t file_count() const noexcept override { return files_.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return source_->file_name(file);
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return files_[file].size_bytes;
  }
  // Blocks are checked whole.
  std::uint32_t alignment_bytes(std::uint32_t /*file*/) const noexcept override {
    return BlockCache::kBlockBytes;
  }
  const CoalescingOptions& coalescing() const noexcept override { return source_->coalescing(); }
  Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const override {
    return source_->TakeMemory(size_bytes);
  }
  std::string Trouble(std::uint32_t file, ErrorCode status) const override {
    return source_->Trouble(file, status);
  }
  const ResidentFiles* resident() const noexcept override { return this; }
  std::span<const std::byte> Mapped(std::uint32_t file) const override {
    const CachedView& view = ViewOf(file);
    view.Refresh();
    return view.bytes();
  }
  const Presence* PresenceOf(std::uint32_t file) const override { return &ViewOf(file); }
  Report report() const override {
    StoreReport store = source_->report().store.value_or(StoreReport());
    store.cache_hits = hits_.load();
    store.cache_misses = misses_.load();
    store.cache_evictions = cache_->eviction_count();
    return {IoPolicy::kBuffered, store};
  }
  bool HasChanged() const override { return source_->HasChanged(); }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    if (patience.IsOver()) return GivenUp();
    std::vector<RangeRead*> missing;
    FFR_TRY(ReadKept(ranges, missing, arrived, patience));
    return ReadMissing(missing, arrived, patience);
  }

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override {
    const std::uint64_t begin = AlignDown(offset_bytes, BlockCache::kBlockBytes);
    const std::uint64_t end = AlignUp(offset_bytes + size_bytes, BlockCache::kBlockBytes);
    const std::uint64_t piece_bytes_max = coalescing().piece_bytes_max;
    auto memory = FFR_TRY(BufferPool::Process().Take(end - begin));
    std::vector<RangeRead> pieces;
    for (std::uint64_t at = 0; at < end - begin; at += piece_bytes_max)
      pieces.push_back(
          {file, begin + at, memory->subspan(at, std::min(piece_bytes_max, end - begin - at))});
    FFR_TRY(Read(pieces));
    for (const RangeRead& piece : pieces)
      if (piece.status != ErrorCode::kOk)
        return NotRead(*this, file, offset_bytes, size_bytes, piece.status);
    const std::span<const std::byte> bytes = memory->subspan(offset_bytes - begin, size_bytes);
    return IndexBytes{std::move(memory), bytes};
  }

 private:
  // The views of one process, made as they are asked for.
  struct Views {
    ~Views() {
      for (const auto& view : all) delete view.load();
    }
    std::once_flag sized;
    std::vector<std::atomic<const CachedView*>> all;  // One for each file.
  };

  const CachedView& ViewOf(std::uint32_t file) const {
    Views& views = views_.Get();
    std::call_once(views.sized,
                   [&] { views.all = std::vector<std::atomic<const CachedView*>>(files_.size()); });
    const CachedView* view = views.all[file].load(std::memory_order_acquire);
    if (view != nullptr) return *view;
    auto fresh = std::make_unique<const CachedView>(cache_, files_[file]);
    if (views.all[file].compare_exchange_strong(view, fresh.get())) view = fresh.release();
    return *view;
  }

  // A range, or the part of one that lies in one entry of the cache.
  struct Part {
    std::size_t range = 0;
    std::uint64_t offset_bytes = 0;
    std::span<std::byte> bytes;
    BlockCache::Piece piece;
  };

  // The bytes of the range that lie inside the file.
  std::span<std::byte> BytesOf(const RangeRead& range) const {
    const std::uint64_t left = files_[range.file].size_bytes - range.offset_bytes;
    return range.destination.first(std::min<std::uint64_t>(range.destination.size(), left));
  }

  // Reads the ranges that the cache has and adds the others to `missing`.
  Result<void> ReadKept(std::span<RangeRead> ranges, std::vector<RangeRead*>& missing,
                        const Arrived& arrived, Patience& patience) const {
    std::vector<Part> parts;
    std::vector<std::uint32_t> parts_left(ranges.size());
    std::vector<bool> is_bad(ranges.size());
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      RangeRead& range = ranges[i];
      range.status = PassesEnd(range) ? ErrorCode::kCorruption : ErrorCode::kOk;
      if (range.status != ErrorCode::kOk || range.destination.empty() || BytesOf(range).empty()) {
        arrived(range);
        continue;
      }
      const std::size_t first = parts.size();
      if (!FindParts(range, i, parts)) {
        parts.resize(first);
        missing.push_back(&range);
      }
      parts_left[i] = static_cast<std::uint32_t>(parts.size() - first);
    }
    if (parts.empty()) return {};
    std::vector<IoRequest> requests;
    for (Part& part : parts)
      requests.push_back({.fd = part.piece.entry->fd.get(),
                          .offset_bytes = part.piece.offset_bytes,
                          .buffer = part.bytes,
                          .user = &part});
    const auto ended = [&](const IoRequest& request) {
      const Part& part = *static_cast<const Part*>(request.user);
      RangeRead& range = ranges[part.range];
      const bool is_good =
          request.result == std::ssize(part.bytes) &&
          BlockCache::IsGood(files_[range.file], part.offset_bytes, part.piece, part.bytes);
      const CachedView& view = ViewOf(range.file);
      if (is_good)
        view.Add(part.piece.entry, part.offset_bytes, part.bytes.size());
      else
        view.Remove(part.offset_bytes, part.bytes.size());
      if (!is_good) is_bad[part.range] = true;
      if (--parts_left[part.range] > 0) return;
      if (is_bad[part.range])
        missing.push_back(&range);
      else
        Hit(range, arrived);
    };
    IoEngine* const engine = FFR_TRY(ThreadIoEngine(kReadsAtOnce));
    auto run = RunAll(*engine, requests, kReadsAtOnce, ended, &patience);
    if (patience.was_over()) return GivenUp();
    return run;
  }

  void Hit(RangeRead& range, const Arrived& arrived) const {
    hits_.fetch_add(1, std::memory_order_relaxed);
    arrived(range);
  }

  // False if the cache does not have all of the range.
  bool FindParts(RangeRead& range, std::size_t number, std::vector<Part>& parts) const {
    std::uint64_t offset_bytes = range.offset_bytes;
    std::span<std::byte> bytes = BytesOf(range);
    while (!bytes.empty()) {
      const std::uint64_t room = BlockCache::kEntryBytes - offset_bytes % BlockCache::kEntryBytes;
      const auto part = bytes.first(std::min<std::uint64_t>(room, bytes.size()));
      auto piece = cache_->Find(files_[range.file], offset_bytes, part.size());
      if (piece.entry == nullptr) {
        ViewOf(range.file).Remove(offset_bytes, part.size());
        return false;
      }
      parts.push_back({number, offset_bytes, part, std::move(piece)});
      bytes = bytes.subspan(part.size());
      offset_bytes += part.size();
    }
    return true;
  }

  Result<void> ReadMissing(std::span<RangeRead* const> missing, const Arrived& arrived,
                           Patience& patience) const {
    if (missing.empty()) return {};
    misses_.fetch_add(missing.size(), std::memory_order_relaxed);
    std::vector<RangeRead> wanted;
    wanted.reserve(missing.size());
    for (const RangeRead* const range : missing)
      wanted.push_back({range->file, range->offset_bytes, BytesOf(*range)});
    return source_->ReadEach(
        wanted,
        [&](RangeRead& done) {
          RangeRead& range = *missing[static_cast<std::size_t>(&done - wanted.data())];
          range.status = done.status;
          if (done.status == ErrorCode::kOk)
            cache_->Keep(files_[done.file], done.offset_bytes, done.destination,
                         [&](const auto& entry, std::uint64_t offset, std::uint64_t size) {
                           ViewOf(done.file).Add(entry, offset, size);
                         });
          arrived(range);
        },
        patience);
  }

  const std::shared_ptr<const RangeReader> source_;
  const std::shared_ptr<const BlockCache> cache_;
  std::vector<BlockCache::File> files_;
  mutable std::atomic<std::uint64_t> hits_{0};
  mutable std::atomic<std::uint64_t> misses_{0};
  mutable PerProcess<Views> views_{[] { return new Views; }};
};

}  // namespace

std::unique_ptr<RangeReader> OpenCachedFiles(std::shared_ptr<const RangeReader> source,
                                             std::shared_ptr<const BlockCache> cache,
                                             const std::vector<std::string>& identities) {
  return std::make_unique<CachedFiles>(std::move(source), std::move(cache), identities);
}

}  // namespace ffrecord
