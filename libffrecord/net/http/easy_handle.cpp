#include "libffrecord/net/http/easy_handle.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "libffrecord/base/clock.h"

namespace ffrecord::net {
namespace {

constexpr std::uint64_t kErrorSizeMax = 64 << 10;
constexpr long kBufferBytes = 64 << 10;
constexpr std::size_t kHeadersSizeMax = 256 << 10;
constexpr long kRedirectsMax = 5;

std::size_t TakeHeader(char* text, std::size_t size, std::size_t count, void* context) {
  auto& sink = *static_cast<HttpSink*>(context);
  HttpResponse& response = sink.response;
  sink.headers_size_bytes += size * count;
  if (sink.headers_size_bytes > kHeadersSizeMax) return 0;  // Breaks it off.
  std::string_view line(text, size * count);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {
    response.headers.clear();  // Headers of "100 Continue" or of a redirection are void.
    const std::size_t space = line.find(' ');
    response.status = space == std::string_view::npos ? 0 : std::atoi(line.data() + space);
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return size * count;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  line.remove_prefix(colon + 1);
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  response.headers[std::move(name)] = line;
  return size * count;
}

// An error's body is text to be kept, wherever the bytes asked for were to go.
bool BelongsAtDestination(const HttpSink& sink) {
  if (sink.destination.empty()) return false;
  return sink.accepts ? sink.accepts(sink.response) : sink.response.status / 100 == 2;
}

std::size_t TakeBody(char* text, std::size_t size, std::size_t count, void* context) {
  auto& sink = *static_cast<HttpSink*>(context);
  const auto bytes = std::as_bytes(std::span(text, size * count));
  sink.progressed = Clock::now();
  if (!std::exchange(sink.has_body, true)) sink.is_for_destination = BelongsAtDestination(sink);
  const bool is_good = sink.response.status / 100 == 2;
  if (is_good && sink.stream != nullptr) {
    sink.stream->append(text, size * count);
    sink.has_streamed = true;
    return bytes.size();
  }
  const std::uint64_t room = sink.is_for_destination ? sink.destination.size()
                             : is_good               ? sink.body_size_max
                                                     : std::max(sink.body_size_max, kErrorSizeMax);
  if (bytes.size() > room - sink.response.size_bytes) {
    sink.is_too_long = true;
    return 0;  // Breaks it off.
  }
  if (sink.is_for_destination)
    std::memcpy(sink.destination.data() + sink.response.size_bytes, bytes.data(), bytes.size());
  else
    sink.response.body.insert(sink.response.body.end(), bytes.begin(), bytes.end());
  sink.response.size_bytes += bytes.size();
  return bytes.size();
}

std::string UrlOf(const HttpRequest& request) {
  const std::string place = request.scheme + "://" + request.host;
  if (!request.target.empty()) return place + request.target;
  std::string url = place + UriEncode(request.path, true);
  if (!request.query.empty()) url += "?" + EncodeQuery(request.query);
  return url;
}

// Failures that trying again does not mend get a code that says so.
ErrorCode CodeOf(CURLcode code) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_ABORTED_BY_CALLBACK:  // The caller gave it up.
      return ErrorCode::kDeadlineExceeded;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return ErrorCode::kDenied;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_TOO_MANY_REDIRECTS:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kUnavailable;
  }
}

// The file with the authorities to trust in place of the system's, where other tools find it too.
// Never destroyed: threads may read while the process exits.
const std::string& CaBundle() {
  static const auto* const path = new std::string([] {
    for (const char* const name : {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"})
      if (const char* const value = std::getenv(name); value != nullptr && *value != '\0')
        return std::string(value);
    return std::string();
  }());
  return *path;
}

// Without the query, which may hold a signature that opens the object to everybody.
std::string ShownUrlOf(const HttpRequest& request) {
  const std::string path =
      request.target.empty() ? request.path : request.target.substr(0, request.target.find('?'));
  return request.scheme + "://" + request.host + path;
}

}  // namespace

Result<std::unique_ptr<EasyHandle>> EasyHandle::Create() {
  FFR_TRY(LoadCurl());
  CURL* const curl = Curl().easy_init();
  if (curl == nullptr) return Error{ErrorCode::kIo, "http: libcurl has no memory", ENOMEM};
  return std::unique_ptr<EasyHandle>(new EasyHandle(curl));
}

EasyHandle::~EasyHandle() { Curl().easy_cleanup(curl_); }

// A method other than libcurl's own is a POST under another name: it has a body, if only of 0
// bytes, which is not copied.
void EasyHandle::SetMethod(const HttpRequest& request, std::chrono::milliseconds stall) {
  if (request.method == "GET") return;
  if (request.method == "HEAD") {
    Curl().easy_setopt(curl_, CURLOPT_NOBODY, 1L);
    return;
  }
  Curl().easy_setopt(curl_, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  if (request.method == "DELETE") return;
  Curl().easy_setopt(curl_, CURLOPT_POST, 1L);
  Curl().easy_setopt(curl_, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
  // Where several requests share a thread, none may wait.
  if (stall.count() > 0 && PacedBody::IsFor(request.body))
    return paced_body_.Give(curl_, request.body, stall / 2);
  const void* const body = request.body.data();
  Curl().easy_setopt(curl_, CURLOPT_POSTFIELDS, request.body.empty() ? "" : body);
}

void EasyHandle::Append(const std::string& line) {
  curl_slist* const longer = Curl().slist_append(headers_.get(), line.c_str());
  if (longer == nullptr) return;  // No memory: the server will miss it and say so.
  static_cast<void>(headers_.release());
  headers_.reset(longer);
}

void EasyHandle::SetHeaders(const HttpRequest& request) {
  headers_.reset();
  // With redirections libcurl names each host itself.
  if (!request.follows_redirects) Append("Host: " + request.host);
  Append("Expect:");  // No wait for leave to send.
  if (!request.headers.contains("content-type")) Append("Content-Type:");
  for (const auto& [name, value] : request.headers) Append(name + ": " + value);
  Curl().easy_setopt(curl_, CURLOPT_HTTPHEADER, headers_.get());
}

void EasyHandle::Prepare(const HttpRequest& request, HttpSink& sink,
                         std::chrono::milliseconds connect, std::chrono::milliseconds stall) {
  Curl().easy_reset(curl_);  // All but its connections.
  sink_ = &sink;
  tried_ = request.method + " " + ShownUrlOf(request);
  reason_[0] = '\0';
  Curl().easy_setopt(curl_, CURLOPT_URL, UrlOf(request).c_str());
  Curl().easy_setopt(curl_, CURLOPT_PATH_AS_IS, 1L);  // It is signed as it is.
  Curl().easy_setopt(curl_, CURLOPT_PROTOCOLS_STR, "http,https");
  // All of a batch over one connection would share its window and its losses.
  Curl().easy_setopt(curl_, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  Curl().easy_setopt(curl_, CURLOPT_NOSIGNAL, 1L);
  Curl().easy_setopt(curl_, CURLOPT_BUFFERSIZE, kBufferBytes);
  Curl().easy_setopt(curl_, CURLOPT_ERRORBUFFER, reason_);
  Curl().easy_setopt(curl_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(connect.count()));
  if (stall.count() > 0) {
    Curl().easy_setopt(curl_, CURLOPT_LOW_SPEED_LIMIT, 1L);
    Curl().easy_setopt(curl_, CURLOPT_LOW_SPEED_TIME,
                       static_cast<long>(std::max<std::int64_t>(stall.count() / 1000, 1)));
  }
  if (request.follows_redirects) {
    Curl().easy_setopt(curl_, CURLOPT_FOLLOWLOCATION, 1L);
    Curl().easy_setopt(curl_, CURLOPT_MAXREDIRS, kRedirectsMax);
    // A redirection of an encrypted request stays encrypted.
    Curl().easy_setopt(curl_, CURLOPT_REDIR_PROTOCOLS_STR,
                       request.scheme == "https" ? "https" : "http,https");
  }
  const std::string& ca_file = request.ca_file.empty() ? CaBundle() : request.ca_file;
  if (!ca_file.empty()) Curl().easy_setopt(curl_, CURLOPT_CAINFO, ca_file.c_str());
  if (!request.certificate_file.empty()) {
    Curl().easy_setopt(curl_, CURLOPT_SSLCERT, request.certificate_file.c_str());
    Curl().easy_setopt(curl_, CURLOPT_SSLKEY, request.key_file.c_str());
  }
  if (request.is_sent_once) Curl().easy_setopt(curl_, CURLOPT_FRESH_CONNECT, 1L);
  if (request.without_proxy) Curl().easy_setopt(curl_, CURLOPT_NOPROXY, "*");
  Curl().easy_setopt(curl_, CURLOPT_HEADERFUNCTION, &TakeHeader);
  Curl().easy_setopt(curl_, CURLOPT_HEADERDATA, &sink);
  Curl().easy_setopt(curl_, CURLOPT_WRITEFUNCTION, &TakeBody);
  Curl().easy_setopt(curl_, CURLOPT_WRITEDATA, &sink);
  SetMethod(request, stall);
  SetHeaders(request);
  sink.began = sink.progressed = Clock::now();
}

void EasyHandle::AskWhetherToGoOn(bool (*may_go_on)()) {
  const curl_xferinfo_callback ask = [](void* asked, curl_off_t, curl_off_t, curl_off_t,
                                        curl_off_t) {
    return reinterpret_cast<bool (*)()>(asked)() ? 0 : 1;
  };
  Curl().easy_setopt(curl_, CURLOPT_XFERINFOFUNCTION, ask);
  Curl().easy_setopt(curl_, CURLOPT_XFERINFODATA, reinterpret_cast<void*>(may_go_on));
  Curl().easy_setopt(curl_, CURLOPT_NOPROGRESS, 0L);
}

Result<void> EasyHandle::Outcome(CURLcode code) const {
  if (sink_->is_too_long)
    return Error{ErrorCode::kCorruption, tried_ + ": the response is longer than expected"};
  if (code == CURLE_OK) return {};
  return Error{CodeOf(code),
               tried_ + ": " + (reason_[0] != '\0' ? reason_ : Curl().easy_strerror(code))};
}

}  // namespace ffrecord::net
