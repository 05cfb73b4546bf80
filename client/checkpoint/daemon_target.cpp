#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/checkpoint/packed_files.h"
#include "client/checkpoint/step_manifests.h"
#include "client/checkpoint/target.h"
#include "client/checkpoint/verified.h"
#include "client/dataset/catalog.h"
#include "client/dataset/cluster.h"
#include "client/dataset/cluster_files.h"
#include "client/dataset/failures.h"
#include "client/dataset/upload.h"
#include "client/dataset/verified_extents.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/format/checkpoint_segment.h"
#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord::client {
namespace {

constexpr std::size_t kSegmentsAtOnce = 4;
constexpr std::string_view kTrialName = "sharing-trial";  // Of DaemonTarget::MayShare().

// A run at a daemon or in a cluster: its steps are published names, the files of a step one
// manifest.
struct RemoteRun {
  net::Location location;
  std::shared_ptr<ClusterFinder> finder;
  SessionOptions options;

  Result<Catalog> catalog() const { return Catalog(FFR_TRY(finder->Find())); }

  std::string NameOf(std::uint64_t step) const { return location.name + "/" + StepName(step); }
  std::string Describe(std::uint64_t step) const {
    return location.ToString() + "/" + StepName(step);
  }
  net::Deadline deadline() const { return net::Clock::now() + options.timeout; }
};

Error StepExists(const RemoteRun& run, std::uint64_t step) {
  return Error{ErrorCode::kConflict, "checkpoint: " + run.Describe(step) +
                                         " is committed already; save another step, or remove it "
                                         "first"};
}

class DaemonStep final : public CommittedStep {
 public:
  DaemonStep(RemoteRun run, std::uint64_t step, DatasetManifest manifest)
      : run_(std::move(run)), step_(step), manifest_(std::move(manifest)) {}

  std::string Describe(std::string_view name) const override {
    return run_.Describe(step_) + "/" + std::string(name);
  }

  // The extents: no other bytes ever have their ids, whatever the names of step and file are.
  std::string IdentityOf(std::string_view name) const override {
    const ManifestFile* const file = manifest_.Find(name);
    if (file == nullptr) return {};
    std::string identity = "extents";
    for (const ManifestExtent& extent : file->extents) identity += " " + Hex(extent.id);
    return identity;
  }

  // Null: the step has no such file.
  const ManifestFile* Find(std::string_view name) const { return manifest_.Find(name); }

  Result<std::vector<std::byte>> ReadFile(std::string_view name,
                                          std::uint64_t size_bytes_max) const override {
    const std::string only(name);
    const auto files = FFR_TRY(OpenFiles({&only, 1}));
    const std::uint64_t size = files->file_size_bytes(0);
    if (size > size_bytes_max)
      return Error{ErrorCode::kCorruption, Describe(name) + ": has " + std::to_string(size) +
                                               " bytes, more than the " +
                                               std::to_string(size_bytes_max) + " expected"};
    std::vector<std::byte> bytes(size);
    RangeRead range{0, 0, bytes, ErrorCode::kOk};
    if (size > 0) FFR_TRY(files->Read({&range, 1}));
    if (range.status != ErrorCode::kOk)
      return Error{range.status, Describe(name) + ": reading it from the daemon failed"};
    // If no copy is whole, the caller refuses the bytes, for it knows what they are.
    const auto verified = VerifyExtents(*files, 0, *manifest_.Find(name), 0, bytes);
    if (!verified && verified.error().code != ErrorCode::kCorruption) return verified.error();
    return bytes;
  }

  Result<std::unique_ptr<RangeReader>> OpenFiles(
      std::span<const std::string> names) const override {
    DatasetManifest wanted;
    for (const std::string& name : names) {
      const ManifestFile* file = manifest_.Find(name);
      if (file == nullptr)
        return Error{ErrorCode::kNotFound, Describe(name) + ": the step has no such file"};
      wanted.files.push_back(*file);
    }
    return OpenClusterFiles(FFR_TRY(run_.finder->Find()), std::move(wanted), run_.Describe(step_));
  }

  // A name stays when a disk with its extents is lost: the last byte of each is read, which one
  // that was cut short has not.
  Result<bool> Holds(std::span<const std::string> segments) const override {
    std::vector<std::string> names;
    for (const std::string& segment : segments)
      names.push_back(Find(segment) != nullptr ? segment : segment + std::string(kPackedSuffix));
    const auto files = OpenFiles(names);
    if (!files && IsDamage(files.error())) return false;
    if (!files) return files.error();
    std::vector<RangeRead> reads;
    for (std::uint32_t i = 0; i < names.size(); ++i) {
      const std::uint64_t size = files.value()->file_size_bytes(i);
      for (std::uint64_t at = 0; at < size; at += kExtentSizeMax)
        reads.push_back({i, std::min(size, at + kExtentSizeMax) - 1, {}, ErrorCode::kOk});
    }
    std::vector<std::byte> bytes(reads.size());
    for (std::size_t i = 0; i < reads.size(); ++i)
      reads[i].destination = std::span(bytes).subspan(i, 1);
    FFR_TRY(files.value()->Read(reads));
    for (const RangeRead& read : reads) {
      if (read.status == ErrorCode::kOk) continue;
      const Error failure{read.status, Describe(names[read.file]) + ": asking for it failed"};
      if (IsDamage(failure) || IsIll(failure)) return false;
      return failure;
    }
    return true;
  }

 private:
  RemoteRun run_;
  std::uint64_t step_;
  DatasetManifest manifest_;
};

// A file's entry travels to the coordinator as a manifest of that one file.
Result<WrittenFile> Written(ManifestFile file) {
  std::string name = file.name;
  auto entry = FFR_TRY(EncodeDatasetManifest({{std::move(file)}}));
  return WrittenFile{std::move(name), std::move(entry)};
}

// The refusal of a publication, where nothing has taken the name.
bool IsOfExtents(const Error& refusal) {
  return refusal.code == ErrorCode::kConflict || refusal.code == ErrorCode::kCorruption;
}

// Only the ranks know which of them have kept extents.
Error LostExtents(Error refusal) {
  refusal.code = ErrorCode::kConflict;
  refusal.system_errno = kKeptIsLost;
  return refusal;
}

class DaemonAttempt final : public CheckpointAttempt {
 public:
  // Takes the place of the step at revision `replaced`; 0: of none.
  DaemonAttempt(const RemoteRun& run, std::uint64_t step, std::uint64_t replaced)
      : run_(run), step_(step), replaced_(replaced) {}

  Result<WrittenFile> Put(std::string_view name, std::uint64_t size_bytes,
                          const FileSource& source) override {
    return PutTo(*FFR_TRY(BeginUpload()), name, size_bytes, source);
  }

  // Segments travel over connections of their own.
  Result<std::vector<WrittenFile>> PutSegments(std::span<SegmentFile> segments,
                                               const std::function<void()>& released) override {
    Upload* const upload = FFR_TRY(BeginUpload());
    std::vector<WrittenFile> written(segments.size());
    std::atomic<std::size_t> next{0};
    const auto put_some = [&](const SideBySide& others) -> Result<void> {
      for (std::size_t i; !others.failed() && (i = next++) < segments.size();) {
        SegmentImage& image = segments[i].image;
        written[i] = FFR_TRY(PutTo(
            *upload, segments[i].name, image.layout().file_size_bytes,
            [&](std::uint64_t offset, std::uint64_t size) { return image.At(offset, size); }));
      }
      return {};
    };
    FFR_TRY(SideBySide::Run(std::min(segments.size(), kSegmentsAtOnce), put_some));
    if (released) released();
    return written;
  }

  // The same extents: daemons keep them as long as a name has them.
  Result<std::optional<WrittenFile>> Keep(const PartManifest& base, std::uint32_t index,
                                          std::string_view name) override {
    const std::optional<WrittenFile> none;
    if (!FindBase(base)) return none;
    const std::string kept = SegmentName(base.rank, index);
    const ManifestFile* const found = base_->files.Find(kept);
    if (found == nullptr ||
        found->size_bytes !=
            LayoutOfSegment(base.segments[index].payload_size_bytes).file_size_bytes)
      return none;
    const SegmentInFile segment{kept, {&base, index}};
    const auto is_whole = AreWhole(base_->files, {&segment, 1});
    if (!is_whole || !is_whole.value()) return none;
    kept_.push_back(base.segments[index].id);
    ManifestFile file = *found;
    file.name = name;
    return std::optional(FFR_TRY(Written(std::move(file))));
  }

  void ForgetKept() noexcept override {
    for (const SegmentId& segment : kept_) VerifiedSegments::Process().Forget(segment);
  }

  // The step that was looked at is that save for good. If it is not there any more, its extents may
  // be gone.
  Result<bool> IsKeptFrom(std::uint64_t step, const AttemptId& /*attempt*/) override {
    const Catalog catalog = FFR_TRY(run_.catalog());
    const auto there = catalog.Resolve(run_.NameOf(step), run_.deadline());
    return there && base_ && there.value().revision == base_->revision;
  }

 protected:
  // A daemon that was started anew between a publication and its repetition has forgotten whose it
  // was, and says that there is one: which, the extents that it names tell.
  Result<void> MakeVisible(std::span<const WrittenFile> files) override {
    DatasetManifest manifest;
    for (const WrittenFile& file : files) {
      DatasetManifest one = FFR_TRY(DecodeDatasetManifest(file.entry));
      std::move(one.files.begin(), one.files.end(), std::back_inserter(manifest.files));
    }
    const auto mode = replaced_ == 0 ? net::Publish::Mode::kCreate : net::Publish::Mode::kSwap;
    const Catalog catalog = FFR_TRY(run_.catalog());
    const auto published =
        catalog.Publish(run_.NameOf(step_), manifest, mode, replaced_, run_.deadline());
    if (published) return {};
    const auto there = catalog.Resolve(run_.NameOf(step_), run_.deadline());
    const bool is_there = there && (replaced_ == 0 || there.value().revision != replaced_);
    const bool is_known = there || there.error().code == ErrorCode::kNotFound;
    if (!is_there && is_known && IsOfExtents(published.error()))
      return LostExtents(published.error());
    if (!there) return WithoutALook(published.error(), there.error());
    // The step that was to give way is there: what kept this one out is no other save.
    if (!is_there) return published.error();
    if (there.value().manifest != manifest) return StepExists(run_, step_);
    return {};
  }

  // The daemon collects an upload that is never published.
  void Discard() noexcept override {}

 private:
  // A step that others are kept from.
  struct Base {
    std::uint64_t step;
    AttemptId attempt;
    std::uint64_t revision;
    DaemonStep files;
  };
  // Whether `base_` is the step of `part` now; looks once for all segments.
  bool FindBase(const PartManifest& part) {
    if (base_ && base_->step == part.step && base_->attempt == part.attempt) return true;
    const auto catalog = run_.catalog();
    if (!catalog) return false;
    auto found = catalog.value().Resolve(run_.NameOf(part.step), run_.deadline());
    if (!found) return false;
    DaemonStep files(run_, part.step, std::move(found.value().manifest));
    const auto root = ReadRootManifest(files, part.step);
    if (!root || root.value().attempt != part.attempt) return false;
    base_.emplace(Base{part.step, part.attempt, found.value().revision, std::move(files)});
    return true;
  }

  Result<Upload*> BeginUpload() {
    if (!upload_) upload_.emplace(FFR_TRY(run_.finder->Find()));
    return &*upload_;
  }
  static Result<WrittenFile> PutTo(Upload& upload, std::string_view name, std::uint64_t size_bytes,
                                   const FileSource& source) {
    return Written(FFR_TRY(upload.PutFrom(std::string(name), size_bytes,
                                          [&](std::uint64_t offset, std::span<std::byte> room) {
                                            return source(offset, room.size());
                                          })));
  }

  RemoteRun run_;
  std::uint64_t step_;
  std::uint64_t replaced_;
  std::optional<Base> base_;      // Once a segment is to be kept.
  std::vector<SegmentId> kept_;   // Segments of it that were kept.
  std::optional<Upload> upload_;  // Once there is a file to be brought.
};

class DaemonTarget final : public CheckpointTarget {
 public:
  explicit DaemonTarget(RemoteRun run) : run_(std::move(run)), name_(run_.location.ToString()) {}

  const std::string& name() const noexcept override { return name_; }

  Result<std::vector<std::uint64_t>> Steps() const override {
    const std::string prefix = run_.location.name + "/";
    const Catalog catalog = FFR_TRY(run_.catalog());
    const auto entries = FFR_TRY(catalog.List(prefix, run_.deadline()));
    std::vector<std::uint64_t> steps;
    for (const auto& entry : entries) {
      if (!entry.name.starts_with(prefix)) continue;
      const auto step = StepOf(std::string_view(entry.name).substr(prefix.size()));
      if (step) steps.push_back(*step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }

  Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const override {
    const Catalog catalog = FFR_TRY(run_.catalog());
    auto resolved = FFR_TRY(catalog.Resolve(run_.NameOf(step), run_.deadline()));
    return std::unique_ptr<CommittedStep>(new DaemonStep(run_, step, std::move(resolved.manifest)));
  }

  Result<void> Remove(std::uint64_t step, const std::optional<AttemptId>& only) override {
    const Catalog catalog = FFR_TRY(run_.catalog());
    if (!only) return catalog.Remove(run_.NameOf(step), run_.deadline());
    auto found = FFR_TRY(catalog.Resolve(run_.NameOf(step), run_.deadline()));
    const DaemonStep files(run_, step, std::move(found.manifest));
    if (FFR_TRY(ReadRootManifest(files, step)).attempt != *only) return AnotherSave(*this, step);
    const auto removed = catalog.Remove(run_.NameOf(step), run_.deadline(), found.revision);
    if (!removed && removed.error().code == ErrorCode::kConflict) return AnotherSave(*this, step);
    return removed;
  }

  Result<std::unique_ptr<CheckpointAttempt>> Begin(std::uint64_t step,
                                                   const AttemptId& attempt) override {
    const Catalog catalog = FFR_TRY(run_.catalog());
    if (FFR_TRY(catalog.IsTaken(run_.NameOf(step), run_.deadline()))) return StepExists(run_, step);
    return Join(step, attempt);
  }

  Result<std::unique_ptr<CheckpointAttempt>> Join(std::uint64_t step,
                                                  const AttemptId& /*attempt*/) override {
    return std::unique_ptr<CheckpointAttempt>(new DaemonAttempt(run_, step, 0));
  }

  // Only what is there now: not what another save puts there meanwhile.
  Result<std::unique_ptr<CheckpointAttempt>> BeginInPlace(std::uint64_t step,
                                                          const AttemptId& attempt,
                                                          const GivesWay& gives_way) override {
    const Catalog catalog = FFR_TRY(run_.catalog());
    if (!FFR_TRY(catalog.IsTaken(run_.NameOf(step), run_.deadline()))) return Begin(step, attempt);
    const auto found = catalog.Resolve(run_.NameOf(step), run_.deadline());
    if (!found && found.error().code == ErrorCode::kNotFound) return Begin(step, attempt);
    if (!found) return found.error();
    if (!FFR_TRY(gives_way())) return Begin(step, attempt);
    return std::unique_ptr<CheckpointAttempt>(
        new DaemonAttempt(run_, step, found.value().revision));
  }

  // While a node is down, the cluster says it of the step's files, published under another name for
  // a moment. A process that is killed then leaves that name to the next look.
  bool MayShare(const FindStep& base) const override {
    const auto cluster = run_.finder->Find();
    if (!cluster || cluster.value()->is_one_daemon()) return true;
    static_cast<void>(cluster.value()->Refresh(run_.deadline()));
    const auto view = cluster.value()->view();
    if (std::ranges::all_of(view->reply.nodes, [](const auto& node) { return node.is_up; }))
      return true;
    const auto step = base();
    const Catalog catalog(cluster.value());
    if (!step) return true;
    const auto found = catalog.Resolve(run_.NameOf(*step), run_.deadline());
    if (!found) return true;
    const std::string name = run_.location.name + "/" + std::string(kTrialName);
    const auto tried = catalog.Publish(name, found.value().manifest, net::Publish::Mode::kReplace,
                                       0, run_.deadline());
    if (tried) static_cast<void>(catalog.Remove(name, run_.deadline()));
    return tried || !IsOfExtents(tried.error());
  }

  // A published name, whose one file is empty and called as the answer.
  Result<std::string> Decide(std::string_view name, std::string_view answer) override {
    const std::string full_name = run_.location.name + "/" + std::string(name);
    const DatasetManifest manifest{{{std::string(answer), 0, {}}}};
    const Catalog catalog = FFR_TRY(run_.catalog());
    const auto published =
        catalog.Publish(full_name, manifest, net::Publish::Mode::kCreate, 0, run_.deadline());
    if (published) return std::string(answer);
    if (published.error().code != ErrorCode::kConflict) return published.error();
    return Decided(name);
  }

  Result<std::vector<std::string>> Decisions(std::string_view prefix) const override {
    const std::string run = run_.location.name + "/";
    const Catalog catalog = FFR_TRY(run_.catalog());
    std::vector<std::string> names;
    for (const auto& entry : FFR_TRY(catalog.List(run + std::string(prefix), run_.deadline())))
      if (entry.name.starts_with(run)) names.push_back(entry.name.substr(run.size()));
    return names;
  }

  Result<std::string> Decided(std::string_view name) const override {
    const Catalog catalog = FFR_TRY(run_.catalog());
    const auto there =
        FFR_TRY(catalog.Resolve(run_.location.name + "/" + std::string(name), run_.deadline()));
    return there.manifest.files.empty() ? std::string() : there.manifest.files.front().name;
  }

  void Forget(std::string_view name) noexcept override {
    const auto catalog = run_.catalog();
    if (catalog)
      static_cast<void>(
          catalog.value().Remove(run_.location.name + "/" + std::string(name), run_.deadline()));
  }

 private:
  RemoteRun run_;
  std::string name_;
};

}  // namespace

Result<std::unique_ptr<CheckpointTarget>> OpenDaemonTarget(std::string_view address,
                                                           const SessionOptions& options) {
  auto locations = FFR_TRY(net::Location::ParseAll(address));
  net::Location location = locations.front();
  if (auto named = net::CheckName(location.name); !named)
    return Error{ErrorCode::kInvalidArgument,
                 "checkpoint: " + std::string(address) + ": " + named.error().message};
  auto finder = std::make_shared<ClusterFinder>(std::move(locations), options);
  return std::unique_ptr<CheckpointTarget>(
      new DaemonTarget({std::move(location), std::move(finder), options}));
}

}  // namespace ffrecord::client
