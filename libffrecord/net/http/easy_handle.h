#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/http/curl_library.h"
#include "libffrecord/net/http/http.h"
#include "libffrecord/net/http/paced_body.h"

namespace ffrecord::net {

// Where a response goes as it arrives.
struct HttpSink {
  HttpResponse response;
  std::span<std::byte> destination;
  std::uint64_t body_size_max = 0;  // Limit for a body that does not go to the destination.
  // Whether the body belongs at the destination; empty: that of every 2xx response.
  std::function<bool(const HttpResponse&)> accepts;
  std::string* stream = nullptr;  // Takes the body of a 2xx response in place of all others.

  Clock::time_point began;
  Clock::time_point progressed;  // When the last bytes arrived.
  std::size_t headers_size_bytes = 0;
  bool is_too_long = false;
  bool is_for_destination = false;
  bool has_body = false;      // Its first byte has arrived.
  bool has_streamed = false;  // Since this was reset.
};

// One handle of libcurl with one request at a time. Thread-bound.
class EasyHandle {
 public:
  // Fails as LoadCurl() does.
  static Result<std::unique_ptr<EasyHandle>> Create();
  ~EasyHandle();
  EasyHandle(const EasyHandle&) = delete;
  EasyHandle& operator=(const EasyHandle&) = delete;

  // Sets the handle up. Borrows `request` and `sink` until the request has ended. A `stall` of 0
  // leaves it to the caller to end a request that makes no progress.
  void Prepare(const HttpRequest& request, HttpSink& sink, std::chrono::milliseconds connect,
               std::chrono::milliseconds stall);

  // After Prepare(): `may_go_on` is asked at least once per second on the thread that performs the
  // request, which is broken off once it says no.
  void AskWhetherToGoOn(bool (*may_go_on)());

  // The outcome of the request that ended with `code`.
  Result<void> Outcome(CURLcode code) const;

  CURL* curl() const noexcept { return curl_; }

 private:
  struct FreeList {
    void operator()(curl_slist* list) const noexcept { Curl().slist_free_all(list); }
  };

  explicit EasyHandle(CURL* curl) noexcept : curl_(curl) {}
  void SetMethod(const HttpRequest& request, std::chrono::milliseconds stall);
  void SetHeaders(const HttpRequest& request);
  void Append(const std::string& line);

  CURL* const curl_;
  std::unique_ptr<curl_slist, FreeList> headers_;
  PacedBody paced_body_;
  std::string tried_;  // For people.
  HttpSink* sink_ = nullptr;
  char reason_[CURL_ERROR_SIZE] = "";
};

}  // namespace ffrecord::net
