#include "libffrecord/object_store/s3_bucket.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/random.h"
#include "libffrecord/object_store/digests.h"
#include "libffrecord/object_store/xml.h"

namespace ffrecord::object_store {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kBackOffFirst{50};
constexpr milliseconds kBackOffMax{3000};
constexpr int kPagesMax = 10'000;  // 10 million keys: a store that goes on says the same again.
constexpr std::uint64_t kAnswerSizeMax = 8 << 20;  // Of a listing: 1,000 keys of 1 KiB, escaped.

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc);
  return {text.data(), size};
}

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint64_t NumberIn(std::string_view text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Doubles from wait to wait; half of it by chance, so that many clients do not come back together.
class BackOff {
 public:
  milliseconds Next() {
    const milliseconds whole = std::exchange(next_, std::min(2 * next_, kBackOffMax));
    std::uniform_int_distribution<std::int64_t> chance(whole.count() / 2, whole.count());
    return milliseconds(chance(random_));
  }

 private:
  milliseconds next_ = kBackOffFirst;
  std::minstd_rand random_{static_cast<std::uint32_t>(RandomNumber())};
};

bool IsForTheMoment(int status, std::string_view code) {
  return status == 429 || status == 500 || status == 502 || status == 503 || status == 504 ||
         code == "RequestTimeout" || code == "ConditionalRequestConflict";
}

ErrorCode CodeOf(int status) {
  switch (status) {
    case 401:
    case 403:
      return ErrorCode::kDenied;
    case 404:
      return ErrorCode::kNotFound;
    case 412:
      return ErrorCode::kConflict;
    default:
      return status >= 500 || status == 429 ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument;
  }
}

}  // namespace

struct S3Bucket::Impl {
  std::string bucket;
  AwsSettings settings;
  milliseconds timeout{};
  std::string scheme = "https";
  std::string host;
  std::string path;  // What every key stands behind.

  // Connections that nobody uses now. A child leaves those of its parent alone.
  std::mutex mutex;
  std::vector<std::unique_ptr<net::HttpClient>> idle;
  HomeProcess home;

  Result<std::unique_ptr<net::HttpClient>> Take() {
    const std::scoped_lock lock(mutex);
    if (!home.is_here()) {
      home = HomeProcess();
      for (auto& client : idle) static_cast<void>(client.release());
      idle.clear();
    }
    if (idle.empty()) return net::HttpClient::Create();
    auto client = std::move(idle.back());
    idle.pop_back();
    return client;
  }

  void GiveBack(std::unique_ptr<net::HttpClient> client) {
    const std::scoped_lock lock(mutex);
    idle.push_back(std::move(client));
  }

  net::HttpRequest RequestFor(std::string_view key) const {
    net::HttpRequest request;
    request.scheme = scheme;
    request.host = host;
    request.path = path + "/" + std::string(key);
    return request;
  }

  // Signs and runs until something lasting is known; any 2xx is a success.
  Result<net::HttpResponse> Run(net::HttpRequest request,
                                std::uint64_t body_size_max = kAnswerSizeMax,
                                std::span<std::byte> destination = {}) {
    const Sha256Digest digest = Sha256(request.body);
    const std::string hash = Hex(digest);
    request.headers["x-amz-content-sha256"] = hash;
    const auto headers = request.headers;
    const auto deadline = Clock::now() + timeout;
    BackOff back_off;
    for (;;) {
      request.headers = headers;
      Sign(request, settings.credentials, {settings.region, "s3", Now()}, hash);
      auto outcome = Once(request, body_size_max, destination);
      if (outcome) return outcome;
      const bool may_pass = outcome.error().code == ErrorCode::kUnavailable ||
                            outcome.error().code == ErrorCode::kDeadlineExceeded;
      const milliseconds wait = back_off.Next();
      if (!may_pass || Clock::now() + wait > deadline) return outcome;
      std::this_thread::sleep_for(wait);
    }
  }

  // A connection on which something failed is not used again.
  Result<net::HttpResponse> Once(const net::HttpRequest& request, std::uint64_t body_size_max,
                                 std::span<std::byte> destination) {
    auto client = FFR_TRY(Take());
    auto response = FFR_TRY(client->Run(request, {timeout, body_size_max}, destination));
    GiveBack(std::move(client));
    const std::string_view text = TextOf(response.body);
    // A multipart upload may fail after "200 OK" was said.
    const bool failed_late = request.method == "POST" && text.find("<Error>") != text.npos;
    if (response.status / 100 == 2 && !failed_late) return response;
    const std::string code = TextOfElement(text, "Code");
    const std::string tried =
        "S3: " + request.method + " s3://" + bucket + request.path.substr(path.size()) + ": " +
        std::to_string(response.status) + " " + code + " " + TextOfElement(text, "Message");
    if (failed_late || IsForTheMoment(response.status, code))
      return Error{ErrorCode::kUnavailable, tried};
    return Error{CodeOf(response.status), tried};
  }

  // All pages of a listing: `take` is given each; `next` names what continues where.
  using Query = std::vector<std::pair<std::string, std::string>>;
  Result<void> Pages(net::HttpRequest request, const std::function<void(std::string_view)>& take,
                     const Query& next) {
    const Query first = request.query;
    for (int page = 0; page < kPagesMax; ++page) {
      const auto response = FFR_TRY(Run(request));
      const std::string_view text = TextOf(response.body);
      take(text);
      if (TextOfElement(text, "IsTruncated") != "true") return {};
      request.query = first;
      for (const auto& [parameter, element] : next)
        request.query.emplace_back(parameter, TextOfElement(text, element));
    }
    return Error{ErrorCode::kUnavailable,
                 "S3: s3://" + bucket + ": a listing has more than 10,000 pages"};
  }
};

S3Bucket::S3Bucket(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
S3Bucket::~S3Bucket() = default;

Result<std::shared_ptr<S3Bucket>> S3Bucket::Open(std::string_view bucket, AwsSettings settings,
                                                 milliseconds timeout) {
  auto impl = std::make_unique<Impl>();
  impl->bucket = bucket;
  impl->timeout = timeout;
  std::string_view endpoint = settings.endpoint;
  if (endpoint.empty()) {
    // A name with dots fits no certificate as a host.
    const bool is_host = bucket.find('.') == std::string_view::npos;
    impl->host = (is_host ? impl->bucket + "." : "") + "s3." + settings.region + ".amazonaws.com";
    if (!is_host) impl->path = "/" + impl->bucket;
  } else {
    const std::size_t colon = endpoint.find("://");
    impl->scheme = endpoint.substr(0, colon == std::string_view::npos ? 0 : colon);
    if (impl->scheme != "http" && impl->scheme != "https")
      return Error{ErrorCode::kInvalidArgument, "S3: the endpoint " + settings.endpoint +
                                                    " does not begin with http:// or https://"};
    endpoint.remove_prefix(colon + 3);
    while (endpoint.ends_with('/')) endpoint.remove_suffix(1);
    const std::size_t slash = endpoint.find('/');
    impl->host = endpoint.substr(0, slash);
    if (slash != std::string_view::npos) impl->path = endpoint.substr(slash);
    impl->path += "/" + impl->bucket;
  }
  impl->settings = std::move(settings);
  return std::shared_ptr<S3Bucket>(new S3Bucket(std::move(impl)));
}

std::string S3Bucket::Describe(std::string_view key) const {
  return "s3://" + impl_->bucket + "/" + std::string(key);
}

Result<S3Bucket::Listing> S3Bucket::List(std::string_view prefix, bool by_folder) const {
  net::HttpRequest request = impl_->RequestFor("");
  request.query = {{"list-type", "2"}, {"prefix", std::string(prefix)}};
  if (by_folder) request.query.emplace_back("delimiter", "/");
  Listing listing;
  FFR_TRY(impl_->Pages(std::move(request),
                       [&](std::string_view page) {
                         ForEachElement(page, "Contents", [&](std::string_view object) {
                           listing.objects.push_back({TextOfElement(object, "Key"),
                                                      NumberIn(TextOfElement(object, "Size"))});
                         });
                         ForEachElement(page, "CommonPrefixes", [&](std::string_view folder) {
                           listing.folders.push_back(TextOfElement(folder, "Prefix"));
                         });
                       },
                       {{"continuation-token", "NextContinuationToken"}}));
  return listing;
}

Result<std::vector<std::byte>> S3Bucket::Get(std::string_view key,
                                             std::uint64_t size_bytes_max) const {
  return FFR_TRY(impl_->Run(impl_->RequestFor(key), size_bytes_max)).body;
}

Result<void> S3Bucket::GetRange(std::string_view key, std::uint64_t offset_bytes,
                                std::span<std::byte> destination) const {
  net::HttpRequest request = impl_->RequestFor(key);
  request.headers["range"] = "bytes=" + std::to_string(offset_bytes) + "-" +
                             std::to_string(offset_bytes + destination.size() - 1);
  const auto response = FFR_TRY(impl_->Run(std::move(request), 0, destination));
  if (response.status != 206 || response.size_bytes != destination.size())
    return Error{ErrorCode::kCorruption, Describe(key) + ": ends before " +
                                             std::to_string(offset_bytes) + " + " +
                                             std::to_string(destination.size()) +
                                             " bytes, or the store does not support ranges"};
  return {};
}

Result<void> S3Bucket::Put(std::string_view key, std::span<const std::byte> bytes,
                           Existing existing) const {
  net::HttpRequest request = impl_->RequestFor(key);
  request.method = "PUT";
  request.body = bytes;
  request.headers["x-amz-checksum-sha256"] = Base64Of(Sha256(bytes));
  if (existing == Existing::kRefuse) request.headers["if-none-match"] = "*";
  FFR_TRY(impl_->Run(std::move(request)));
  return {};
}

Result<void> S3Bucket::Delete(std::string_view key) const {
  net::HttpRequest request = impl_->RequestFor(key);
  request.method = "DELETE";
  const auto outcome = impl_->Run(std::move(request));
  if (!outcome && outcome.error().code != ErrorCode::kNotFound) return outcome.error();
  return {};
}

// --- Parts ---------------------------------------------------------------------------------------

Result<std::string> S3Bucket::BeginParts(std::string_view key) const {
  net::HttpRequest request = impl_->RequestFor(key);
  request.method = "POST";
  request.query = {{"uploads", ""}};
  request.headers["x-amz-checksum-algorithm"] = "SHA256";
  const auto response = FFR_TRY(impl_->Run(std::move(request)));
  std::string upload = TextOfElement(TextOf(response.body), "UploadId");
  if (upload.empty())
    return Error{ErrorCode::kUnavailable,
                 Describe(key) + ": the store returned no id for an upload"};
  return upload;
}

Result<S3Bucket::Part> S3Bucket::PutPart(std::string_view key, std::string_view upload,
                                         std::uint32_t number,
                                         std::span<const std::byte> bytes) const {
  net::HttpRequest request = impl_->RequestFor(key);
  request.method = "PUT";
  request.query = {{"partNumber", std::to_string(number)}, {"uploadId", std::string(upload)}};
  request.body = bytes;
  const std::string checksum = Base64Of(Sha256(bytes));
  request.headers["x-amz-checksum-sha256"] = checksum;
  const auto response = FFR_TRY(impl_->Run(std::move(request)));
  const auto etag = response.headers.find("etag");
  if (etag == response.headers.end())
    return Error{ErrorCode::kUnavailable,
                 Describe(key) + ": the store returned no ETag for a part"};
  return Part{number, bytes.size(), etag->second, checksum};
}

Result<void> S3Bucket::FinishParts(std::string_view key, std::string_view upload,
                                   std::span<const Part> parts) const {
  std::string list = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (const Part& part : parts) {
    list += "<Part><PartNumber>" + std::to_string(part.number) + "</PartNumber><ETag>" +
            EscapeXml(part.etag) + "</ETag>";
    if (!part.checksum.empty())
      list += "<ChecksumSHA256>" + EscapeXml(part.checksum) + "</ChecksumSHA256>";
    list += "</Part>";
  }
  list += "</CompleteMultipartUpload>";
  net::HttpRequest request = impl_->RequestFor(key);
  request.method = "POST";
  request.query = {{"uploadId", std::string(upload)}};
  request.body = std::as_bytes(std::span(list));
  FFR_TRY(impl_->Run(std::move(request)));
  return {};
}

Result<void> S3Bucket::AbortParts(std::string_view key, std::string_view upload) const {
  net::HttpRequest request = impl_->RequestFor(key);
  request.method = "DELETE";
  request.query = {{"uploadId", std::string(upload)}};
  FFR_TRY(impl_->Run(std::move(request)));
  return {};
}

Result<std::vector<S3Bucket::PendingUpload>> S3Bucket::PendingUploads(
    std::string_view prefix) const {
  net::HttpRequest request = impl_->RequestFor("");
  request.query = {{"uploads", ""}, {"prefix", std::string(prefix)}};
  std::vector<PendingUpload> pending;
  FFR_TRY(impl_->Pages(
      std::move(request),
      [&](std::string_view page) {
        ForEachElement(page, "Upload", [&](std::string_view upload) {
          pending.push_back({TextOfElement(upload, "Key"), TextOfElement(upload, "UploadId")});
        });
      },
      {{"key-marker", "NextKeyMarker"}, {"upload-id-marker", "NextUploadIdMarker"}}));
  return pending;
}

Result<std::vector<S3Bucket::Part>> S3Bucket::PartsOf(std::string_view key,
                                                      std::string_view upload) const {
  net::HttpRequest request = impl_->RequestFor(key);
  request.query = {{"uploadId", std::string(upload)}};
  std::vector<Part> parts;
  FFR_TRY(impl_->Pages(
      std::move(request),
      [&](std::string_view page) {
        ForEachElement(page, "Part", [&](std::string_view part) {
          parts.push_back({static_cast<std::uint32_t>(NumberIn(TextOfElement(part, "PartNumber"))),
                           NumberIn(TextOfElement(part, "Size")), TextOfElement(part, "ETag"),
                           TextOfElement(part, "ChecksumSHA256")});
        });
      },
      {{"part-number-marker", "NextPartNumberMarker"}}));
  return parts;
}

}  // namespace ffrecord::object_store
