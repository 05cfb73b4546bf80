#pragma once

#include <cstddef>
#include <string_view>

namespace ffrecord {

// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
inline bool IsWellFormedUtf8(std::string_view text) noexcept {
  // The continuation bytes that follow a lead, and the range of the first of them; 0 for a byte
  // that cannot lead. Table 3-7 of the Unicode standard.
  struct Lead {
    unsigned continuation_count;
    unsigned char second_min = 0x80;
    unsigned char second_max = 0xBF;
  };
  const auto lead_of = [](unsigned char lead) noexcept -> Lead {
    if (lead >= 0xC2 && lead <= 0xDF) return {1};
    if (lead == 0xE0) return {2, 0xA0};
    if (lead == 0xED) return {2, 0x80, 0x9F};
    if (lead >= 0xE1 && lead <= 0xEF) return {2};
    if (lead == 0xF0) return {3, 0x90};
    if (lead >= 0xF1 && lead <= 0xF3) return {3};
    if (lead == 0xF4) return {3, 0x80, 0x8F};
    return {0};
  };
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (at(i) < 0x80) continue;
    const Lead lead = lead_of(at(i));
    if (lead.continuation_count == 0 || lead.continuation_count >= text.size() - i) return false;
    if (at(i + 1) < lead.second_min || at(i + 1) > lead.second_max) return false;
    for (unsigned c = 2; c <= lead.continuation_count; ++c)
      if ((at(i + c) & 0xC0) != 0x80) return false;
    i += lead.continuation_count;
  }
  return true;
}

}  // namespace ffrecord
