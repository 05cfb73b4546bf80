#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <ffrecord/client/checkpoint.h>

#include "client/checkpoint/packed_files.h"
#include "client/checkpoint/publish.h"
#include "client/checkpoint/run_line.h"
#include "client/checkpoint/segment_reader.h"
#include "client/checkpoint/step_digests.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "client/checkpoint/verified.h"
#include "client/checkpoint/write_part.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/hex.h"

namespace ffrecord::client {
namespace {

// Read at once of a file that is copied.
constexpr std::uint64_t kReadSize = std::uint64_t{8} << 20;
static_assert(kReadSize % kSegmentBlockSize == 0);

// A committed step with all its manifests, of the first copy whose manifests are whole.
struct Source {
  std::shared_ptr<const CommittedStep> files;
  StepManifests manifests;

  static Result<Source> Open(const CheckpointTarget& target, std::uint64_t step) {
    std::shared_ptr<const CommittedStep> files = FFR_TRY(target.Open(step));
    auto manifests = ReadStepManifests(*files, step);
    if (!manifests) {
      for (auto& other : files->Fallbacks()) {
        auto there = ReadStepManifests(*other, step);
        if (there) return Source{std::move(other), std::move(there).value()};
      }
    }
    return Source{std::move(files), FFR_TRY(std::move(manifests))};
  }
};

// Gives the verified bytes of one segment's file front to back. Blocks that cannot be read here, or
// are damaged, are read from the
// step's other copies, if there are any.
class SegmentBytes {
 public:
  // `passed` gets each block, perhaps several times.
  using Passed = std::function<void(std::uint64_t offset, std::span<const std::byte> block)>;
  static Result<SegmentBytes> Open(const CommittedStep& step, const std::string& name,
                                   const StoredSegment& stored, Passed passed) {
    SegmentBytes bytes(step, {name, stored}, std::move(passed));
    bytes.buffer_ = FFR_TRY(BufferPool::Process().Take(kReadSize));
    bytes.end_ =
        FFR_TRY(bytes.FromACopy([](const SegmentReader& reader) { return reader.EndOf(0); }));
    return bytes;
  }

  Result<std::span<const std::byte>> At(std::uint64_t offset, std::uint64_t size_max) {
    const std::uint64_t payload = segment_.stored.payload_size_bytes;
    if (offset >= payload) {
      const auto end = std::span<const std::byte>(end_).subspan(offset - payload);
      return end.first(std::min<std::uint64_t>(size_max, end.size()));
    }
    if (offset < begin_ || offset >= begin_ + size_) FFR_TRY(Fill(offset));
    const auto held = buffer_->subspan(offset - begin_, begin_ + size_ - offset);
    return std::span<const std::byte>(held.first(std::min<std::uint64_t>(size_max, held.size())));
  }

 private:
  SegmentBytes(const CommittedStep& step, SegmentReader::Segment segment, Passed passed)
      : step_(step), segment_(std::move(segment)), passed_(std::move(passed)) {}

  Result<void> Fill(std::uint64_t offset) {
    begin_ = offset / kReadSize * kReadSize;
    size_ = std::min(kReadSize, segment_.stored.payload_size_bytes - begin_);
    auto read = FromACopy([this](const SegmentReader& reader) {
      return reader.Read({SegmentCopy{0, begin_, size_, buffer_->data(), {}}});
    });
    if (!read) size_ = 0;
    for (std::uint64_t at = 0; at < size_; at += kSegmentBlockSize)
      passed_(begin_ + at, buffer_->subspan(at, std::min(kSegmentBlockSize, size_ - at)));
    return read;
  }

  // The result of `work` for this copy, or for the first of the others where this one is damaged.
  template <class Work>
  auto FromACopy(const Work& work) -> decltype(work(std::declval<const SegmentReader&>())) {
    auto here = Try(step_, here_, work);
    if (here) return here;
    if (!fallbacks_) fallbacks_ = step_.Fallbacks();
    there_.resize(fallbacks_->size());
    for (std::size_t i = 0; i < there_.size(); ++i)
      if (auto there = Try(*(*fallbacks_)[i], there_[i], work)) return there;
    return here;
  }

  template <class Work>
  auto Try(const CommittedStep& step, std::unique_ptr<SegmentReader>& reader, const Work& work)
      -> decltype(work(std::declval<const SegmentReader&>())) {
    if (reader == nullptr) reader = FFR_TRY(SegmentReader::Open(step, {segment_}));
    return work(*reader);
  }

  const CommittedStep& step_;
  SegmentReader::Segment segment_;
  Passed passed_;
  // Opened when they are needed.
  std::optional<std::vector<std::unique_ptr<CommittedStep>>> fallbacks_;
  std::unique_ptr<SegmentReader> here_;
  std::vector<std::unique_ptr<SegmentReader>> there_;  // One for each of fallbacks_.
  PooledBuffer buffer_;
  std::uint64_t begin_ = 0;
  std::uint64_t size_ = 0;
  std::vector<std::byte> end_;
};

// The parts of the step at `target` before `step`, with which incremental saves of these `parts`
// may share segments; none if that cannot be known.
std::vector<PartManifest> PartsBefore(const CheckpointTarget& target, std::uint64_t step,
                                      std::span<const PartManifest> parts) {
  if (std::ranges::none_of(parts, &PartManifest::has_contents)) return {};
  const auto steps = target.Steps();
  if (!steps) return {};
  const auto end = std::ranges::lower_bound(steps.value(), step);
  if (end == steps.value().begin()) return {};
  const auto files = target.Open(*std::prev(end));
  if (!files) return {};
  auto manifests = ReadStepManifests(*files.value(), *std::prev(end));
  if (!manifests) return {};
  return std::move(manifests).value().parts;
}

class Copy {
 public:
  // `base`: parts of a step at the target, with which this one may share segments.
  Copy(const Source& from, CheckpointTarget& target, CheckpointAttempt& to, const SaveLine& line,
       bool compresses, std::vector<PartManifest> base)
      : from_(from),
        target_(target),
        to_(to),
        line_(line),
        compresses_(compresses),
        base_(std::move(base)),
        segments_(FilesOf(from.manifests.parts)),
        digests_(SegmentsOf(from.manifests.parts)) {}

  Result<void> Run() {
    const auto is_kept = FFR_TRY(KeepSegments());
    for (std::uint32_t i = 0; i < segments_.size(); ++i)
      if (!is_kept[i]) FFR_TRY(CopySegment(i));
    FFR_TRY(CheckDigests());
    for (const PartManifest& part : from_.manifests.parts)
      FFR_TRY(CopyManifest(PartManifestName(part.rank)));
    FFR_TRY(CopyManifest(std::string(kRootManifestName)));
    // The copies of a run that has gone back go back as well, with the first step behind that.
    if (line_.is_new) FFR_TRY(TakeLine(target_, line_));
    return to_.Commit(files_);
  }

 private:
  // Whether each segment is one that the target has already, and now has for this step as well.
  Result<std::vector<bool>> KeepSegments() {
    std::vector<bool> is_kept(segments_.size());
    for (std::size_t i = 0; i < segments_.size() && !base_.empty(); ++i) {
      const auto& [name, segment] = segments_[i];
      const StoredSegment& stored = segment.stored();
      if (segment.part->rank >= base_.size()) continue;
      const PartManifest& before = base_[segment.part->rank];
      const auto same = std::ranges::find(before.segments, stored.id, &StoredSegment::id);
      if (same == before.segments.end() || same->table_digest != stored.table_digest) continue;
      const auto number = static_cast<std::uint32_t>(same - before.segments.begin());
      auto kept = FFR_TRY(to_.Keep(before, number, name));
      is_kept[i] = kept.has_value();
      if (kept) files_.push_back(*std::move(kept));
    }
    if (files_.empty()) return is_kept;
    if (FFR_TRY(to_.IsKeptFrom(base_.front().step, base_.front().attempt))) {
      FFR_TRY(to_.PutSegments({}, {}));
      return is_kept;
    }
    files_.clear();
    return std::vector<bool>(segments_.size());
  }

  Result<void> CopySegment(std::uint32_t index) {
    const auto& [name, segment] = segments_[index];
    const StoredSegment& stored = segment.stored();
    SegmentBytes bytes = FFR_TRY(SegmentBytes::Open(
        *from_.files, name, stored,
        [&](std::uint64_t offset, auto block) { digests_.AddBlock(index, offset, block); }));
    const std::uint64_t size_bytes = LayoutOfSegment(stored.payload_size_bytes).file_size_bytes;
    const FileSource source = [&](std::uint64_t offset, std::uint64_t size) {
      return bytes.At(offset, size);
    };
    if (!compresses_) {
      files_.push_back(FFR_TRY(to_.Put(name, size_bytes, source)));
      return {};
    }
    PackedSpool spool = FFR_TRY(PackedSpool::Fill(size_bytes, source));
    files_.push_back(FFR_TRY(
        to_.Put(name + std::string(kPackedSuffix), spool.size_bytes(),
                [&](std::uint64_t offset, std::uint64_t size) { return spool.At(offset, size); })));
    return {};
  }

  // Blocks may be as they were written, and not be what was saved.
  Result<void> CheckDigests() const {
    const auto differences = digests_.Differences();
    if (differences.empty()) return {};
    return Error{ErrorCode::kCorruption,
                 from_.files->Describe(PartManifestName(differences.front().rank)) + ": " +
                     differences.front().message};
  }

  // The bytes that are read now have to be those that were verified.
  Result<void> CopyManifest(const std::string& name) {
    const auto bytes = FFR_TRY(from_.files->ReadFile(name, kManifestSizeMax));
    const RootManifest& root = from_.manifests.root;
    const auto rank = RankOfFile(name);
    const auto read = DecodeRootManifest(bytes);
    if (rank ? Xxh3Digest(bytes) != root.parts[*rank].manifest_digest
             : !read || read.value().attempt != root.attempt)
      return Error{ErrorCode::kCorruption,
                   from_.files->Describe(name) + ": changed while it was copied"};
    files_.push_back(FFR_TRY(WriteSmallFile(to_, name, bytes)));
    return {};
  }

  const Source& from_;
  CheckpointTarget& target_;
  CheckpointAttempt& to_;
  const SaveLine& line_;
  const bool compresses_;
  const std::vector<PartManifest> base_;
  const std::vector<SegmentInFile> segments_;
  StepDigests digests_;
  std::vector<WrittenFile> files_;
};

// The error of what is read of `step`: a step that is there and lacks a file is damaged, not
// absent.
Error OfStep(const CheckpointTarget& origin, std::uint64_t step, Error error) {
  if (error.code != ErrorCode::kNotFound) return error;
  const auto steps = origin.Steps();
  if (steps && std::ranges::find(steps.value(), step) != steps.value().end())
    error.code = ErrorCode::kCorruption;
  return error;
}

// Whether the damaged step at `target` is a copy of `attempt`, or nobody's: a copy takes the place
// of no other save.
Result<bool> MayReplaceDamaged(const CheckpointTarget& target, std::uint64_t step,
                               const AttemptId& attempt) {
  const auto is_it = IsAttemptVisible(target, step, attempt);
  if (!is_it && !IsDamage(is_it.error())) return is_it.error();
  return !is_it || is_it.value();
}

// Whether the step at `target`, whole or not, is one that the copy of `root` is known to replace:
// the save `replaced`, or one that is not on the `line` of the copy.
Result<bool> IsReplaced(const CheckpointTarget& target, const RootManifest& root,
                        const RunLine& line, const std::optional<AttemptId>& replaced) {
  const auto there = FFR_TRY(AttemptAt(target, root.step));
  if (!there || *there == root.attempt) return false;
  if (there == replaced) return true;
  return line.Has(root.generation, root.step) && !FFR_TRY(IsOnLine(target, line, root.step));
}

}  // namespace

Result<Commit> CopyCheckpoint(std::string_view from, std::uint64_t step, std::string_view to,
                              const SessionOptions& options, bool compresses,
                              std::string_view replaced, bool is_of_run) {
  std::optional<AttemptId> gives_way;
  if (!replaced.empty()) gives_way = FFR_TRY(AttemptOf(replaced));
  const auto origin = FFR_TRY(OpenTarget(from, {true, options}));
  auto opened = Source::Open(*origin, step);
  if (!opened) return OfStep(*origin, step, std::move(opened).error());
  const Source source = std::move(opened).value();
  const AttemptId& id = source.manifests.root.attempt;

  std::error_code ignored;
  const bool is_folder = to.find("://") == to.npos && !IsOfSeveral(to);
  const bool is_new_folder = is_folder && !std::filesystem::exists(to, ignored);
  const auto target = FFR_TRY(OpenTarget(to, {true, options}));
  const SaveLine line =
      FFR_TRY(LineOfCopy(*origin, source.manifests.root.generation, *target, is_of_run));
  bool is_copied = false;
  const auto begin = [&]() -> Result<std::unique_ptr<CheckpointAttempt>> {
    auto begun = target->Begin(step, id);
    if (begun || begun.error().code != ErrorCode::kConflict) return begun;
    return target->BeginInPlace(step, id, [&]() -> Result<bool> {
      if (FFR_TRY(IsReplaced(*target, source.manifests.root, line.line, gives_way))) return true;
      const auto there = CheckpointReader::Open(to, step, options);
      if (!there && !IsDamage(there.error())) return there.error();
      const bool is_whole = there && FFR_TRY(there.value().IsWhole());
      is_copied = is_whole && there.value().commit().attempt == Hex(id);
      return !is_whole && FFR_TRY(MayReplaceDamaged(*target, step, id));
    });
  };
  // Compressed segments are shared with no step.
  bool shares = !compresses;
  for (;;) {
    const auto attempt = begin();
    if (is_copied) return CommitOf(source.manifests.root);
    // Files that a failed attempt has written stay: the next one goes on from there.
    if (!attempt) return attempt.error();
    auto base =
        shares ? PartsBefore(*target, step, source.manifests.parts) : std::vector<PartManifest>();
    const auto copied =
        Copy(source, *target, *attempt.value(), line, compresses, std::move(base)).Run();
    if (copied) return CommitOf(source.manifests.root);
    if (shares && IsKeptLost(copied.error())) {
      attempt.value()->ForgetKept();
      shares = false;
      continue;
    }
    if (IsDamage(copied.error())) {
      attempt.value()->Abandon();                               // It will never be whole.
      if (is_new_folder) std::filesystem::remove(to, ignored);  // Unless there is something in it.
    }
    return OfStep(*origin, step, copied.error());
  }
}

}  // namespace ffrecord::client
