#include "server/config/prefix_lists.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace ffrecord::server {
namespace {

constexpr std::string_view kUnits = "KMGT";

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool IsPrefix(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._-/").find(c) != std::string_view::npos;
  });
}

// 0 if it is no size.
std::uint64_t SizeOf(std::string_view text) {
  int shift = 0;
  if (!text.empty() && kUnits.find(text.back()) != std::string_view::npos) {
    shift = 10 * (static_cast<int>(kUnits.find(text.back())) + 1);
    text.remove_suffix(1);
  }
  std::uint64_t size = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), size);
  const bool is_number = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  return is_number && size <= (UINT64_MAX >> 1 >> shift) ? size << shift : 0;
}

// None if it is none, or larger.
std::optional<std::uint32_t> NumberUpTo(std::uint32_t max, std::string_view text) {
  std::uint32_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  return is_number && number <= max ? std::optional(number) : std::nullopt;
}

// 0 if it is no weight.
std::uint32_t WeightOf(std::string_view text) {
  return NumberUpTo(kTenantWeightMax, text).value_or(0);
}

// One more than the number; 0 if it is none.
template <std::uint8_t kMax>
std::uint32_t MarkOf(std::string_view text) {
  const auto number = NumberUpTo(kMax, text);
  return number ? *number + 1 : 0;
}

// `value_of` reads what stands behind a prefix; 0: it cannot.
template <class Value>
Result<std::map<std::string, Value>> ParsePrefixList(std::string_view text,
                                                     Value (*value_of)(std::string_view),
                                                     const std::string& wanted) {
  std::map<std::string, Value> values;
  while (!Trimmed(text).empty()) {
    const std::size_t end = text.find(',');
    const std::string_view one = Trimmed(text.substr(0, end));
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
    const std::size_t mark = one.find('=');
    const std::string_view prefix = Trimmed(one.substr(0, mark));
    const Value value =
        mark == std::string_view::npos ? Value{} : value_of(Trimmed(one.substr(mark + 1)));
    if (value == 0 || !IsPrefix(prefix) || !values.emplace(prefix, value).second)
      return Error{ErrorCode::kInvalidArgument,
                   wanted + ", each prefix once, not '" + std::string(one) + "'"};
  }
  return values;
}

template <std::uint8_t kMax>
Result<void> TakeMarks(std::string_view text, const char* setting,
                       std::optional<std::uint8_t> TrafficMark::*member, TrafficMarks& into) {
  constexpr std::array<std::string_view, kTrafficClassCount> kClasses{"urgent", "prefetch",
                                                                      "checkpoint", "repair"};
  const std::string wanted = std::string(setting) +
                             ": must be a list like \"urgent=4, prefetch=1\" of the classes "
                             "urgent, prefetch, checkpoint and repair, with whole numbers from 0 "
                             "to " +
                             std::to_string(kMax);
  for (const auto& [name, mark] : FFR_TRY(ParsePrefixList(text, MarkOf<kMax>, wanted))) {
    const auto found = std::ranges::find(kClasses, name);
    if (found == kClasses.end())
      return Error{ErrorCode::kInvalidArgument, wanted + ", not '" + name + "'"};
    const auto traffic = static_cast<std::size_t>(found - kClasses.begin());
    into.classes[traffic].*member = static_cast<std::uint8_t>(mark - 1);
  }
  return {};
}

// s3://BUCKET or s3://BUCKET/PREFIX, or an absolute folder; no part of it empty, "." or "..".
bool IsOrigin(std::string_view text) {
  constexpr std::string_view kS3Scheme = "s3://";
  const bool is_bucket = text.starts_with(kS3Scheme);
  if (!is_bucket && !text.starts_with('/')) return false;
  if (is_bucket && text.find_first_of("?*[") != std::string_view::npos) return false;
  text.remove_prefix(is_bucket ? kS3Scheme.size() : 1);
  for (;;) {
    const std::string_view part = text.substr(0, text.find('/'));
    if (part.empty() || part == "." || part == "..") return false;
    if (part.size() == text.size()) return true;
    text.remove_prefix(part.size() + 1);
  }
}

}  // namespace

Result<TrafficMarks> ParseTrafficMarks(std::string_view dscp, std::string_view priority) {
  TrafficMarks marks;
  FFR_TRY(TakeMarks<TrafficMark::kDscpMax>(dscp, "dscp", &TrafficMark::dscp, marks));
  FFR_TRY(TakeMarks<TrafficMark::kPriorityMax>(priority, "socket_priority", &TrafficMark::priority,
                                               marks));
  return marks;
}

Result<std::vector<std::string>> ParseOrigins(std::string_view text) {
  std::vector<std::string> origins;
  while (!Trimmed(text).empty()) {
    const std::size_t end = text.find(',');
    const std::string_view given = Trimmed(text.substr(0, end));
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
    const std::string_view one = given.ends_with('/') ? given.substr(0, given.size() - 1) : given;
    if (!IsOrigin(one))
      return Error{ErrorCode::kInvalidArgument,
                   "origins: must be a list of buckets and absolute folders like "
                   "\"s3://bucket/data, /mnt/shared\", not '" +
                       std::string(given) + "'"};
    origins.emplace_back(one);
  }
  return origins;
}

Result<std::map<std::string, std::uint64_t>> ParseQuotas(std::string_view text) {
  return ParsePrefixList(text, SizeOf, "quotas: must be a list like \"train/=500G, runs/=2T\"");
}

std::size_t NestedQuotaCount(const std::map<std::string, std::uint64_t>& quotas) {
  std::ptrdiff_t most = 0;
  for (const auto& [name, size_bytes] : quotas)
    most = std::max(most, std::ranges::count_if(quotas, [&name = name](const auto& quota) {
                      return name.starts_with(quota.first);
                    }));
  return static_cast<std::size_t>(most);
}

Result<std::map<std::string, std::uint32_t>> ParseTenantWeights(std::string_view text) {
  return ParsePrefixList(text, WeightOf,
                         "tenant_weights: must be a list like \"train/=4, runs/=1\", with whole "
                         "numbers from 1 to " +
                             std::to_string(kTenantWeightMax));
}

}  // namespace ffrecord::server
