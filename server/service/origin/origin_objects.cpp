#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "libffrecord/base/patience.h"
#include "libffrecord/object_store/range_fetch.h"
#include "libffrecord/object_store/s3_bucket.h"
#include "server/service/origin/origin_reader.h"

namespace ffrecord::server {
namespace {

using object_store::ObjectRange;
using object_store::S3Bucket;

constexpr std::string_view kS3Scheme = "s3://";
// Requests of one fetch that travel at a time, and the memory that they fill.
constexpr std::uint64_t kRangeBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kRangesAtOnce = 8;

}  // namespace

class OriginStores {
 public:
  explicit OriginStores(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  Result<std::shared_ptr<const S3Bucket>> Find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (const auto found = buckets_.find(name); found != buckets_.end()) return found->second;
    auto settings = FFR_TRY(object_store::ReadAwsSettings());
    std::shared_ptr<const S3Bucket> bucket =
        FFR_TRY(S3Bucket::Open(name, std::move(settings), timeout_));
    return buckets_.emplace(name, std::move(bucket)).first->second;
  }

 private:
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const S3Bucket>> buckets_;
};

std::shared_ptr<OriginStores> MakeOriginStores(std::chrono::milliseconds timeout) {
  return std::make_shared<OriginStores>(timeout);
}

namespace {

// The version of an object that was published.
struct Published {
  std::shared_ptr<const S3Bucket> bucket;
  std::string_view key;
  object_store::ObjectVersion version;
};

// Fills `bytes` with those of the object from `offset_bytes` on, and with those of no other
// version.
Result<void> Fetch(const OriginFile& file, const Published& object, std::uint64_t offset_bytes,
                   std::span<std::byte> bytes) {
  std::vector<ObjectRange> ranges;
  for (std::uint64_t at = 0; at < bytes.size(); at += kRangeBytes)
    ranges.push_back(
        {.store = object.bucket.get(),
         .key = object.key,
         .version = &object.version,
         .destination = bytes.subspan(at, std::min<std::uint64_t>(kRangeBytes, bytes.size() - at)),
         .offset_bytes = offset_bytes + at,
         .error = {},
         .found = {}});
  FFR_TRY(object_store::FetchRanges(
      ranges, kRangesAtOnce, [](ObjectRange&) {}, Patience::OfThread()));
  for (ObjectRange& range : ranges) {
    if (!range.error) continue;
    if (range.error->code == ErrorCode::kConflict) return OriginChanged(file, range.error->message);
    return *std::move(range.error);
  }
  return {};
}

}  // namespace

Result<void> ReadOriginObject(OriginStores& stores, const OriginFile& file,
                              std::uint64_t offset_bytes, std::uint64_t size_bytes,
                              const OriginReader::TakePiece& take) {
  const std::string_view rest = std::string_view(file.origin.address).substr(kS3Scheme.size());
  const std::string_view name = rest.substr(0, rest.find('/'));
  const Published object{FFR_TRY(stores.Find(std::string(name))),
                         rest.substr(name.size() + 1),
                         {file.size_bytes, file.origin.version, ""}};
  std::vector<std::byte> bytes(std::min(size_bytes, kRangeBytes * kRangesAtOnce));
  for (std::uint64_t done = 0; done < size_bytes;) {
    const auto part =
        std::span(bytes).first(std::min<std::uint64_t>(bytes.size(), size_bytes - done));
    FFR_TRY(Fetch(file, object, offset_bytes + done, part));
    FFR_TRY(take(part));
    done += part.size();
  }
  return {};
}

}  // namespace ffrecord::server
