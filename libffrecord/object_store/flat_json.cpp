#include "libffrecord/object_store/flat_json.h"

#include <utility>

#include "libffrecord/base/hex.h"

namespace ffrecord::object_store {
namespace {

constexpr int kDepthMax = 32;

class JsonText {
 public:
  explicit JsonText(std::string_view text) : text_(text) {}

  bool Take(char expected) {
    SkipSpace();
    if (text_.empty() || text_.front() != expected) return false;
    text_.remove_prefix(1);
    return true;
  }

  bool is_at_string() {
    SkipSpace();
    return text_.starts_with('"');
  }
  bool is_at_end() {
    SkipSpace();
    return text_.empty();
  }

  std::optional<std::string> TakeString() {
    if (!Take('"')) return std::nullopt;
    std::string plain;
    while (!text_.empty()) {
      const char c = text_.front();
      text_.remove_prefix(1);
      if (c == '"') return plain;
      if (c != '\\') {
        plain += c;
      } else if (!TakeEscape(plain)) {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  // A value of any kind.
  bool Skip(int depth = 0) {
    if (depth > kDepthMax) return false;
    if (is_at_string()) return TakeString().has_value();
    for (const auto& [open, close] : {std::pair('{', '}'), std::pair('[', ']')}) {
      if (!Take(open)) continue;
      if (Take(close)) return true;
      do {
        if (open == '{' && (!TakeString() || !Take(':'))) return false;
        if (!Skip(depth + 1)) return false;
      } while (Take(','));
      return Take(close);
    }
    const std::size_t size = text_.find_first_of(",]} \t\r\n");
    const std::string_view word = text_.substr(0, size);
    text_.remove_prefix(word.size());
    return !word.empty();
  }

 private:
  void SkipSpace() {
    const std::size_t size = text_.find_first_not_of(" \t\r\n");
    text_.remove_prefix(size == std::string_view::npos ? text_.size() : size);
  }

  // Behind a backslash. Names and keys are ASCII: of others a question mark is kept.
  bool TakeEscape(std::string& plain) {
    if (text_.empty()) return false;
    const char c = text_.front();
    text_.remove_prefix(1);
    if (c == 'u') {
      if (text_.size() < 4) return false;
      unsigned code = 0;
      for (const char digit : text_.substr(0, 4)) {
        const int value = HexDigit(digit);
        if (value < 0) return false;
        code = code * 16 + static_cast<unsigned>(value);
      }
      text_.remove_prefix(4);
      plain += code < 0x80 ? static_cast<char>(code) : '?';
      return true;
    }
    constexpr std::string_view kEscapes = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const std::size_t which = kEscapes.find(c);
    if (which == std::string_view::npos) return false;
    plain += kMeanings[which];
    return true;
  }

  std::string_view text_;
};

}  // namespace

std::optional<std::map<std::string, std::string>> StringsOfJson(std::string_view text) {
  JsonText json(text);
  std::map<std::string, std::string> members;
  if (!json.Take('{')) return std::nullopt;
  if (!json.Take('}')) {
    do {
      auto name = json.TakeString();
      if (!name || !json.Take(':')) return std::nullopt;
      if (!json.is_at_string()) {
        if (!json.Skip()) return std::nullopt;
        continue;
      }
      auto value = json.TakeString();
      if (!value) return std::nullopt;
      members[*std::move(name)] = *std::move(value);
    } while (json.Take(','));
    if (!json.Take('}')) return std::nullopt;
  }
  if (!json.is_at_end()) return std::nullopt;
  return members;
}

}  // namespace ffrecord::object_store
