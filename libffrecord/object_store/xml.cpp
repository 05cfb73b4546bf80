#include "libffrecord/object_store/xml.h"

#include <array>
#include <charconv>
#include <utility>

namespace ffrecord::object_store {
namespace {

constexpr std::array<std::pair<std::string_view, char>, 5> kEntities{
    {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};

// "#34" or "#x22", of ASCII: all that a key of ours can have.
char NumberedCharacter(std::string_view entity) {
  unsigned code = 0;
  entity.remove_prefix(1);
  int base = 10;
  if (entity.starts_with('x')) {
    entity.remove_prefix(1);
    base = 16;
  }
  std::from_chars(entity.data(), entity.data() + entity.size(), code, base);
  return code > 0 && code < 0x80 ? static_cast<char>(code) : '?';
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
