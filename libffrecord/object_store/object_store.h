#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <ffrecord/result.h>

#include "libffrecord/base/per_process.h"
#include "libffrecord/net/http/http.h"
#include "libffrecord/object_store/store_pace.h"

namespace ffrecord::object_store {

// Distinguishes one version of an object from another that has the same key.
struct ObjectVersion {
  std::uint64_t size_bytes = 0;
  std::string etag;           // As the store writes it, with its quotes; empty if it names none.
  std::string last_modified;  // As the store writes it; empty if it names none.
};

// A service that serves objects over HTTP: a bucket, or any server that knows ranges.
//
// Thread-safe; a forked child may go on using it.
class ObjectStore {
 public:
  using Headers = std::map<std::string, std::string>;

  virtual ~ObjectStore() = default;

  // The address of an object, for people. Has no secret in it.
  virtual std::string Describe(std::string_view key) const = 0;

  // A text that distinguishes the object from those of other stores. Not for people.
  virtual std::string Identify(std::string_view key) const = 0;

  // A GET of one object with these headers, signed as the store wants it. May wait for credentials;
  // fails as they do.
  virtual Result<net::HttpRequest> GetRequest(std::string_view key,
                                              const Headers& headers) const = 0;

  // The meaning of a response that is not the one asked for.
  struct Refusal {
    Error error;
    bool may_pass = false;  // The same request may succeed later.
  };
  virtual Refusal RefusalOf(std::string_view key, const net::HttpResponse& response) const = 0;

  // For each request, retries included.
  virtual std::chrono::milliseconds timeout() const noexcept = 0;

  // How fast it answers, and how many requests it takes at a time.
  StorePace& pace() const { return pace_.Get(); }

  // A forked child counts on from what its parent had.
  struct Counts {
    std::atomic<std::uint64_t> requests{0};
    std::atomic<std::uint64_t> retries{0};
    std::atomic<std::uint64_t> hedges{0};
    std::atomic<std::uint64_t> throttled{0};
    std::atomic<std::uint64_t> received_bytes{0};
  };
  Counts& counts() const { return counts_; }

 private:
  mutable Counts counts_;
  mutable PerProcess<StorePace> pace_{[] { return new StorePace; }};
};

}  // namespace ffrecord::object_store
