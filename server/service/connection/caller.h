#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/messages.h"
#include "server/service/access/tokens.h"
#include "server/service/connection/conversation.h"
#include "server/service/connection/frame.h"

namespace ffrecord::server {

// The client of one connection: its token, its rights, its tenant, and what it understands.
//
// Thread-bound to the worker of its connection. Errors are those to be sent to the client.
class Caller {
 public:
  // `conversation` outlives this.
  explicit Caller(const Conversation& conversation) : conversation_(conversation) {}
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // The client has been admitted with that token; none: it may do everything.
  void SetToken(std::optional<Token> token) { token_ = std::move(token); }
  const std::optional<Token>& token() const noexcept { return token_; }
  bool has_expired() const noexcept { return token_ && WallClock::now() >= token_->expires; }
  // Capabilities that client and daemon have.
  void SetCapabilities(std::uint64_t capabilities) noexcept { capabilities_ = capabilities; }
  bool has(std::uint64_t capability) const noexcept { return (capabilities_ & capability) != 0; }

  // All names that it may use begin with this.
  std::string_view prefix() const noexcept {
    return token_ ? std::string_view(token_->prefix) : std::string_view();
  }

  // Whether it may do what `frame` asks to `name`. kDenied, whether there is such a name or not.
  // Requires a frame of a type that needs a right.
  Result<void> Allow(const Frame& frame, std::string_view name);
  // The same for names of its own, whatever they are.
  Result<void> Allow(const Frame& frame) { return Allow(frame, prefix()); }
  // The request in `frame`, if the client may do that to what it names in `field`. Fails as
  // Allow(), and with kCorruption if it is malformed.
  template <class Request>
  Result<Request> Permitted(const Frame& frame, std::string Request::*field) {
    auto request = FFR_TRY(Request::Decode(frame.body));
    FFR_TRY(Allow(frame, request.*field));
    return request;
  }

  // Clients whose tokens name the same client and prefix are one tenant; without tokens all are.
  std::string Tenant() const;
  std::string Who() const;  // For the log.

 private:
  const Conversation& conversation_;
  std::optional<Token> token_;
  std::uint64_t capabilities_ = net::kCapabilityNone;
  bool has_been_denied_ = false;
};

}  // namespace ffrecord::server
