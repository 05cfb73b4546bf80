#include "client/checkpoint/buddy_step.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "client/checkpoint/files_with_copies.h"
#include "libffrecord/format/checkpoint_manifest.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {
namespace {

class BuddyStep final : public CommittedStep {
 public:
  using Places = std::shared_ptr<const std::vector<StepAtPlace>>;
  using Root = std::shared_ptr<const RootManifest>;
  // `holders`: of each part, the places that have it; the first is asked first.
  BuddyStep(Places places, Root root, std::vector<std::vector<std::size_t>> holders,
            std::vector<std::string> lost)
      : places_(std::move(places)),
        root_(std::move(root)),
        holders_(std::move(holders)),
        lost_(std::move(lost)) {}

  std::string Describe(std::string_view name) const override {
    return (*places_)[HoldersOf(name).front()].files->Describe(name);
  }
  std::string IdentityOf(std::string_view name) const override {
    return (*places_)[HoldersOf(name).front()].files->IdentityOf(name);
  }

  // The first copy that is as the root manifest lists it. Bytes of another one only if no place is
  // out of reach that may have it.
  Result<std::vector<std::byte>> ReadFile(std::string_view name,
                                          std::uint64_t size_bytes_max) const override {
    Result<std::vector<std::byte>> damaged = Error{ErrorCode::kNotFound, ""};
    std::optional<Error> away;
    for (const std::size_t place : HoldersOf(name)) {
      auto read = (*places_)[place].files->ReadFile(name, size_bytes_max);
      if (read && IsAsListed(name, read.value())) return read;
      if (!read && IsOutOfReach(read.error().code)) away = read.error();
      if (!damaged) damaged = std::move(read);
    }
    if (away) return *std::move(away);
    return damaged;
  }

  Result<std::unique_ptr<RangeReader>> OpenFiles(
      std::span<const std::string> names) const override {
    std::vector<std::vector<FileCopy>> copies(names.size());
    std::vector<std::unique_ptr<RangeReader>> readers;
    std::optional<Error> trouble;
    for (std::size_t turn = 0; turn < kCopiesMax; ++turn) {
      for (std::size_t place = 0; place < places_->size(); ++place) {
        std::vector<std::string> here;
        std::vector<std::size_t> files;
        for (std::size_t i = 0; i < names.size(); ++i) {
          const auto& holders = HoldersOf(names[i]);
          if (turn >= holders.size() || holders[turn] != place) continue;
          here.push_back(names[i]);
          files.push_back(i);
        }
        if (here.empty()) continue;
        auto opened = (*places_)[place].files->OpenFiles(here);
        if (!opened) {
          trouble = std::move(opened).error();
          continue;
        }
        for (std::uint32_t i = 0; i < files.size(); ++i)
          copies[files[i]].push_back({readers.size(), i});
        readers.push_back(std::move(opened).value());
      }
    }
    for (const auto& of_file : copies)
      if (of_file.empty())
        return trouble.value_or(
            Error{ErrorCode::kNotFound, "checkpoint: a rank shard has no copy"});
    return OpenFilesWithCopies(std::move(readers), std::move(copies));
  }

  // Each at the first of its places that can be asked.
  Result<bool> Holds(std::span<const std::string> segments) const override {
    std::map<std::vector<std::size_t>, std::vector<std::string>> by_holders;
    for (const std::string& segment : segments) by_holders[HoldersOf(segment)].push_back(segment);
    for (const auto& [holders, of_them] : by_holders) {
      Result<bool> there = false;
      for (const std::size_t place : holders) {
        there = (*places_)[place].files->Holds(of_them);
        if (there) break;
      }
      if (!FFR_TRY(there)) return false;
    }
    return true;
  }

  std::unique_ptr<CommittedStep> Twin() const override {
    auto holders = holders_;
    for (auto& of_part : holders) std::reverse(of_part.begin(), of_part.end());
    if (holders == holders_) return nullptr;
    return std::make_unique<BuddyStep>(places_, root_, std::move(holders), lost_);
  }

  std::vector<std::unique_ptr<CommittedStep>> Copies() const override {
    std::vector<std::unique_ptr<CommittedStep>> copies;
    for (std::size_t turn = 0; turn < kCopiesMax; ++turn) {
      auto holders = holders_;
      for (auto& of_part : holders) of_part = {of_part[std::min(turn, of_part.size() - 1)]};
      copies.push_back(std::make_unique<BuddyStep>(places_, root_, std::move(holders), lost_));
    }
    return copies;
  }
  std::vector<std::string> LostCopies() const override { return lost_; }

  static constexpr std::size_t kCopiesMax = 2;

 private:
  // Where a file is; the root manifest is where the first part is, and elsewhere.
  const std::vector<std::size_t>& HoldersOf(std::string_view name) const {
    const auto rank = RankOfFile(name);
    return holders_[rank && *rank < holders_.size() ? *rank : 0];
  }

  bool IsAsListed(std::string_view name, std::span<const std::byte> bytes) const {
    const auto rank = RankOfFile(name);
    if (!rank || *rank >= root_->parts.size() || name != PartManifestName(*rank)) return true;
    return Xxh3Digest(bytes) == root_->parts[*rank].manifest_digest;
  }

  Places places_;
  Root root_;
  std::vector<std::vector<std::size_t>> holders_;
  std::vector<std::string> lost_;
};

// The places that hold each part of one save.
struct Assembly {
  std::shared_ptr<const RootManifest> root;
  std::vector<std::vector<std::size_t>> holders;
  std::vector<std::string> without;  // As LostCopies().
  std::string missing;               // Why the save is not whole; empty if it is.
  std::optional<Error> away;         // Out of reach: its files may be there.
};

// `root` is the manifest in `root_bytes`.
Assembly Assemble(const std::vector<StepAtPlace>& places, const std::vector<std::byte>& root_bytes,
                  const RootManifest& root) {
  const std::size_t part_count = root.parts.size();
  Assembly found{std::make_shared<RootManifest>(root),
                 std::vector<std::vector<std::size_t>>(part_count),
                 {},
                 {},
                 {}};
  for (const StepAtPlace& place : places)
    if (place.root != root_bytes)
      found.without.push_back(place.files->Describe(kRootManifestName) +
                              (DecodeRootManifest(place.root) ? ": another save of the step"
                                                              : ": the root manifest is damaged"));
  for (std::uint32_t rank = 0; rank < part_count && found.missing.empty(); ++rank) {
    auto& holders = found.holders[rank];
    const std::string part = PartManifestName(rank);
    std::string failures;
    for (std::size_t i = 0; i < places.size() && holders.size() < BuddyStep::kCopiesMax; ++i) {
      if (places[i].root != root_bytes) continue;
      const auto opened = places[i].files->OpenFiles({&part, 1});
      if (opened) holders.push_back(i);
      if (!opened) failures += "; " + opened.error().message;
      if (!opened && IsOutOfReach(opened.error().code)) found.away = opened.error();
    }
    if (holders.empty()) found.missing = "no place has " + part;
    if (holders.size() == 1)
      found.without.push_back("there is one copy of " + part + " only" + failures);
    // Ranks that begin at different copies spread what is read over the places.
    if (rank % 2 == 1) std::reverse(holders.begin(), holders.end());
  }
  return found;
}

Error TwoSaves(const std::string& name, const CommittedStep& one, const CommittedStep& other) {
  return Error{ErrorCode::kConflict,
               "checkpoint: " + name + " is two saves: " + one.Describe(kRootManifestName) +
                   " and " + other.Describe(kRootManifestName) +
                   "; a place was away while the step was replaced. Remove the old one there: "
                   "ffrecord.checkpoint.remove(PLACE, STEP)"};
}

}  // namespace

Result<std::unique_ptr<CommittedStep>> OpenBuddyStep(std::vector<StepAtPlace> places,
                                                     const std::string& name,
                                                     std::vector<std::string> lost,
                                                     const IsRootOnLine& is_on_line) {
  const auto shared = std::make_shared<const std::vector<StepAtPlace>>(std::move(places));
  std::string trouble = "no place has it";
  std::optional<Error> away;
  std::optional<Assembly> whole;
  std::size_t whole_at = 0;
  for (std::size_t first = 0; first < shared->size(); ++first) {
    const auto& [files, bytes] = (*shared)[first];
    const auto root = DecodeRootManifest(bytes);
    if (!root) {
      trouble = files->Describe(kRootManifestName) + ": " + root.error().message;
      continue;
    }
    if (whole && (*shared)[whole_at].root == bytes) continue;
    Assembly found = Assemble(*shared, bytes, root.value());
    if (found.away) away = std::move(found.away);
    if (!found.missing.empty()) {
      trouble = std::move(found.missing);
      continue;
    }
    if (whole && is_on_line) {
      const auto before = FFR_TRY(DecodeRootManifest((*shared)[whole_at].root));
      const bool was = FFR_TRY(is_on_line(before));
      const bool is = FFR_TRY(is_on_line(root.value()));
      if (was && !is) continue;
      if (is && !was) whole.reset();
    }
    // Nothing else says which of two is the newer one.
    if (whole) return TwoSaves(name, *(*shared)[whole_at].files, *files);
    whole = std::move(found);
    whole_at = first;
  }
  if (whole) {
    std::ranges::move(whole->without, std::back_inserter(lost));
    return std::unique_ptr<CommittedStep>(
        new BuddyStep(shared, whole->root, std::move(whole->holders), std::move(lost)));
  }
  if (away) return *std::move(away);
  return Error{ErrorCode::kNotFound, "checkpoint: " + name + " is not whole: " + trouble};
}

}  // namespace ffrecord::client
