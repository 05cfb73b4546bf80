#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/utf8.h"

namespace ffrecord {

// Reads a small text from left to right: headers that are JSON, or nearly. Text that does not fit
// leaves it `failed()`, and from then on nothing fits: callers check once, at the end of a step.
class TextCursor {
 public:
  explicit TextCursor(std::string_view text) noexcept : text_(text) {}

  bool failed() const noexcept { return failed_; }
  void Fail() noexcept { failed_ = true; }

  // Whether this comes next, after blanks; steps over it if so.
  bool Skip(std::string_view wanted) noexcept {
    Blanks();
    if (failed_ || text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  // The same, where nothing else may come.
  void Expect(std::string_view wanted) noexcept {
    if (!Skip(wanted)) failed_ = true;
  }
  bool AtEnd() noexcept {
    Blanks();
    return !failed_ && at_ == text_.size();
  }

  // Digits, below 2^63.
  std::uint64_t Number() noexcept {
    Blanks();
    std::uint64_t number = 0;
    const std::size_t begin = at_;
    while (!failed_ && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      if (number > (std::uint64_t{1} << 59)) failed_ = true;
      number = number * 10 + static_cast<std::uint64_t>(text_[at_++] - '0');
    }
    if (at_ == begin || number >> 63 != 0) failed_ = true;
    return failed_ ? 0 : number;
  }

  // A string in these quotes, JSON's escapes undone. Well-formed UTF-8, for others will show it.
  std::string String(char quote) {
    Expect(std::string_view(&quote, 1));
    std::string found;
    while (!failed_) {
      const char next = Take();
      if (failed_ || next == quote) break;
      if (static_cast<unsigned char>(next) < 0x20) failed_ = true;
      if (next == '\\')
        Escape(found);
      else
        found += next;
    }
    if (!IsWellFormedUtf8(found)) failed_ = true;
    return failed_ ? std::string() : found;
  }

 private:
  void Blanks() noexcept {
    constexpr std::string_view kBlanks = " \t\r\n";
    while (at_ < text_.size() && kBlanks.find(text_[at_]) != std::string_view::npos) ++at_;
  }
  char Take() noexcept {
    if (failed_ || at_ == text_.size()) {
      failed_ = true;
      return 0;
    }
    return text_[at_++];
  }
  std::uint32_t Hex4() noexcept {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const int digit = HexDigit(Take());
      if (digit < 0) {
        failed_ = true;
        return 0;
      }
      code = code << 4 | static_cast<std::uint32_t>(digit);
    }
    return code;
  }
  void Escape(std::string& out) {
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const char kind = Take();
    if (const std::size_t at = kFrom.find(kind); !failed_ && at != std::string_view::npos) {
      out += kTo[at];
      return;
    }
    if (kind != 'u') {
      failed_ = true;
      return;
    }
    std::uint32_t code = Hex4();
    if (code >= 0xD800 && code < 0xE000) {  // Half of a pair.
      if (code >= 0xDC00 || Take() != '\\' || Take() != 'u') failed_ = true;
      const std::uint32_t low = Hex4();
      if (low < 0xDC00 || low >= 0xE000) failed_ = true;
      code = 0x1'0000 + ((code & 0x3FF) << 10 | (low & 0x3FF));
    }
    if (!failed_) AppendUtf8(code, out);
  }
  static void AppendUtf8(std::uint32_t code, std::string& out) {
    const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xC0 | code >> 6);
      tail(0);
    } else if (code < 0x1'0000) {
      out += static_cast<char>(0xE0 | code >> 12);
      tail(6);
      tail(0);
    } else {
      out += static_cast<char>(0xF0 | code >> 18);
      tail(12);
      tail(6);
      tail(0);
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace ffrecord
