#include "libffrecord/object_store/xml.h"

#include <array>
#include <charconv>
#include <utility>

namespace ffrecord::object_store {
namespace {

constexpr std::array<std::pair<std::string_view, char>, 5> kEntities{
    {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};

// "#34" or "#xe4" in UTF-8; '?' if that is no character.
std::string NumberedCharacter(std::string_view entity) {
  unsigned code = 0;
  entity.remove_prefix(1);
  int base = 10;
  if (entity.starts_with('x')) {
    entity.remove_prefix(1);
    base = 16;
  }
  const char* const end = entity.data() + entity.size();
  const auto [stop, error] = std::from_chars(entity.data(), end, code, base);
  if (error != std::errc() || stop != end || code == 0 || code > 0x10FFFF) return "?";
  if (code < 0x80) return {static_cast<char>(code)};
  std::string bytes;
  int shift = code < 0x800 ? 6 : code < 0x10000 ? 12 : 18;
  const unsigned mark = shift == 6 ? 0xC0 : shift == 12 ? 0xE0 : 0xF0;
  bytes += static_cast<char>(mark | code >> shift);
  while ((shift -= 6) >= 0) bytes += static_cast<char>(0x80 | (code >> shift & 0x3F));
  return bytes;
}

std::string Unescaped(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const std::size_t end = text.front() == '&' ? text.find(';') : std::string_view::npos;
    if (end == std::string_view::npos) {
      plain += text.front();
      text.remove_prefix(1);
      continue;
    }
    const std::string_view entity = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    if (entity.starts_with('#')) {
      plain += NumberedCharacter(entity);
      continue;
    }
    for (const auto& [name, character] : kEntities)
      if (name == entity) plain += character;
  }
  return plain;
}

}  // namespace

void ForEachElement(std::string_view text, std::string_view name,
                    const std::function<void(std::string_view)>& take) {
  const std::string open = "<" + std::string(name) + ">";
  const std::string close = "</" + std::string(name) + ">";
  for (;;) {
    const std::size_t begin = text.find(open);
    if (begin == std::string_view::npos) return;
    text.remove_prefix(begin + open.size());
    const std::size_t end = text.find(close);
    if (end == std::string_view::npos) return;
    take(text.substr(0, end));
    text.remove_prefix(end + close.size());
  }
}

std::string TextOfElement(std::string_view text, std::string_view name) {
  std::string found;
  bool is_first = true;
  ForEachElement(text, name, [&](std::string_view content) {
    if (std::exchange(is_first, false)) found = Unescaped(content);
  });
  return found;
}

bool IsDocument(std::string_view text, std::string_view name) {
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != text.npos)
    text.remove_suffix(1);
  const std::string close = "</" + std::string(name) + ">";
  const std::string empty = "<" + std::string(name);
  if (text.ends_with(close)) return true;
  // An element without content, "<name/>" or "<name xmlns=...  />".
  const std::size_t begin = text.rfind('<');
  return begin != text.npos && text.ends_with("/>") && text.substr(begin).starts_with(empty);
}

std::string EscapeXml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    bool is_special = false;
    for (const auto& [name, character] : kEntities)
      if (character == c) {
        escaped += "&" + std::string(name) + ";";
        is_special = true;
      }
    if (!is_special) escaped += c;
  }
  return escaped;
}

}  // namespace ffrecord::object_store
