#include <charconv>

#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::net {
namespace {

Error NotAnAddress(std::string_view text, std::string_view why) {
  return {ErrorCode::kInvalidArgument, "'" + std::string(text) +
                                           "' is not a valid address: " + std::string(why) +
                                           "; write host, host:port, [v6] or [v6]:port"};
}

}  // namespace

Result<Address> Address::Parse(std::string_view text, std::uint16_t port_default) {
  std::string_view host = text;
  std::string_view port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return NotAnAddress(text, "the bracket is not closed");
    host = text.substr(1, end - 1);
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && rest.front() != ':') return NotAnAddress(text, "no colon after ]");
    has_port = !rest.empty();
    if (has_port) port = rest.substr(1);
  } else if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
    if (port.find(':') != std::string_view::npos)
      return NotAnAddress(text, "an IPv6 address needs brackets");
  }
  if (host.empty()) return NotAnAddress(text, "the host is empty");

  Address address{std::string(host), port_default};
  if (has_port) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (port.empty() || error != std::errc() || end != port.data() + port.size())
      return NotAnAddress(text, "the port is not a number from 0 to 65535");
  }
  return address;
}

std::string Address::ToString() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace ffrecord::net
