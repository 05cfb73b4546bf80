#include "libffrecord/object_store/object_files.h"

#include <set>
#include <utility>

#include "libffrecord/object_store/range_fetch.h"
#include "libffrecord/source/last_failure.h"
#include "libffrecord/source/recent_failure.h"

namespace ffrecord::object_store {
namespace {

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
  const CoalescingOptions& coalescing() const noexcept override { return kStoreCoalescing; }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    if (patience.IsOver()) return GivenUp();
    if (ranges.size() == 1) {
      if (const auto status = recent_failure_.Of(ranges.front().file)) {
        ranges.front().status = *status;
        arrived(ranges.front());
        return {};
      }
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
        recent_failure_.Note(range.file, range.status);
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

  Report report() const override {
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
    return {IoPolicy::kBuffered, sum};
  }

 private:
  const std::vector<StoredObject> objects_;
  const std::uint32_t requests_at_once_;
  std::vector<std::string> names_;
  mutable LastFailure last_failure_;
  mutable RecentFailure recent_failure_;
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
