#include "client/checkpoint/target.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "client/checkpoint/packed_files.h"
#include "client/checkpoint/step_manifests.h"
#include "libffrecord/net/rpc/location.h"

namespace ffrecord::client {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kPartPrefix = "part-";
constexpr std::size_t kShownMax = 300;  // An error shows so many characters of a name.

std::string Padded(std::uint64_t number, std::size_t width) {
  std::string digits = std::to_string(number);
  if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
  return digits;
}

// The scheme of an address, such as gs://; empty for a path.
std::string_view SchemeOf(std::string_view text) {
  constexpr std::string_view kEnd = "://";
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-";
  constexpr std::size_t kLetters = 52;
  const std::size_t end = text.find(kEnd);
  if (end == std::string_view::npos || end == 0) return {};
  if (kAllowed.find(text[0]) >= kLetters) return {};
  if (text.find_first_not_of(kAllowed) != end) return {};
  return text.substr(0, end + kEnd.size());
}

}  // namespace

CheckpointAttempt::CheckpointAttempt() noexcept = default;

Result<void> CheckpointAttempt::Commit(std::span<const WrittenFile> files) {
  may_be_visible_ = true;
  auto made = MakeVisible(files);
  if (!made && made.error().code == ErrorCode::kConflict) may_be_visible_ = false;
  return made;
}

void CheckpointAttempt::Abandon() noexcept {
  if (!may_be_visible_ && home_.is_here()) Discard();
}

Result<bool> CommittedStep::Holds(std::span<const std::string> segments) const {
  const auto opened = OpenSegments(*this, segments);
  if (!opened && !IsDamage(opened.error())) return opened.error();
  return static_cast<bool>(opened);
}

std::vector<std::unique_ptr<CommittedStep>> CommittedStep::Fallbacks() const {
  std::vector<std::unique_ptr<CommittedStep>> others;
  if (auto twin = Twin()) others.push_back(std::move(twin));
  return others;
}

Result<std::unique_ptr<CheckpointAttempt>> CheckpointTarget::BeginInPlace(
    std::uint64_t step, const AttemptId& attempt, const GivesWay& gives_way) {
  const auto looked_at = FFR_TRY(AttemptAt(*this, step));
  if (!FFR_TRY(gives_way())) return Begin(step, attempt);
  // One whose root manifest is damaged has no name.
  if (!looked_at && FFR_TRY(AttemptAt(*this, step))) return Begin(step, attempt);
  const auto removed = Remove(step, looked_at);
  if (!removed && removed.error().code != ErrorCode::kNotFound) return removed.error();
  return Begin(step, attempt);
}

Error AnotherSave(const CheckpointTarget& target, std::uint64_t step) {
  return Error{ErrorCode::kNotFound, "checkpoint: step " + std::to_string(step) + " of " +
                                         target.name() + " is another save by now"};
}

Error WithoutALook(const Error& tried, const Error& look) {
  if (tried.code != ErrorCode::kConflict) return tried;
  return Error{ErrorCode::kUnavailable,
               tried.message + "; whose it is could not be read: " + look.message};
}

std::string StepName(std::uint64_t step) { return std::string(kStepPrefix) + Padded(step, 9); }

std::string PartManifestName(std::uint32_t rank) {
  return std::string(kPartPrefix) + Padded(rank, 5) + ".manifest";
}

std::string SegmentName(std::uint32_t rank, std::uint32_t segment) {
  return std::string(kPartPrefix) + Padded(rank, 5) + "/seg-" + Padded(segment, 4);
}

std::optional<std::uint64_t> StepOf(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  // One step has one name: no other padding, nothing behind it.
  if (error != std::errc() || StepName(step) != name) return std::nullopt;
  return step;
}

std::optional<std::uint32_t> RankOfFile(std::string_view name) {
  if (!name.starts_with(kPartPrefix)) return std::nullopt;
  name.remove_prefix(kPartPrefix.size());
  std::uint32_t rank = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  if (error != std::errc()) return std::nullopt;
  return rank;
}

std::vector<std::string_view> PlacesIn(std::string_view places, char mark) {
  std::vector<std::string_view> all;
  for (;;) {
    const std::size_t end = places.find(mark);
    all.push_back(places.substr(0, end));
    if (end == std::string_view::npos) return all;
    places.remove_prefix(end + 1);
  }
}

bool IsOfSeveral(std::string_view address) {
  return address.starts_with(kBuddiesScheme) || address.starts_with(kStageScheme);
}

std::string KeyOfTarget(std::string_view address) {
  return IsOfSeveral(address) ? std::string(address) : IdentityOfTarget(address);
}

std::string CanonicalAddress(std::string_view target) {
  if (target.starts_with("ffrecord://")) {
    const auto locations = net::Location::ParseAll(target);
    if (!locations) return std::string(target);
    std::vector<std::string> names;
    for (const net::Location& location : locations.value()) names.push_back(location.ToString());
    std::ranges::sort(names);  // Which daemon of a cluster is asked first does not matter.
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ",") + name;
    return all;
  }
  if (target.starts_with(kObjectScheme)) {
    while (target.ends_with('/')) target.remove_suffix(1);
    return std::string(target);
  }
  // Links are followed as the system does; what is not there yet has no links.
  std::error_code error;
  auto path = std::filesystem::weakly_canonical(std::filesystem::absolute(target, error), error);
  if (error) return std::string(target);
  if (path.filename().empty() && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

std::string IdentityOfTarget(std::string_view target) {
  const std::string canonical = CanonicalAddress(target);
  if (!canonical.starts_with('/')) return canonical;
  std::filesystem::path there = canonical;
  std::string below;
  struct stat status {};
  while (::stat(there.c_str(), &status) != 0 && there.has_relative_path()) {
    below = "/" + there.filename().string() + below;
    there = there.parent_path();
  }
  return "folder " + std::to_string(status.st_dev) + " " + std::to_string(status.st_ino) + below;
}

namespace {

// Those of every place of an address.
std::vector<std::string> IdentitiesIn(std::string_view target) {
  const bool is_staged = target.starts_with(kStageScheme);
  if (!IsOfSeveral(target)) return {IdentityOfTarget(target)};
  std::vector<std::string> all;
  target.remove_prefix(is_staged ? kStageScheme.size() : kBuddiesScheme.size());
  for (const std::string_view place : PlacesIn(target, is_staged ? kStageMark : '|'))
    std::ranges::move(IdentitiesIn(place), std::back_inserter(all));
  return all;
}

}  // namespace

bool SharePlace(std::string_view a, std::string_view b) {
  const auto of_a = IdentitiesIn(a);
  const auto of_b = IdentitiesIn(b);
  return std::ranges::find_first_of(of_a, of_b) != of_a.end();
}

Result<std::unique_ptr<CheckpointTarget>> OpenTarget(std::string_view target,
                                                     const TargetOptions& options) {
  if (target.starts_with("ffrecord://")) return OpenDaemonTarget(target, options.session);
  if (target.starts_with(kBuddiesScheme)) return OpenBuddyTarget(target, options);
  if (target.starts_with(kStageScheme)) return OpenStagedTarget(target, options);
  if (target.starts_with(kObjectScheme)) return OpenObjectTarget(target, options.session);
  if (target.empty() || target.find('\0') != std::string_view::npos)
    return Error{ErrorCode::kInvalidArgument, "checkpoint: the target is empty or has a NUL byte"};
  // As a path it would be a folder here, and a checkpoint that belongs in a store would be on this
  // machine alone.
  if (const std::string_view scheme = SchemeOf(target); !scheme.empty())
    return Error{ErrorCode::kInvalidArgument,
                 "checkpoint: " + std::string(target.substr(0, kShownMax)) +
                     ": there are no targets at " + std::string(scheme.substr(0, kShownMax)) +
                     "; a target is a folder, ffrecord://host[:port]/name or s3://bucket/name"};
  return OpenFolderTarget(target, options.direct, options.session.timeout);
}

}  // namespace ffrecord::client
