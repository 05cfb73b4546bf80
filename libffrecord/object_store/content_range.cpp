#include "libffrecord/object_store/content_range.h"

#include <charconv>
#include <string_view>

namespace ffrecord::object_store {
namespace {

std::string HeaderOf(const net::HttpResponse& response, const char* name) {
  const auto found = response.headers.find(name);
  return found == response.headers.end() ? std::string() : found->second;
}

// "bytes 5-9/20"; a total of "*" is unknown. "bytes */20" has no range.
struct ContentRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::optional<std::uint64_t> total;
};

bool TakeNumber(std::string_view& text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool TakeText(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

bool TakeTotal(std::string_view text, std::optional<std::uint64_t>& total) {
  if (text == "*") return true;
  total.emplace();
  return TakeNumber(text, *total) && text.empty();
}

std::optional<ContentRange> RangeIn(const net::HttpResponse& response) {
  const std::string header = HeaderOf(response, "content-range");
  std::string_view text = header;
  ContentRange range;
  if (TakeText(text, "bytes ") && TakeNumber(text, range.first) && TakeText(text, "-") &&
      TakeNumber(text, range.last) && TakeText(text, "/") && TakeTotal(text, range.total))
    return range;
  return std::nullopt;
}

// A weak tag and the strong one differ in their spelling alone.
std::string_view Bare(std::string_view etag) {
  TakeText(etag, "W/");
  return etag;
}

Error Replaced(const std::string& described, const std::string& what) {
  return {ErrorCode::kConflict,
          described + ": the object was replaced since it was opened: " + what + "; open it again"};
}

// How the version of a response differs from the one that was found first; nothing if it does not,
// or nothing tells.
std::optional<Error> Difference(const ObjectVersion& first, const ObjectVersion& now,
                                const std::string& described) {
  if (!first.etag.empty() && !now.etag.empty()) {
    if (Bare(now.etag) == Bare(first.etag)) return std::nullopt;
    return Replaced(described, "its ETag is " + now.etag + ", not " + first.etag);
  }
  if (first.last_modified.empty() || now.last_modified.empty() ||
      now.last_modified == first.last_modified)
    return std::nullopt;
  return Replaced(described, "it was modified on " + now.last_modified);
}

// Whether a response names its version in none of the ways in which the first one did.
bool IsSilent(const ObjectVersion& first, const ObjectVersion& now) noexcept {
  const bool was_named = !first.etag.empty() || !first.last_modified.empty();
  const bool has_etag = !first.etag.empty() && !now.etag.empty();
  const bool has_date = !first.last_modified.empty() && !now.last_modified.empty();
  return was_named && !has_etag && !has_date;
}

}  // namespace

ObjectVersion VersionIn(const net::HttpResponse& response) {
  const auto range = RangeIn(response);
  return {range && range->total ? *range->total : 0, HeaderOf(response, "etag"),
          HeaderOf(response, "last-modified")};
}

bool IsEmptyObject(const net::HttpResponse& response) {
  if (response.status == 416) {
    std::string header = HeaderOf(response, "content-range");
    std::string_view text = header;
    std::optional<std::uint64_t> total;
    return TakeText(text, "bytes */") && TakeTotal(text, total) && total == 0;
  }
  return response.status == 200 && HeaderOf(response, "content-length") == "0";
}

std::optional<Error> ComplaintAbout(const net::HttpResponse& response, std::uint64_t offset_bytes,
                                    std::uint64_t size_bytes, const ObjectVersion* version,
                                    const std::string& described) {
  const std::string encoding = HeaderOf(response, "content-encoding");
  if (!encoding.empty() && encoding != "identity")
    return Error{ErrorCode::kInvalidArgument, described + ": the server encodes the content (" +
                                                  encoding + "); store the file as it is"};
  const auto range = RangeIn(response);
  if (response.status != 206 || !range)
    return Error{ErrorCode::kInvalidArgument,
                 described + ": the server does not support range requests: it answered " +
                     std::to_string(response.status) + " to one; download the file"};
  if (version == nullptr) {
    if (range->first == offset_bytes && range->total) return std::nullopt;
    return Error{ErrorCode::kInvalidArgument,
                 described + ": the server does not say how large the object is"};
  }
  const ObjectVersion now = VersionIn(response);
  if (range->total && *range->total != version->size_bytes)
    return Replaced(described, "it has " + std::to_string(*range->total) + " bytes, not " +
                                   std::to_string(version->size_bytes));
  if (auto difference = Difference(*version, now, described)) return difference;
  if (range->first != offset_bytes || range->last - range->first != size_bytes - 1)
    return Error{ErrorCode::kInvalidArgument,
                 described + ": the server answered with bytes " + std::to_string(range->first) +
                     " to " + std::to_string(range->last) + " instead of " +
                     std::to_string(size_bytes) + " at " + std::to_string(offset_bytes)};
  if (IsSilent(*version, now))
    return Error{ErrorCode::kConflict,
                 described + ": the server sent " +
                     (version->etag.empty() ? "Last-Modified" : "an ETag") +
                     " when the object was opened and sends none now, so nothing tells whether it "
                     "was replaced; download the file"};
  return std::nullopt;
}

Error IsAnother(const std::string& described, const net::HttpResponse& response) {
  return Replaced(described, "the store answered " + std::to_string(response.status));
}

}  // namespace ffrecord::object_store
