#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/http/http.h"

namespace ffrecord::net {

struct HttpSink;

// One request of many. The caller owns it, and keeps it and what it borrows in place from Begin()
// until Wait() has returned it or Cancel() was called.
struct HttpTransfer {
  HttpRequest request;
  std::span<std::byte> destination;  // Borrowed; the body must not be longer.
  // Asked once status and headers are there, before the first byte: whether the body belongs at the
  // destination. A body that does not is kept in the response, up to `body_size_max`, or 64 KiB if
  // the status is not a 2xx; a longer one ends the transfer with kCorruption.
  std::function<bool(const HttpResponse&)> accepts;

  std::uint64_t body_size_max = 0;  // Limit for a body that goes nowhere else.
  // Takes the body of a 2xx response as it comes, in place of all others: Wait() appends to it, and
  // returns when it has. Borrowed.
  std::string* stream = nullptr;

  HttpResponse response;
  // As HttpClient::Run() fails; any status is a success.
  std::optional<Error> error;
  Clock::duration first_byte_after{};  // 0: none came.
  bool was_sent = false;  // A byte of the request, at least; also known after Cancel().
  void* user = nullptr;   // The caller's own.
};

// Runs many requests at a time on the calling thread, over connections that stay open. Thread-bound
// at any one time; a forked child leaves it alone.
class HttpTransfers {
 public:
  // Keeps at most `connection_count_max` connections open. Fails with kIo (ENOMEM).
  static Result<std::unique_ptr<HttpTransfers>> Create(std::size_t connection_count_max);
  // Cancels what is under way.
  ~HttpTransfers();
  HttpTransfers(const HttpTransfers&) = delete;
  HttpTransfers& operator=(const HttpTransfers&) = delete;

  // Begins `transfer`; `connect_timeout` is all that limits its time. Fails with kIo (ENOMEM).
  Result<void> Begin(HttpTransfer& transfer, std::chrono::milliseconds connect_timeout);

  // Moves bytes until at least one transfer has ended, bytes have come for a stream, Wake() was
  // called or `timeout` has passed, and appends those that have ended.
  Result<void> Wait(std::chrono::milliseconds timeout, std::vector<HttpTransfer*>& ended);

  // Wait() returns, the one under way or else the next. Thread-safe.
  void Wake();

  // Ends it at once: nothing is written to its destination any more. Requires it to be under way.
  void Cancel(HttpTransfer& transfer);

  struct Progress {
    Clock::time_point at;      // When bytes last arrived, or when it began.
    std::uint64_t size_bytes;  // Size of the body, so far.
  };
  // Requires it to be under way.
  Progress ProgressOf(const HttpTransfer& transfer) const;

 private:
  struct Impl;
  explicit HttpTransfers(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord::net
