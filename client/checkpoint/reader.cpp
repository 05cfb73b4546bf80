#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <ffrecord/checkpoint_dtype.h>
#include <ffrecord/client/checkpoint.h>

#include "client/checkpoint/box_runs.h"
#include "client/checkpoint/run_line.h"
#include "client/checkpoint/segment_reader.h"
#include "client/checkpoint/step_digests.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "client/checkpoint/verified.h"
#include "libffrecord/base/linear_digest.h"

namespace ffrecord::client {
namespace {

// How often the newest step is looked for again because steps came and went meanwhile.
constexpr int kLooksMax = 10;

}  // namespace

struct CheckpointReader::Impl {
  // A stored box, and which of all segments holds it.
  struct Source {
    const StoredBox* box;
    std::uint32_t segment;
  };

  StepManifests manifests;
  Commit commit;
  std::vector<StoredTensor> tensors;
  std::unordered_map<std::string_view, std::vector<Source>> sources;
  std::shared_ptr<const CommittedStep> files;
  std::unique_ptr<SegmentReader> segments;
  std::vector<std::string> skipped;
  std::vector<std::string> unseen;
  std::string passed_over;  // Why this is not the copy that is read first; empty if it is.
  std::string address;      // Address of its target.
  SessionOptions options;
  std::optional<RunLine> line;  // Line of its target, if it was asked for the newest step.

  static Result<std::unique_ptr<Impl>> Open(const CheckpointTarget& target, std::uint64_t step) {
    const std::shared_ptr<const CommittedStep> files = FFR_TRY(target.Open(step));
    auto impl = Of(files, step);
    // A committed step that lacks a file is damaged. It is not absent, unless it was removed just
    // now.
    if (!impl && impl.error().code == ErrorCode::kNotFound && IsStillThere(target, step))
      impl = Error{ErrorCode::kCorruption, std::move(impl).error().message};
    if (impl) return impl;
    // Whatever is wrong here, also with the disk.
    for (auto& fallback : files->Fallbacks()) {
      auto other = Of(std::move(fallback), step);
      if (!other) continue;
      other.value()->passed_over = std::move(impl).error().message;
      return other;
    }
    return impl;
  }

  static bool IsStillThere(const CheckpointTarget& target, std::uint64_t step) {
    const auto again = target.Open(step);
    return again && ReadRootManifest(*again.value(), step);
  }

  // The newest step below `below` that can be opened.
  static Result<std::unique_ptr<Impl>> Newest(const CheckpointTarget& target, std::uint64_t below,
                                              bool may_look_again);

  // The error at the first of `steps`, which is there and may be whole. Says what step below it can
  // be opened: whether that one is meant, only the caller knows.
  static Error Unreadable(const CheckpointTarget& target, std::span<const std::uint64_t> steps,
                          Error error) {
    if (error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kDeadlineExceeded)
      return error;  // Nothing there can be read.
    for (const std::uint64_t before : steps.subspan(1))
      if (Open(target, before)) {
        error.message += "; step " + std::to_string(steps.front()) + " of " + target.name() +
                         " cannot be read. Step " + std::to_string(before) +
                         " is available: ask for it by its number";
        break;
      }
    return error;
  }

  static Result<std::unique_ptr<Impl>> Of(std::shared_ptr<const CommittedStep> files,
                                          std::uint64_t step) {
    auto impl = std::make_unique<Impl>();
    impl->files = std::move(files);
    impl->manifests = FFR_TRY(ReadStepManifests(*impl->files, step));
    impl->commit = CommitOf(impl->manifests.root);
    FFR_TRY(impl->Index());
    return impl;
  }

  // Reads each segment where it is whole: here, or at a copy. Fails as the read here failed.
  Result<void> ReadAnywhere(const std::vector<SegmentCopy>& copies, Error failure) const {
    std::map<std::uint32_t, std::vector<SegmentCopy>> left;
    for (const SegmentCopy& copy : copies) left[copy.segment].push_back(copy);
    const auto read_at = [&](const SegmentReader& reader) {
      std::erase_if(left,
                    [&](const auto& of) { return static_cast<bool>(reader.Read(of.second)); });
    };
    const auto others = files->Fallbacks();
    if (others.empty()) return failure;
    read_at(*segments);
    for (auto other = others.begin(); !left.empty() && other != others.end(); ++other)
      if (const auto reader = SegmentReader::Open(**other, Segments())) read_at(*reader.value());
    if (!left.empty()) return failure;
    return {};
  }

  std::vector<SegmentReader::Segment> Segments() const {
    std::vector<SegmentReader::Segment> all;
    for (auto& [name, segment] : FilesOf(manifests.parts))
      all.push_back({std::move(name), segment.stored()});
    return all;
  }

  Result<void> Index() {
    std::uint32_t first = 0;
    for (const PartManifest& part : manifests.parts) {
      for (const StoredBox& box : part.boxes) {
        auto& boxes = sources[box.key];
        if (boxes.empty()) tensors.push_back({box.key, box.dtype, box.shape});
        boxes.push_back({&box, first + box.segment});
      }
      first += static_cast<std::uint32_t>(part.segments.size());
    }
    std::sort(tensors.begin(), tensors.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return a.key < b.key; });
    segments = FFR_TRY(SegmentReader::Open(*files, Segments()));
    return {};
  }

  Result<std::vector<std::string>> VerifyCopy(const CommittedStep& copy) const {
    FFR_TRY(ReadStepManifests(copy, commit.step));
    const auto reader = FFR_TRY(SegmentReader::Open(copy, Segments()));
    return VerifyBytes(*reader, copy);
  }

  // The blocks; if all are whole, also that they are what was saved.
  Result<std::vector<std::string>> VerifyBytes(const SegmentReader& reader,
                                               const CommittedStep& copy) const {
    StepDigests digests(client::SegmentsOf(manifests.parts));
    auto damage = FFR_TRY(
        reader.Verify(kDamageMax, [&](std::uint32_t segment, std::uint64_t offset, auto block) {
          digests.AddBlock(segment, offset, block);
        }));
    if (!damage.empty()) return damage;
    for (const auto& [rank, message] : digests.Differences())
      if (damage.size() < kDamageMax)
        damage.push_back(copy.Describe(PartManifestName(rank)) + ": " + message);
    return damage;
  }

  Result<bool> IsWholeAt(const CommittedStep& copy, bool reads) const {
    const auto segments_of_step = FilesOf(manifests.parts);
    if (reads) return AreWhole(copy, segments_of_step);
    std::vector<std::string> names;
    for (const SegmentInFile& segment : segments_of_step) names.push_back(segment.name);
    return copy.Holds(names);
  }

  Result<void> AddCopies(const Request& request, std::vector<SegmentCopy>& copies) const {
    const auto found = sources.find(request.key);
    if (found == sources.end())
      return Error{ErrorCode::kNotFound, files->Describe(kRootManifestName) +
                                             ": the checkpoint has no tensor " + request.key};
    const StoredBox& any = *found->second.front().box;
    const auto size = SizeOfBox(any.dtype, any.shape, request.offset, request.extent);
    if (!size)
      return Error{ErrorCode::kInvalidArgument,
                   "checkpoint: tensor " + request.key + ": " + size.error().message};
    if (size.value() != request.destination.size())
      return Error{ErrorCode::kInvalidArgument,
                   "checkpoint: tensor " + request.key + ": the slice has " +
                       std::to_string(size.value()) + " bytes, the destination " +
                       std::to_string(request.destination.size())};
    const std::uint64_t element_size = CheckpointDtypeOf(any.dtype)->size_bytes;
    for (const Source& source : found->second) {
      const StoredBox& box = *source.box;
      ForEachRun(
          {box.offset, box.extent}, {request.offset, request.extent}, element_size,
          [&](const ByteRun& run) {
            copies.push_back({source.segment, box.offset_bytes + run.from_bytes, run.size_bytes,
                              request.destination.data() + run.to_bytes, request.key});
          });
    }
    return {};
  }
};

CheckpointReader::CheckpointReader(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

Result<CheckpointReader> CheckpointReader::Open(std::string_view target, std::uint64_t step,
                                                const SessionOptions& options) {
  if (step == kLatest) return OpenBelow(target, kLatest, options);
  const auto opened = FFR_TRY(OpenTarget(target, {true, options}));
  auto reader = FFR_TRY(OpenStep(*opened, step));
  reader.impl_->address = target;
  reader.impl_->options = options;
  return reader;
}

Result<CheckpointReader> OpenStep(const CheckpointTarget& target, std::uint64_t step) {
  return CheckpointReader(FFR_TRY(CheckpointReader::Impl::Open(target, step)));
}

Result<CheckpointReader> CheckpointReader::OpenBelow(std::string_view target, std::uint64_t below,
                                                     const SessionOptions& options) {
  const auto opened = FFR_TRY(OpenTarget(target, {true, options}));
  for (int left = kLooksMax;; --left) {
    auto impl = FFR_TRY(Impl::Newest(*opened, below, left > 0));
    if (impl == nullptr) continue;
    impl->address = target;
    impl->options = options;
    return CheckpointReader(std::move(impl));
  }
}

// Null if steps have come or gone since they were listed, and `may_look_again`: one that cannot be
// opened may have been removed, and a newer one be there.
Result<std::unique_ptr<CheckpointReader::Impl>> CheckpointReader::Impl::Newest(
    const CheckpointTarget& target, std::uint64_t below, bool may_look_again) {
  const auto listed = FFR_TRY(target.Steps());
  auto steps = listed;
  RunLine line = FFR_TRY(LineOf(target));
  std::size_t given_up = 0;
  std::erase_if(steps, [&](std::uint64_t step) { return step >= below; });
  std::reverse(steps.begin(), steps.end());
  std::vector<std::string> skipped;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::uint64_t candidate = steps[i];
    const auto is_on_line = IsOnLine(target, line, candidate);
    given_up += is_on_line && !is_on_line.value() ? 1 : 0;
    if (is_on_line && !is_on_line.value()) continue;
    auto impl = is_on_line ? Open(target, candidate) : is_on_line.error();
    if (impl) {
      if (below == kLatest && skipped.empty()) impl.value()->line = std::move(line);
      impl.value()->skipped = std::move(skipped);
      impl.value()->unseen = target.Unseen();
      return impl;
    }
    if (!IsDamage(impl.error()))
      return Unreadable(target, std::span(steps).subspan(i), std::move(impl).error());
    if (may_look_again && FFR_TRY(target.Steps()) != listed) return std::unique_ptr<Impl>();
    skipped.push_back(impl.error().message);
  }
  if (steps.empty())
    return Error{ErrorCode::kNotFound, "checkpoint: " + target.name() + " holds no committed step"};
  if (skipped.empty())
    return Error{ErrorCode::kCorruption,
                 "checkpoint: " + target.name() + " holds " + std::to_string(given_up) +
                     " committed steps, and all of them were given up when training went back to "
                     "a step that is gone; to go on from one of them, load it by its number"};
  return Error{ErrorCode::kCorruption,
               "checkpoint: " + target.name() + " holds " + std::to_string(steps.size()) +
                   " committed steps, none of them complete; the newest: " + skipped.front()};
}

Result<void> CheckpointReader::GoOn(bool is_certain) const {
  const RootManifest& root = impl_->manifests.root;
  if (impl_->line) {
    NoteLoaded(impl_->address, *impl_->line, root, true, is_certain);
    return {};
  }
  bool is_newest = false;
  const auto look = [&]() -> Result<RunLine> {
    const auto target = FFR_TRY(OpenTarget(impl_->address, {true, impl_->options}));
    RunLine line = FFR_TRY(LineOf(*target));
    is_newest =
        line.Has(root.generation, root.step) && !FFR_TRY(HasFrom(*target, line, root.step + 1));
    return line;
  };
  const auto line = look();
  NoteLoaded(impl_->address, line, root, is_newest, is_certain);
  if (!line) return line.error();
  return {};
}

const Commit& CheckpointReader::commit() const noexcept { return impl_->commit; }
std::uint32_t CheckpointReader::world_size() const noexcept {
  return static_cast<std::uint32_t>(impl_->manifests.parts.size());
}
std::span<const std::byte> CheckpointReader::structure() const noexcept {
  return impl_->manifests.root.tree;
}
const std::vector<StoredTensor>& CheckpointReader::tensors() const noexcept {
  return impl_->tensors;
}
const std::vector<std::string>& CheckpointReader::skipped() const noexcept {
  return impl_->skipped;
}

const std::vector<std::string>& CheckpointReader::unseen() const noexcept { return impl_->unseen; }

Result<void> CheckpointReader::Read(std::span<const Request> requests) const {
  std::vector<SegmentCopy> copies;
  for (const Request& request : requests) FFR_TRY(impl_->AddCopies(request, copies));
  const auto read = impl_->segments->Read(copies);
  if (read) return read;
  return impl_->ReadAnywhere(copies, read.error());
}

std::vector<SavedSlice> CheckpointReader::slices() const {
  std::vector<SavedSlice> slices;
  for (const PartManifest& part : impl_->manifests.parts)
    for (const StoredBox& box : part.boxes) slices.push_back({box.key, box.offset, box.extent});
  std::sort(slices.begin(), slices.end(), [](const SavedSlice& a, const SavedSlice& b) {
    return std::tie(a.key, a.offset) < std::tie(b.key, b.offset);
  });
  return slices;
}

std::vector<std::optional<std::uint64_t>> CheckpointReader::digests() const {
  const auto by_key = DigestsOf(impl_->manifests.parts);
  std::vector<std::optional<std::uint64_t>> digests;
  digests.reserve(impl_->tensors.size());
  for (const StoredTensor& tensor : impl_->tensors) digests.push_back(by_key.at(tensor.key));
  return digests;
}

std::uint64_t TensorDigest(std::span<const std::byte> bytes, std::uint64_t offset_bytes) {
  return LinearDigest(bytes, offset_bytes);
}

Result<std::vector<std::string>> CheckpointReader::Verify() const {
  std::vector<std::string> damage = impl_->files->LostCopies();
  if (!impl_->passed_over.empty()) damage.push_back(impl_->passed_over);
  const auto add = [&](Result<std::vector<std::string>> found) -> Result<void> {
    if (!found && !IsDamage(found.error())) return std::move(found).error();
    if (!found) found = std::vector<std::string>{found.error().message};
    for (std::string& message : found.value())
      if (damage.size() < kDamageMax && std::ranges::find(damage, message) == damage.end())
        damage.push_back(std::move(message));
    return {};
  };
  const auto copies = impl_->files->Copies();
  if (copies.empty()) FFR_TRY(add(impl_->VerifyBytes(*impl_->segments, *impl_->files)));
  for (const auto& copy : copies) FFR_TRY(add(impl_->VerifyCopy(*copy)));
  return damage;
}

Result<bool> CheckpointReader::IsWhole(bool reads) const {
  if (FFR_TRY(impl_->IsWholeAt(*impl_->files, reads))) return true;
  for (const auto& copy : impl_->files->Fallbacks())
    if (FFR_TRY(impl_->IsWholeAt(*copy, reads))) return true;
  return false;
}

}  // namespace ffrecord::client
