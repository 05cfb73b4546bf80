#pragma once

#include <string>
#include <string_view>

#include <ffrecord/result.h>

namespace ffrecord::object_store {

// http://HOST[:PORT]/PATH?QUERY, or https://.
struct HttpAddress {
  std::string scheme;
  std::string user;    // "NAME:PASSWORD", if there is one before the host.
  std::string host;    // With its port.
  std::string target;  // Path and query as they travel; at least "/".

  // Fails with kInvalidArgument.
  static Result<HttpAddress> Parse(std::string_view text);

  // Without user and query, which may be secrets.
  std::string Shown() const { return scheme + "://" + host + target.substr(0, target.find('?')); }
};

}  // namespace ffrecord::object_store
