#include "libffrecord/object_store/http_address.h"

#include <algorithm>

#include "libffrecord/base/hex.h"
#include "libffrecord/net/http/http.h"

namespace ffrecord::object_store {
namespace {

// Percent-encodes what may not stand in a request line; what is encoded stays as it is.
std::string Encoded(std::string_view text) {
  return net::PercentEncode(text, [](char c) {
    return c > 0x20 && c < 0x7F && std::string_view("\"<>\\").find(c) == std::string_view::npos;
  });
}

// "a%40b" is "a@b".
std::string Decoded(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
        HexDigit(text[i + 2]) >= 0) {
      plain += static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2]));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

Result<HttpAddress> HttpAddress::Parse(std::string_view text) {
  const std::string_view whole = text;
  HttpAddress address;
  for (const std::string_view scheme : {"http", "https"})
    if (text.starts_with(scheme) && text.substr(scheme.size()).starts_with("://"))
      address.scheme = scheme;
  if (address.scheme.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "the address " + std::string(whole) + " does not begin with http:// or https://"};
  text.remove_prefix(address.scheme.size() + 3);
  text = text.substr(0, text.find('#'));
  const std::size_t slash = std::min(text.find_first_of("/?"), text.size());
  std::string_view authority = text.substr(0, slash);
  if (const std::size_t at = authority.rfind('@'); at != std::string_view::npos) {
    address.user = Decoded(authority.substr(0, at));
    authority.remove_prefix(at + 1);
  }
  address.host = authority;
  text.remove_prefix(slash);
  address.target = (text.starts_with('/') ? "" : "/") + Encoded(text);
  const bool is_host =
      !address.host.empty() && std::none_of(address.host.begin(), address.host.end(), [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte <= 0x20 || byte == 0x7F;
      });
  if (!is_host)
    return Error{ErrorCode::kInvalidArgument, "the address " + address.Shown() + " names no host"};
  return address;
}

}  // namespace ffrecord::object_store
