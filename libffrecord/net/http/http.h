#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::net {

// One HTTP request. Names of headers are in lower case; path and query are not yet encoded.
struct HttpRequest {
  std::string method = "GET";
  std::string scheme = "https";
  std::string host;        // With its port, unless that is the scheme's own.
  std::string path = "/";  // Absolute.
  std::vector<std::pair<std::string, std::string>> query;
  std::string target;  // If not empty, path and query as they travel, in place of both.
  std::map<std::string, std::string> headers;  // Without host.
  std::span<const std::byte> body;             // Borrowed until the request has ended.
  bool follows_redirects = false;
  bool without_proxy = false;
  // Sent over a new connection, and so at most once: libcurl repeats a request if a connection that
  // it has used before turns out to be closed.
  bool is_sent_once = false;
  std::string ca_file;           // The authorities to trust; empty: the environment's or system's.
  std::string certificate_file;  // Certificate of the client, with its key, PEM; empty: none.
  std::string key_file;
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // Names in lower case.
  std::vector<std::byte> body;                 // Empty if it went to a destination.
  std::uint64_t size_bytes = 0;                // Size of the body.
};

// Percent-encodes the bytes that may not stay.
std::string PercentEncode(std::string_view text, bool (*may_stay)(char));

// Percent-encodes all but letters, digits and -._~, as RFC 3986 and Signature Version 4 say; with
// `keep_slashes` also leaves '/'.
std::string UriEncode(std::string_view text, bool keep_slashes);

// The query as it travels and is signed: encoded, sorted by name.
std::string EncodeQuery(const std::vector<std::pair<std::string, std::string>>& query);

class EasyHandle;

// Runs one request after the other over a connection that stays open between them. Thread-bound.
class HttpClient {
 public:
  struct Limits {
    std::chrono::milliseconds timeout;  // To connect, and without a byte of progress.
    std::uint64_t body_size_max;        // Limit for a response that goes nowhere else.
  };

  // Fails with kIo (ENOMEM).
  static Result<std::unique_ptr<HttpClient>> Create();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any status is a success here. With `destination`, the body of a 2xx response goes there, and
  // must not be longer. Fails with kUnavailable (host unknown, refused, broken off, no TLS),
  // kDeadlineExceeded, kCorruption if the body is too long, kDenied if the server's certificate is
  // not trusted, kInvalidArgument for an address that cannot be asked. Within about a second after
  // the thread's patience is over, fails with kDeadlineExceeded.
  Result<HttpResponse> Run(const HttpRequest& request, const Limits& limits,
                           std::span<std::byte> destination = {});

 private:
  explicit HttpClient(std::unique_ptr<EasyHandle> handle) noexcept;
  std::unique_ptr<EasyHandle> handle_;
};

}  // namespace ffrecord::net
