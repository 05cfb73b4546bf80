#include "libffrecord/net/http/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace ffrecord::net {
namespace {

constexpr std::uint64_t kErrorSizeMax = 64 << 10;

struct FreeList {
  void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
};
using List = std::unique_ptr<curl_slist, FreeList>;

void Append(List& list, const std::string& line) {
  curl_slist* const longer = curl_slist_append(list.get(), line.c_str());
  if (longer == nullptr) return;  // No memory: the server will miss it and say so.
  static_cast<void>(list.release());
  list.reset(longer);
}

// Where a response goes as it arrives.
struct Sink {
  HttpResponse response;
  std::span<std::byte> destination;
  std::uint64_t body_size_max = 0;
  bool is_too_long = false;
};

std::size_t TakeHeader(char* text, std::size_t size, std::size_t count, void* context) {
  auto& response = static_cast<Sink*>(context)->response;
  std::string_view line(text, size * count);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {
    response.headers.clear();  // What "100 Continue" said is void.
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

std::size_t TakeBody(char* text, std::size_t size, std::size_t count, void* context) {
  auto& sink = *static_cast<Sink*>(context);
  const auto bytes = std::as_bytes(std::span(text, size * count));
  // An error's body is text to be kept, wherever the bytes asked for were to go.
  const bool is_for_destination = !sink.destination.empty() && sink.response.status / 100 == 2;
  const std::uint64_t room = is_for_destination ? sink.destination.size()
                             : sink.response.status / 100 == 2
                                 ? sink.body_size_max
                                 : std::max(sink.body_size_max, kErrorSizeMax);
  if (bytes.size() > room - sink.response.size_bytes) {
    sink.is_too_long = true;
    return 0;  // Breaks it off.
  }
  if (is_for_destination)
    std::memcpy(sink.destination.data() + sink.response.size_bytes, bytes.data(), bytes.size());
  else
    sink.response.body.insert(sink.response.body.end(), bytes.begin(), bytes.end());
  sink.response.size_bytes += bytes.size();
  return bytes.size();
}

}  // namespace

std::string UriEncode(std::string_view text, bool keep_slashes) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x80 && std::isalnum(byte) != 0) || std::strchr("-._~", c) != nullptr ||
        (c == '/' && keep_slashes)) {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
  }
  return encoded;
}

std::string EncodeQuery(const std::vector<std::pair<std::string, std::string>>& query) {
  std::vector<std::pair<std::string, std::string>> sorted;
  for (const auto& [name, value] : query)
    sorted.emplace_back(UriEncode(name, false), UriEncode(value, false));
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  for (const auto& [name, value] : sorted) text += (text.empty() ? "" : "&") + name + "=" + value;
  return text;
}

struct HttpClient::Impl {
  CURL* easy = nullptr;

  ~Impl() { curl_easy_cleanup(easy); }

  // A method other than libcurl's own is a POST under another name: it has a body, if only of 0
  // bytes, which is not copied.
  void SetMethod(const HttpRequest& request) {
    if (request.method == "GET") return;
    if (request.method == "HEAD") {
      curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
      return;
    }
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    if (request.method == "DELETE") return;
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
    const void* const body = request.body.data();
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.body.empty() ? "" : body);
  }

  List SetHeaders(const HttpRequest& request) {
    List list;
    Append(list, "Host: " + request.host);
    Append(list, "Expect:");  // No wait for leave to send.
    if (!request.headers.contains("content-type")) Append(list, "Content-Type:");
    for (const auto& [name, value] : request.headers) Append(list, name + ": " + value);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list.get());
    return list;
  }
};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
HttpClient::~HttpClient() = default;

Result<std::unique_ptr<HttpClient>> HttpClient::Create() {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  auto impl = std::make_unique<Impl>();
  if (ready == CURLE_OK) impl->easy = curl_easy_init();
  if (impl->easy == nullptr)
    return Error{ErrorCode::kIo, "http: libcurl could not be started", ENOMEM};
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

Result<HttpResponse> HttpClient::Run(const HttpRequest& request, const Limits& limits,
                                     std::span<std::byte> destination) {
  CURL* const easy = impl_->easy;
  curl_easy_reset(easy);  // All but its connections.
  Sink sink;
  sink.destination = destination;
  sink.body_size_max = limits.body_size_max;
  std::string url = request.scheme + "://" + request.host + UriEncode(request.path, true);
  if (!request.query.empty()) url += "?" + EncodeQuery(request.query);
  char reason[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);  // It is signed as it is.
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, reason);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(limits.timeout.count()));
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME,
                   static_cast<long>(std::max<std::int64_t>(limits.timeout.count() / 1000, 1)));
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &TakeHeader);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &sink);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &TakeBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &sink);
  impl_->SetMethod(request);
  const List headers = impl_->SetHeaders(request);

  const CURLcode outcome = curl_easy_perform(easy);
  const std::string tried =
      request.method + " " + request.scheme + "://" + request.host + request.path;
  if (sink.is_too_long)
    return Error{ErrorCode::kCorruption, tried + ": the response is longer than expected"};
  if (outcome != CURLE_OK)
    return Error{outcome == CURLE_OPERATION_TIMEDOUT ? ErrorCode::kDeadlineExceeded
                                                     : ErrorCode::kUnavailable,
                 tried + ": " + (reason[0] != '\0' ? reason : curl_easy_strerror(outcome))};
  return std::move(sink.response);
}

}  // namespace ffrecord::net
