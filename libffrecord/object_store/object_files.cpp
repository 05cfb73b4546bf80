#include "libffrecord/object_store/object_files.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "libffrecord/base/side_by_side.h"
#include "libffrecord/source/last_failure.h"

namespace ffrecord::object_store {
namespace {

constexpr std::size_t kRequestsAtOnce = 4;

class ObjectFiles final : public RangeReader {
 public:
  ObjectFiles(std::shared_ptr<const S3Bucket> bucket, std::vector<S3Bucket::Object> objects)
      : bucket_(std::move(bucket)), objects_(std::move(objects)) {
    for (const auto& object : objects_) names_.push_back(bucket_->Describe(object.key));
  }

  std::size_t file_count() const noexcept override { return objects_.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override { return names_[file]; }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return objects_[file].size_bytes;
  }
  std::uint32_t alignment_bytes(std::uint32_t /*file*/) const noexcept override { return 1; }

  // The caller's thread asks its patience between its requests; the others take no more after that.
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    if (patience.IsOver()) return GivenUp();
    const auto caller = std::this_thread::get_id();
    std::atomic<std::size_t> next{0};
    std::atomic<bool> is_over{false};
    const auto work = [&](const SideBySide&) -> Result<void> {
      for (;;) {
        if (std::this_thread::get_id() == caller && patience.IsOver()) is_over = true;
        const std::size_t i = is_over ? ranges.size() : next++;
        if (i >= ranges.size()) return {};
        ReadOne(ranges[i]);
      }
    };
    FFR_TRY(SideBySide::Run(std::min(ranges.size(), kRequestsAtOnce), work));
    if (is_over) return GivenUp();
    for (RangeRead& range : ranges) arrived(range);
    return {};
  }

  std::string Trouble(std::uint32_t /*file*/, ErrorCode status) const override {
    return last_failure_.Of(status);
  }

 private:
  void ReadOne(RangeRead& range) const {
    range.status = PassesEnd(range) ? ErrorCode::kCorruption : ErrorCode::kOk;
    if (range.status != ErrorCode::kOk || range.destination.empty()) return;
    auto read = bucket_->GetRange(objects_[range.file].key, range.offset_bytes, range.destination);
    if (read) return;
    range.status = read.error().code;
    last_failure_.Note(std::move(read).error());
  }

  const std::shared_ptr<const S3Bucket> bucket_;
  const std::vector<S3Bucket::Object> objects_;
  std::vector<std::string> names_;
  mutable LastFailure last_failure_;
};

}  // namespace

std::unique_ptr<RangeReader> OpenObjectFiles(std::shared_ptr<const S3Bucket> bucket,
                                             std::vector<S3Bucket::Object> objects) {
  return std::make_unique<ObjectFiles>(std::move(bucket), std::move(objects));
}

}  // namespace ffrecord::object_store
