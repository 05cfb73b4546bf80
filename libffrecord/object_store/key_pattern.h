#pragma once

#include <string_view>

namespace ffrecord::object_store {

// Whether a key has any of *?[ in it.
bool IsPattern(std::string_view key);

// The prefix of every match of the pattern: all before the first of *?[.
std::string_view LiteralPrefix(std::string_view pattern);

// Whether the whole of `key` matches: * any characters but a slash, ? one of them, [ab] and [a-z]
// one of these, [!a] none of these, ** any characters, **/ also none.
bool Matches(std::string_view pattern, std::string_view key);

}  // namespace ffrecord::object_store
