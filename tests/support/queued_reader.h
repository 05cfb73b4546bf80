#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "libffrecord/source/range_queue.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::test {

// A group that keeps the ranges and ends that it was called for.
class NotedGroup : public RangeGroup {
 public:
  explicit NotedGroup(std::span<RangeRead> ranges, RangeReader::Arrived arrived = {})
      : ranges_(ranges), arrived_(std::move(arrived)) {}
  virtual ~NotedGroup() = default;

  std::span<RangeRead> ranges() noexcept override { return ranges_; }
  void Arrived(RangeRead& range) override {
    ++arrived_count;
    if (arrived_) arrived_(range);
  }
  void Ended(Result<void> result) override { ended = std::move(result); }

  std::size_t arrived_count = 0;
  std::optional<Result<void>> ended;

 private:
  const std::span<RangeRead> ranges_;
  const RangeReader::Arrived arrived_;
};

// A reader whose calls go through a queue of its own, and wait there.
class QueuedReader final : public RangeReader {
 public:
  explicit QueuedReader(std::shared_ptr<const RangeReader> real) : real_(std::move(real)) {}

  std::size_t file_count() const noexcept override { return real_->file_count(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return real_->file_name(file);
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return real_->file_size_bytes(file);
  }
  std::uint32_t alignment_bytes(std::uint32_t file) const noexcept override {
    return real_->alignment_bytes(file);
  }
  Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const override {
    return real_->TakeMemory(size_bytes);
  }
  bool reads_indexes() const noexcept override { return real_->reads_indexes(); }
  std::string Trouble(std::uint32_t file, ErrorCode status) const override {
    return real_->Trouble(file, status);
  }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    if (patience.IsOver()) return GivenUp();
    const auto queue = FFR_TRY(real_->MakeQueue(QueueUse::kOneThread));
    NotedGroup group(ranges, arrived);
    queue->Submit(group);
    bool has_given_up = false;
    while (!group.ended) {
      if (!has_given_up && patience.IsOver()) {
        queue->GiveUp(group);
        has_given_up = true;
      }
      queue->Poll(std::chrono::milliseconds(20));
    }
    return *group.ended;
  }

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override {
    return real_->MapIndex(file, offset_bytes, size_bytes);
  }

 private:
  const std::shared_ptr<const RangeReader> real_;
};

}  // namespace ffrecord::test
