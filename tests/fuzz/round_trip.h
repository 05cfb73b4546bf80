#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

// What fuzz targets of messages have in common.

using Body = std::span<const std::byte>;

// A finding, if `same` is false.
inline void Require(bool same) {
  if (!same) __builtin_trap();
}

// A body that is accepted must encode to itself.
template <class Message>
void Try(Body body) {
  const auto message = Message::Decode(body);
  if (message) Require(std::ranges::equal(message.value().Encode(), body));
}
