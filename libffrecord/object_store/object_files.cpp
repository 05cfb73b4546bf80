#include "libffrecord/object_store/object_files.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <set>
#include <utility>

#include "libffrecord/object_store/range_fetch.h"
#include "libffrecord/source/last_failure.h"

namespace ffrecord::object_store {
namespace {

// A request costs tens of milliseconds, in which a connection carries much.
constexpr CoalescingOptions kObjectCoalescing{
    .gap_bytes_max = std::uint64_t{64} << 10,
    .merged_bytes_max = std::uint64_t{4} << 20,
    .piece_bytes_max = std::uint64_t{4} << 20,
};

class ObjectFiles final : public RangeReader {
 public:
  ObjectFiles(std::vector<StoredObject> objects, std::uint32_t requests_at_once)
      : objects_(std::move(objects)), requests_at_once_(requests_at_once) {
    for (const StoredObject& object : objects_) names_.push_back(object.name());
  }

  std::size_t file_count() const noexcept override { return objects_.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override { return names_[file]; }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return objects_[file].version.size_bytes;
  }
  std::uint32_t alignment_bytes(std::uint32_t /*file*/) const noexcept override { return 1; }
  const CoalescingOptions& coalescing() const noexcept override { return kObjectCoalescing; }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    if (patience.IsOver()) return GivenUp();
    if (ranges.size() == 1 && HasJustFailed(ranges.front().file)) {
      ranges.front().status = failed_with_.load();
      arrived(ranges.front());
      return {};
    }
    std::vector<ObjectRange> wanted;
    std::vector<RangeRead*> owners;
    wanted.reserve(ranges.size());
    owners.reserve(ranges.size());
    for (RangeRead& range : ranges) {
      range.status = PassesEnd(range) ? ErrorCode::kCorruption : ErrorCode::kOk;
      if (range.status != ErrorCode::kOk || range.destination.empty()) {
        arrived(range);
        continue;
      }
      const StoredObject& object = objects_[range.file];
      wanted.push_back({.store = object.store.get(),
                        .key = object.key,
                        .version = &object.version,
                        .destination = range.destination,
                        .offset_bytes = range.offset_bytes,
                        .error = {},
                        .found = {}});
      owners.push_back(&range);
    }
    const auto take = [&](ObjectRange& done) {
      RangeRead& range = *owners[static_cast<std::size_t>(&done - wanted.data())];
      if (done.error) {
        range.status = done.error->code;
        NoteFailure(range);
        last_failure_.Note(*std::move(done.error));
      }
      arrived(range);
    };
    auto fetched = FetchRanges(wanted, requests_at_once_, take, patience);
    if (patience.was_over()) return GivenUp();
    return fetched;
  }

  std::string Trouble(std::uint32_t /*file*/, ErrorCode status) const override {
    return last_failure_.Of(status);
  }

  std::optional<StoreReport> store_report() const override {
    std::set<const ObjectStore*> stores;
    for (const StoredObject& object : objects_) stores.insert(object.store.get());
    StoreReport sum;
    for (const ObjectStore* const store : stores) {
      const ObjectStore::Counts& counts = store->counts();
      sum.requests += counts.requests;
      sum.retries += counts.retries;
      sum.hedges += counts.hedges;
      sum.throttled += counts.throttled;
      sum.received_bytes += counts.received_bytes;
    }
    return sum;
  }

 private:
  using Clock = std::chrono::steady_clock;

  // A batch that looks up an index page by page waits for a store that is gone once, not for each
  // of its records.
  bool HasJustFailed(std::uint32_t file) const {
    constexpr auto kWhile = std::chrono::milliseconds(500);
    return failed_file_.load() == file &&
           Clock::now().time_since_epoch() - failed_at_.load() < kWhile;
  }
  void NoteFailure(const RangeRead& range) const {
    if (range.status != ErrorCode::kUnavailable && range.status != ErrorCode::kDeadlineExceeded)
      return;
    failed_with_.store(range.status);
    failed_at_.store(Clock::now().time_since_epoch());
    failed_file_.store(range.file);
  }

  const std::vector<StoredObject> objects_;
  const std::uint32_t requests_at_once_;
  std::vector<std::string> names_;
  mutable LastFailure last_failure_;
  mutable std::atomic<std::uint32_t> failed_file_{std::numeric_limits<std::uint32_t>::max()};
  mutable std::atomic<Clock::duration> failed_at_{Clock::duration::zero()};
  mutable std::atomic<ErrorCode> failed_with_{ErrorCode::kOk};
};

}  // namespace

std::unique_ptr<RangeReader> OpenObjectFiles(std::vector<StoredObject> objects,
                                             std::uint32_t requests_at_once) {
  return std::make_unique<ObjectFiles>(std::move(objects), requests_at_once);
}

std::unique_ptr<RangeReader> OpenObjectFiles(std::shared_ptr<const S3Bucket> bucket,
                                             std::vector<S3Bucket::Object> objects) {
  std::vector<StoredObject> stored;
  for (S3Bucket::Object& object : objects)
    stored.push_back({bucket,
                      std::move(object.key),
                      {object.size_bytes, std::move(object.etag), std::string()}});
  return OpenObjectFiles(std::move(stored));
}

}  // namespace ffrecord::object_store
