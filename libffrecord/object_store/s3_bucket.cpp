#include "libffrecord/object_store/s3_bucket.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <mutex>
#include <utility>

#include "libffrecord/base/base64.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/patient_wait.h"
#include "libffrecord/base/per_process.h"
#include "libffrecord/object_store/credentials.h"
#include "libffrecord/object_store/digests.h"
#include "libffrecord/object_store/retry.h"
#include "libffrecord/object_store/xml.h"

namespace ffrecord::object_store {
namespace {

using std::chrono::milliseconds;

constexpr int kPagesMax = 10'000;  // 10 million keys: a store that goes on says the same again.
constexpr std::uint64_t kAnswerSizeMax = 8 << 20;  // A listing: 1,000 keys of 1 KiB, escaped.

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint64_t NumberIn(std::string_view text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

bool IsForTheMoment(int status, std::string_view code) {
  return MayPass(status) || code == "RequestTimeout" || code == "ConditionalRequestConflict";
}

// A store answers some of them with 400.
bool IsAboutCredentials(std::string_view code) {
  constexpr std::array kCodes{"ExpiredToken", "InvalidToken", "TokenRefreshRequired",
                              "InvalidAccessKeyId"};
  return std::ranges::find(kCodes, code) != kCodes.end();
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
      // 501: the store does not know such requests.
      return (status >= 500 && status != 501) || status == 429 ? ErrorCode::kUnavailable
                                                               : ErrorCode::kInvalidArgument;
  }
}

}  // namespace

struct S3Bucket::Impl {
  // The facts and connections of one process; a child leaves its parent's connections alone.
  struct Kept {
    std::mutex mutex;
    std::vector<std::unique_ptr<net::HttpClient>> idle;  // Connections that nobody uses now.
    std::string region;                                  // As the store says; empty: as set.
  };

  std::string bucket;
  AwsSettings settings;
  milliseconds timeout{};
  std::string scheme = "https";
  std::string endpoint_host;  // Empty: Amazon's own, in the region.
  std::string path;           // The prefix of every key.
  mutable PerProcess<Kept> kept{[] { return new Kept; }};

  Result<std::unique_ptr<net::HttpClient>> Take() const {
    Kept& own = kept.Get();
    const std::scoped_lock lock(own.mutex);
    if (own.idle.empty()) return net::HttpClient::Create();
    auto client = std::move(own.idle.back());
    own.idle.pop_back();
    return client;
  }

  void GiveBack(std::unique_ptr<net::HttpClient> client) const {
    Kept& own = kept.Get();
    const std::scoped_lock lock(own.mutex);
    own.idle.push_back(std::move(client));
  }

  std::string Region() const {
    Kept& own = kept.Get();
    const std::scoped_lock lock(own.mutex);
    return own.region.empty() ? settings.region : own.region;
  }

  // True if the store says that the bucket is in another region: requests go there from now on.
  bool LearnRegion(const net::HttpResponse& response) const {
    const auto found = response.headers.find("x-amz-bucket-region");
    if (found == response.headers.end() || found->second.empty()) return false;
    Kept& own = kept.Get();
    const std::scoped_lock lock(own.mutex);
    if (found->second == (own.region.empty() ? settings.region : own.region)) return false;
    own.region = found->second;
    return true;
  }

  net::HttpRequest RequestFor(std::string_view key) const {
    net::HttpRequest request;
    request.scheme = scheme;
    request.path = path + "/" + std::string(key);
    return request;
  }

  // Fails as credentials do.
  Result<void> SignNow(net::HttpRequest& request) const {
    const std::string region = Region();
    // A name with dots fits no certificate as a host.
    const bool is_host = bucket.find('.') == std::string::npos;
    request.host = endpoint_host.empty()
                       ? (is_host ? bucket + "." : "") + "s3." + region + ".amazonaws.com"
                       : endpoint_host;
    AwsCredentials credentials = settings.credentials;
    if (settings.chain) credentials = FFR_TRY(settings.chain->Get());
    const std::string hash = Hex(Sha256(request.body));
    request.headers["x-amz-content-sha256"] = hash;
    Sign(request, credentials, {region, "s3", SigningTime()}, hash);
    return {};
  }

  // Whether the store would take other credentials than those of the moment, and there are some.
  bool MayRenewCredentials(int status, std::string_view code) const {
    if (!settings.chain) return false;
    if (!IsAboutCredentials(code)) return status == 403 && settings.chain->Denied();
    const auto used = settings.chain->Get();
    return used && settings.chain->Refused(used.value().access_key);
  }

  Refusal RefusalOf(const std::string& tried, const net::HttpResponse& response) const {
    const std::string_view text = TextOf(response.body);
    const std::string code = TextOfElement(text, "Code");
    const std::string message = "S3: " + tried + ": " + std::to_string(response.status) + " " +
                                code + " " + TextOfElement(text, "Message");
    if (IsForTheMoment(response.status, code)) return {{ErrorCode::kUnavailable, message}, true};
    return {{IsAboutCredentials(code) ? ErrorCode::kDenied : CodeOf(response.status), message},
            LearnRegion(response) || MayRenewCredentials(response.status, code)};
  }

  // Whether `text` is a whole answer to such a request. S3 calls all of them "...Result";
  // moto calls some "...Response".
  static bool IsAnswer(std::string_view text, std::string_view request) {
    const std::string name(request);
    return IsDocument(text, name + "Result") || IsDocument(text, name + "Response");
  }

  // Signs and runs until something lasting is known; any 2xx is a success, if `document` is empty
  // or what came is an answer of that name. Counts in `unanswered`, if given, the tries that the
  // store may be about to carry out.
  Result<net::HttpResponse> Run(net::HttpRequest request,
                                std::uint64_t body_size_max = kAnswerSizeMax,
                                std::string_view document = {}, int* unanswered = nullptr) const {
    const auto headers = request.headers;
    const auto deadline = Clock::now() + timeout;
    BackOff back_off{BackOff::kOfStores};
    for (;;) {
      request.headers = headers;
      FFR_TRY(SignNow(request));
      milliseconds asked_for{};
      bool may_pass = true;
      auto outcome = Once(request, body_size_max, may_pass, asked_for);
      if (outcome && !document.empty() && !IsAnswer(TextOf(outcome.value().body), document))
        outcome = NoDocument(request, outcome.value(), document);
      if (outcome) return outcome;
      if (unanswered != nullptr && MayComeLate(outcome.error())) ++*unanswered;
      const milliseconds wait = back_off.Next(asked_for);
      const auto next_try = Clock::now() + wait;
      if (!may_pass || next_try > deadline || Patience::OfThread().IsOver()) return outcome;
      SleepPatiently(next_try);
    }
  }

  // Also where a store, or a proxy before it, says that it is busy.
  static bool MayComeLate(const Error& error) noexcept {
    return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kDeadlineExceeded;
  }

  // A connection on which something failed is not used again.
  Result<net::HttpResponse> Once(const net::HttpRequest& request, std::uint64_t body_size_max,
                                 bool& may_pass, milliseconds& asked_for) const {
    auto client = FFR_TRY(Take());
    auto run = client->Run(request, {timeout, body_size_max});
    if (!run) {
      may_pass = run.error().code == ErrorCode::kUnavailable ||
                 run.error().code == ErrorCode::kDeadlineExceeded;
      return run;
    }
    GiveBack(std::move(client));
    net::HttpResponse& response = run.value();
    const std::string tried = Tried(request);
    // A multipart upload may fail after "200 OK" was said.
    const bool failed_late =
        request.method == "POST" && TextOf(response.body).find("<Error>") != std::string_view::npos;
    if (response.status / 100 == 2 && !failed_late) return run;
    Refusal refusal = RefusalOf(tried, response);
    if (failed_late) refusal = {{ErrorCode::kUnavailable, refusal.error.message}, true};
    may_pass = refusal.may_pass;
    asked_for = RetryAfter(response);
    return std::move(refusal.error);
  }

  // A store, or a proxy before it, that answers a listing with a page of its own, or with the
  // beginning of one: what it lacks would be taken for what is not there.
  Error NoDocument(const net::HttpRequest& request, const net::HttpResponse& response,
                   std::string_view document) const {
    return {ErrorCode::kUnavailable,
            "S3: " + Tried(request) + ": the store answered " + std::to_string(response.status) +
                " with " + std::to_string(response.size_bytes) + " bytes that are no whole " +
                std::string(document) + "Result; check the endpoint (AWS_ENDPOINT_URL)"};
  }

  std::string Tried(const net::HttpRequest& request) const {
    return request.method + " s3://" + bucket + request.path.substr(path.size());
  }

  // All pages of a listing, documents of that name: `take` is given each; `next` names what
  // continues where.
  using Query = std::vector<std::pair<std::string, std::string>>;
  Result<void> Pages(net::HttpRequest request, std::string_view document,
                     const std::function<void(std::string_view)>& take, const Query& next) const {
    const Query first = request.query;
    for (int page = 0; page < kPagesMax; ++page) {
      const auto response = FFR_TRY(Run(request, kAnswerSizeMax, document));
      const std::string_view text = TextOf(response.body);
      take(text);
      if (TextOfElement(text, "IsTruncated") != "true") return {};
      if (TextOfElement(text, next.front().second).empty())
        return Error{ErrorCode::kUnavailable,
                     "S3: " + Tried(request) +
                         ": the store says that the listing goes on, but no " +
                         next.front().second + "; it does not serve listings of version 2"};
      request.query = first;
      for (const auto& [parameter, element] : next)
        request.query.emplace_back(parameter, TextOfElement(text, element));
    }
    return Error{ErrorCode::kUnavailable,
                 "S3: s3://" + bucket + ": a listing has more than 10,000 pages"};
  }

  // A store that does not heed `prefix` lists what belongs to others, who delete what is listed.
  Result<void> CheckBelow(std::string_view prefix, std::string_view key) const {
    if (key.starts_with(prefix)) return {};
    return Error{ErrorCode::kUnavailable, "S3: a listing of s3://" + bucket + "/" +
                                              std::string(prefix) + " has the key " +
                                              std::string(key) + ", which is not below it"};
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
    if (bucket.find('.') != std::string_view::npos) impl->path = "/" + impl->bucket;
  } else {
    const std::size_t colon = endpoint.find("://");
    impl->scheme = endpoint.substr(0, colon == std::string_view::npos ? 0 : colon);
    if (impl->scheme != "http" && impl->scheme != "https")
      return Error{ErrorCode::kInvalidArgument, "S3: the endpoint " + settings.endpoint +
                                                    " does not begin with http:// or https://"};
    endpoint.remove_prefix(colon + 3);
    while (endpoint.ends_with('/')) endpoint.remove_suffix(1);
    const std::size_t slash = endpoint.find('/');
    impl->endpoint_host = endpoint.substr(0, slash);
    if (slash != std::string_view::npos) impl->path = endpoint.substr(slash);
    impl->path += "/" + impl->bucket;
  }
  impl->settings = std::move(settings);
  return std::shared_ptr<S3Bucket>(new S3Bucket(std::move(impl)));
}

std::string S3Bucket::Describe(std::string_view key) const {
  return "s3://" + impl_->bucket + "/" + std::string(key);
}

std::string S3Bucket::Identify(std::string_view key) const {
  return impl_->endpoint_host + " " + Describe(key);
}

std::chrono::milliseconds S3Bucket::timeout() const noexcept { return impl_->timeout; }

Result<net::HttpRequest> S3Bucket::GetRequest(std::string_view key, const Headers& headers) const {
  net::HttpRequest request = impl_->RequestFor(key);
  request.headers = headers;
  FFR_TRY(impl_->SignNow(request));
  return request;
}

ObjectStore::Refusal S3Bucket::RefusalOf(std::string_view key,
                                         const net::HttpResponse& response) const {
  return impl_->RefusalOf("GET " + Describe(key), response);
}

Result<S3Bucket::Listing> S3Bucket::List(std::string_view prefix, bool by_folder) const {
  net::HttpRequest request = impl_->RequestFor("");
  request.query = {{"list-type", "2"}, {"prefix", std::string(prefix)}};
  if (by_folder) request.query.emplace_back("delimiter", "/");
  Listing listing;
  const auto take = [&](std::string_view page) {
    ForEachElement(page, "Contents", [&](std::string_view object) {
      listing.objects.push_back({TextOfElement(object, "Key"),
                                 NumberIn(TextOfElement(object, "Size")),
                                 TextOfElement(object, "ETag")});
    });
    ForEachElement(page, "CommonPrefixes", [&](std::string_view folder) {
      listing.folders.push_back(TextOfElement(folder, "Prefix"));
    });
  };
  FFR_TRY(impl_->Pages(std::move(request), "ListBucket", take,
                       {{"continuation-token", "NextContinuationToken"}}));
  for (const Object& object : listing.objects) FFR_TRY(impl_->CheckBelow(prefix, object.key));
  for (const std::string& folder : listing.folders) FFR_TRY(impl_->CheckBelow(prefix, folder));
  return listing;
}

Result<std::vector<std::byte>> S3Bucket::Get(std::string_view key,
                                             std::uint64_t size_bytes_max) const {
  return FFR_TRY(impl_->Run(impl_->RequestFor(key), size_bytes_max)).body;
}

Result<void> S3Bucket::Put(std::string_view key, std::span<const std::byte> bytes,
                           Existing existing, const std::string& etag) const {
  net::HttpRequest request = impl_->RequestFor(key);
  request.method = "PUT";
  request.body = bytes;
  request.headers["x-amz-checksum-sha256"] = EncodeBase64(Sha256(bytes));
  if (existing == Existing::kRefuse) request.headers["if-none-match"] = "*";
  if (!etag.empty()) request.headers["if-match"] = etag;
  FFR_TRY(impl_->Run(std::move(request)));
  return {};
}

Result<void> S3Bucket::Copy(std::string_view from, const std::string& etag,
                            std::string_view to) const {
  net::HttpRequest request = impl_->RequestFor(to);
  request.method = "PUT";
  request.headers["x-amz-copy-source"] =
      "/" + impl_->bucket + "/" + net::UriEncode(from, /*keep_slashes=*/true);
  request.headers["x-amz-copy-source-if-match"] = etag;
  int unanswered = 0;
  const auto response = impl_->Run(std::move(request), kAnswerSizeMax, {}, &unanswered);
  if (!response && unanswered > 0) return Error{ErrorCode::kUnavailable, response.error().message};
  if (!response) return response.error();
  const std::string_view text = TextOf(response.value().body);
  if (Impl::IsAnswer(text, "CopyObject")) return {};
  // A copy may fail after "200 OK" was said, and a store that knows no copies has made an empty
  // object, and names its ETag.
  const bool is_refused = unanswered == 0 && (text.find("<Error>") != std::string_view::npos ||
                                              response.value().headers.contains("etag"));
  return Error{
      is_refused ? ErrorCode::kIo : ErrorCode::kUnavailable,
      "S3: PUT " + Describe(to) + ": the store does not say that it has copied " + Describe(from)};
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
  const std::string checksum = EncodeBase64(Sha256(bytes));
  request.headers["x-amz-checksum-sha256"] = checksum;
  const auto response = FFR_TRY(impl_->Run(std::move(request)));
  const auto etag = response.headers.find("etag");
  if (etag == response.headers.end())
    return Error{ErrorCode::kUnavailable,
                 Describe(key) + ": the store returned no ETag for a part"};
  return Part{number, bytes.size(), etag->second, checksum};
}

Result<void> S3Bucket::FinishParts(std::string_view key, std::string_view upload,
                                   std::span<const Part> parts, Existing existing) const {
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
  if (existing == Existing::kRefuse) request.headers["if-none-match"] = "*";
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
      std::move(request), "ListMultipartUploads",
      [&](std::string_view page) {
        ForEachElement(page, "Upload", [&](std::string_view upload) {
          pending.push_back({TextOfElement(upload, "Key"), TextOfElement(upload, "UploadId")});
        });
      },
      {{"key-marker", "NextKeyMarker"}, {"upload-id-marker", "NextUploadIdMarker"}}));
  // Some stores do not heed the prefix here.
  std::erase_if(pending,
                [&](const PendingUpload& upload) { return !upload.key.starts_with(prefix); });
  return pending;
}

Result<std::vector<S3Bucket::Part>> S3Bucket::PartsOf(std::string_view key,
                                                      std::string_view upload) const {
  net::HttpRequest request = impl_->RequestFor(key);
  request.query = {{"uploadId", std::string(upload)}};
  std::vector<Part> parts;
  FFR_TRY(impl_->Pages(
      std::move(request), "ListParts",
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
