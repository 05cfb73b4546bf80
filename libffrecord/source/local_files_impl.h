#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/open_files.h"
#include "libffrecord/source/local_files.h"
#include "libffrecord/source/range_queue.h"
#include "libffrecord/source/range_reader.h"
#include "libffrecord/source/resident_files.h"
#include "libffrecord/source/resident_guess.h"

namespace ffrecord {

// Descriptors are read at stated offsets only, so threads and forked children share them.
class LocalFiles final : public RangeReader, public ResidentFiles {
 public:
  using Way = OpenFiles::Way;

  // `page_cache_first`: direct descriptors are used only for pages that are not in the page cache,
  // and only for files whose cached pages the kernel tells.
  LocalFiles(std::unique_ptr<OpenFiles> files, const SourceOptions& options, IoPolicy policy,
             bool page_cache_first, std::vector<bool> tells_what_is_in_memory);
  ~LocalFiles() override;

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
                        Patience& patience) const override;
  Result<std::unique_ptr<RangeQueue>> MakeQueue(QueueUse use) const override;
  const ResidentFiles* resident() const noexcept override { return this; }
  std::span<const std::byte> Mapped(std::uint32_t file) const override;
  std::string Trouble(std::uint32_t file, ErrorCode status) const override;
  bool HasChanged() const override;
  bool HasShrunk(std::uint32_t file) const override { return files_->HasShrunk(file); }
  Report report() const override { return {policy_, {}}; }

  // --- For LocalQueue ----------------------------------------------------------------------------

  std::uint32_t queue_depth() const noexcept { return queue_depth_; }
  // How many descriptors one call should pin at a time.
  std::size_t pin_count_max() const noexcept { return files_->pin_count_max(); }
  // Chooses how each of `ranges` is read: through the page cache if it is there.
  void ChooseWays(std::span<const RangeRead> ranges, std::vector<Way>& ways) const;
  // The file's descriptor. Fails with kIo if the file was removed since it was opened.
  Result<OpenFiles::Pin> Take(std::uint32_t file, Way way) const;
  // Whether, just now, a range failed because no descriptor was free for a long time: others then
  // fail at once if there is none.
  bool HasJustStarved(Clock::time_point now) const noexcept {
    constexpr auto kWhile = std::chrono::milliseconds(500);
    return now.time_since_epoch() - starved_at_.load() < kWhile;
  }
  void NoteStarved(Clock::time_point now) const noexcept {
    starved_at_.store(now.time_since_epoch());
  }
  // The status of a range of which a transfer brought `result`: bytes, or -errno.
  ErrorCode StatusOf(const RangeRead& range, std::int64_t result) const noexcept;

  bool reads_indexes() const noexcept override { return false; }

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override;

 private:
  using Mapping = std::shared_ptr<const MappedFile>;

  Way WayOf(std::uint32_t file) const noexcept {
    return files_->direct_alignment_bytes(file) > 0 ? Way::kDirect : Way::kBuffered;
  }
  void PreferPageCache(std::span<const RangeRead> ranges, std::vector<Way>& ways) const;
  const Mapping* Whole(std::uint32_t file) const;
  Result<IndexBytes> MapPart(std::uint32_t file, std::uint64_t offset_bytes,
                             std::uint64_t size_bytes) const;
  Result<IndexBytes> ReadPart(int fd, std::uint32_t file, std::uint64_t offset_bytes,
                              std::uint64_t size_bytes) const;

  const std::unique_ptr<const OpenFiles> files_;
  const std::uint32_t queue_depth_;
  const IoPolicy policy_;  // For ranges that are not in memory.
  const bool page_cache_first_;
  const std::vector<bool> tells_what_is_in_memory_;  // Asked only where that is of use.
  mutable std::atomic<std::uint32_t> mapping_count_{0};
  mutable std::atomic<Clock::duration> starved_at_{-std::chrono::hours(1)};
  mutable ResidentGuess warm_guess_;  // Whether anything is in the page cache.
  mutable std::vector<std::atomic<const Mapping*>> whole_;  // For each file; owned.
};

}  // namespace ffrecord
