#pragma once

#include <string>
#include <string_view>

namespace ffrecord {

// As a JSON string. Control characters become spaces.
inline std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted.push_back('\\');
    quoted.push_back(static_cast<unsigned char>(c) < ' ' ? ' ' : c);
  }
  return quoted + '"';
}

}  // namespace ffrecord
