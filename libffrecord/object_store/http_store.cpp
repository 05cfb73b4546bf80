#include "libffrecord/object_store/http_store.h"

#include <utility>

#include "libffrecord/base/base64.h"
#include "libffrecord/object_store/retry.h"

namespace ffrecord::object_store {

HttpStore::HttpStore(HttpAddress address, std::chrono::milliseconds timeout)
    : address_(std::move(address)), timeout_(timeout) {}

std::string HttpStore::Describe(std::string_view key) const {
  return address_.scheme + "://" + address_.host + std::string(key.substr(0, key.find('?')));
}

Result<net::HttpRequest> HttpStore::GetRequest(std::string_view key, const Headers& headers) const {
  net::HttpRequest request;
  request.scheme = address_.scheme;
  request.host = address_.host;
  request.target = key;
  request.headers = headers;
  request.follows_redirects = true;
  if (!address_.user.empty())
    request.headers["authorization"] =
        "Basic " + EncodeBase64(std::as_bytes(std::span(address_.user)));
  return request;
}

ObjectStore::Refusal HttpStore::RefusalOf(std::string_view key,
                                          const net::HttpResponse& response) const {
  const std::string message =
      "GET " + Describe(key) + ": the server answered " + std::to_string(response.status);
  switch (response.status) {
    case 401:
    case 403:
    case 407:
      return {{ErrorCode::kDenied, message + ": access denied"}, false};
    case 404:
    case 410:
      return {{ErrorCode::kNotFound, message + ": there is no such file"}, false};
    default:
      break;
  }
  if (response.status >= 500 || MayPass(response.status))
    return {{ErrorCode::kUnavailable, message}, MayPass(response.status)};
  return {{ErrorCode::kInvalidArgument, message}, false};
}

}  // namespace ffrecord::object_store
