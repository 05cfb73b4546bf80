#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "client/dataset/origin_copy.h"
#include "client/dataset/origin_files.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/object_store/aws_settings.h"
#include "libffrecord/object_store/s3_bucket.h"

namespace ffrecord::client {
namespace {

using object_store::S3Bucket;

constexpr std::string_view kS3Scheme = "s3://";
// One request up to here, and parts of this size beyond; so much memory for each of them.
constexpr std::uint64_t kPartBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kPartsMax = 10'000;
constexpr std::size_t kPartsAtOnce = 4;

// One object that is sent in parts.
class Parts {
 public:
  Parts(const S3Bucket& bucket, std::string_view key, const RangeReader& file)
      : bucket_(bucket),
        key_(key),
        file_(file),
        size_bytes_(file.file_size_bytes(0)),
        part_bytes_(std::max(kPartBytes, (size_bytes_ + kPartsMax - 1) / kPartsMax)) {}

  // As S3Bucket::FinishParts. If it fails, it leaves nothing at the store that can be reached.
  Result<void> Send(const TellCopied& tell) {
    const std::string upload = FFR_TRY(bucket_.BeginParts(key_));
    auto sent = SendAll(upload, tell);
    if (sent) sent = bucket_.FinishParts(key_, upload, parts_, S3Bucket::Existing::kRefuse);
    if (!sent) (void)bucket_.AbortParts(key_, upload);
    return sent;
  }

 private:
  // Some at a time: `tell` is called by this thread.
  Result<void> SendAll(const std::string& upload, const TellCopied& tell) {
    parts_.resize((size_bytes_ + part_bytes_ - 1) / part_bytes_);
    for (std::size_t first = 0; first < parts_.size(); first += kPartsAtOnce) {
      const std::size_t count = std::min(kPartsAtOnce, parts_.size() - first);
      std::atomic<std::size_t> next{first};
      FFR_TRY(SideBySide::Run(
          count, [&](const SideBySide& /*others*/) { return SendOne(upload, next++); }));
      tell(std::min(size_bytes_, (first + count) * part_bytes_));
    }
    return {};
  }

  Result<void> SendOne(const std::string& upload, std::size_t index) {
    const std::uint64_t begin = index * part_bytes_;
    std::vector<std::byte> bytes(std::min(part_bytes_, size_bytes_ - begin));
    FFR_TRY(ReadWhole(file_, 0, begin, bytes));
    parts_[index] =
        FFR_TRY(bucket_.PutPart(key_, upload, static_cast<std::uint32_t>(index + 1), bytes));
    return {};
  }

  const S3Bucket& bucket_;
  const std::string_view key_;
  const RangeReader& file_;
  const std::uint64_t size_bytes_;
  const std::uint64_t part_bytes_;
  std::vector<S3Bucket::Part> parts_;  // Each written by one thread.
};

Result<bool> Exists(const S3Bucket& bucket, std::string_view key) {
  const auto listing = FFR_TRY(bucket.List(key, false));
  return std::ranges::any_of(listing.objects,
                             [&](const S3Bucket::Object& object) { return object.key == key; });
}

}  // namespace

Result<bool> PutOriginObject(const std::string& address, const RangeReader& file,
                             const SessionOptions& options, const TellCopied& tell) {
  const std::string_view rest = std::string_view(address).substr(kS3Scheme.size());
  const std::string_view name = rest.substr(0, rest.find('/'));
  const std::string_view key = rest.substr(name.size() + 1);
  auto settings = FFR_TRY(object_store::ReadAwsSettings());
  const auto bucket = FFR_TRY(S3Bucket::Open(name, std::move(settings), options.timeout));
  const std::uint64_t size_bytes = file.file_size_bytes(0);
  Result<void> put;
  if (size_bytes <= kPartBytes) {
    std::vector<std::byte> bytes(size_bytes);
    FFR_TRY(ReadWhole(file, 0, 0, bytes));
    put = bucket->Put(key, bytes, S3Bucket::Existing::kRefuse);
  } else {
    // Before all of it travels in vain; the store looks again at the end.
    if (FFR_TRY(Exists(*bucket, key))) return false;
    put = Parts(*bucket, key, file).Send(tell);
  }
  if (put) return true;
  // An answer may have been lost: then the object, or the end of its upload, is this one's own.
  const bool may_be_there =
      put.error().code == ErrorCode::kConflict ||
      (put.error().code == ErrorCode::kNotFound && FFR_TRY(Exists(*bucket, key)));
  if (may_be_there) return false;
  return put.error();
}

}  // namespace ffrecord::client
