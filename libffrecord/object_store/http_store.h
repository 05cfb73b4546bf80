#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <ffrecord/result.h>

#include "libffrecord/object_store/http_address.h"
#include "libffrecord/object_store/object_store.h"

namespace ffrecord::object_store {

// An HTTP server that serves files; keys are paths with their queries, as they travel. Follows
// redirections. Thread-safe; a forked child may go on using it.
class HttpStore final : public ObjectStore {
 public:
  // Uses `address` but for its target.
  HttpStore(HttpAddress address, std::chrono::milliseconds timeout);

  std::string Describe(std::string_view key) const override;
  // Without the query: a signature in it changes from day to day, and the version tells the rest.
  std::string Identify(std::string_view key) const override { return Describe(key); }
  Result<net::HttpRequest> GetRequest(std::string_view key, const Headers& headers) const override;
  Refusal RefusalOf(std::string_view key, const net::HttpResponse& response) const override;
  std::chrono::milliseconds timeout() const noexcept override { return timeout_; }

 private:
  const HttpAddress address_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace ffrecord::object_store
