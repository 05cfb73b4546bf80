#include "server/service/connection/caller.h"

#include <spdlog/spdlog.h>

#include "libffrecord/base/assert.h"

namespace ffrecord::server {
namespace {

// The client's name, as the maker of its token wrote it: one line of a log stays one line.
std::string Printable(std::string text) {
  for (char& byte : text)
    if (byte < ' ' || byte > '~' || byte == '"') byte = '?';
  return text;
}

}  // namespace

Result<void> Caller::Allow(const Frame& frame, std::string_view name) {
  FFR_ASSERT(frame.right);
  if (!token_) return {};
  if (token_->Allows(*frame.right, name)) return {};
  // Once: how often is in the metrics.
  if (!std::exchange(has_been_denied_, true)) spdlog::warn("event=denied {}", Who());
  return token_->Denial(*frame.right);
}

std::string Caller::Tenant() const {
  return token_ ? token_->prefix + '\n' + token_->client : std::string();
}

std::string Caller::Who() const {
  return "peer=" + conversation_.peer() + " client=\"" + Printable(token_ ? token_->client : "") +
         "\"";
}

}  // namespace ffrecord::server
