#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/client/dataset.h>
#include <ffrecord/result.h>

#include "client/checkpoint/ballot.h"
#include "client/checkpoint/segment_files.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/format/checkpoint_manifest.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

// The system_errno of Commit()'s kConflict where nothing but what was kept is in the way: a save
// that keeps nothing may succeed.
inline constexpr int kKeptIsLost = ESTALE;

// Bytes [offset, offset + at most size) of a file that is being written: at least one, valid until
// the next call. Offsets rise, but for a transfer that has to begin again.
using FileSource = std::function<Result<std::span<const std::byte>>(std::uint64_t, std::uint64_t)>;

// A checkpoint on its way: files that no reader sees until Commit(). Thread-bound. Each rank has
// its own object; only the coordinator calls Commit() and Abandon().
class CheckpointAttempt {
 public:
  CheckpointAttempt() noexcept;
  virtual ~CheckpointAttempt() = default;

  // Writes one small file of `size_bytes` and makes it durable. Returns what the coordinator needs
  // to publish it. Fails early with kIo (ENOSPC) if there is no room.
  virtual Result<WrittenFile> Put(std::string_view name, std::uint64_t size_bytes,
                                  const FileSource& source) = 0;

  // The same for all segments of this rank's part; then everything that was kept is durable, too.
  // `released` as in SaveOptions; may be empty.
  virtual Result<std::vector<WrittenFile>> PutSegments(std::span<SegmentFile> segments,
                                                       const std::function<void()>& released) = 0;

  // Gives the attempt segment `index` of `base`, a part of a committed step, as a file of its own
  // called `name`, without sending its bytes; durable after PutSegments(). Returns what the
  // coordinator needs to publish it; none if that cannot be: the target does not share files, or
  // the file is not there, or is damaged: it is read, unless this process has verified it.
  virtual Result<std::optional<WrittenFile>> Keep(const PartManifest& base, std::uint32_t index,
                                                  std::string_view name) = 0;
  // The attempt gives up a segment that was kept as `name`, which may then be written anew.
  virtual Result<void> DropKept(std::string_view /*name*/) {
    return {};  // A target that names no files before Commit().
  }
  // After the last Keep() of segments of `step`: whether it is, and so was all the time, the save
  // `attempt`. If not, the segments may be another save's: what was kept is gone from here again,
  // and must not be published.
  virtual Result<bool> IsKeptFrom(std::uint64_t /*step*/, const AttemptId& /*attempt*/) {
    return true;  // A target that does not share files has kept none.
  }

  // The save has failed: what was kept may be why, and is read again before it is kept once more.
  virtual void ForgetKept() noexcept {}

  // Makes `files`, which are all of the attempt's, visible as its step: at once, durably, and only
  // if no other save of that step has been faster (kConflict). At most once.
  Result<void> Commit(std::span<const WrittenFile> files);

  // Removes what it can of the attempt, unless it may be visible: after Commit() nothing is removed
  // but what has lost to another save. A forked child removes nothing of its parent's.
  void Abandon() noexcept;

 protected:
  // As Commit(). An answer may be lost, so a failure says little: fails with kConflict only if the
  // attempt is not visible and never will be, success only if what is visible is this attempt.
  virtual Result<void> MakeVisible(std::span<const WrittenFile> files) = 0;
  // Removes what it can. Called only if nobody sees the attempt, nor ever will.
  virtual void Discard() noexcept = 0;

 private:
  bool may_be_visible_ = false;
  HomeProcess home_;
};

// The files of one committed step. Thread-safe.
class CommittedStep {
 public:
  virtual ~CommittedStep() = default;
  // The name of file `name` in messages.
  virtual std::string Describe(std::string_view name) const = 0;
  // Equal as long as nobody has written segment `name` again, whichever way it is kept; empty if
  // that is not known.
  virtual std::string IdentityOf(std::string_view name) const { return Describe(name); }
  // Fails with kNotFound, with kCorruption if the file is larger than `size_bytes_max`.
  virtual Result<std::vector<std::byte>> ReadFile(std::string_view name,
                                                  std::uint64_t size_bytes_max) const = 0;
  virtual Result<std::unique_ptr<RangeReader>> OpenFiles(
      std::span<const std::string> names) const = 0;
  // Whether `segments` are there, whichever way they are kept, as far as that can be found out
  // without reading them: by opening them, where a name does not outlive its bytes. Fails if they
  // cannot be asked for.
  virtual Result<bool> Holds(std::span<const std::string> segments) const;
  // The same step, read where this one is not: its other copies first. Null if there are none.
  virtual std::unique_ptr<CommittedStep> Twin() const { return nullptr; }
  // The copies to read from where this step is damaged, nearest first: the twin, and those farther
  // away. Farther ones are asked only then, and are no part of what is verified here.
  virtual std::vector<std::unique_ptr<CommittedStep>> Fallbacks() const;
  // Why copies that should be there are not read at all: places that are lost, or lack the step.
  virtual std::vector<std::string> LostCopies() const { return {}; }
  // The step's copies, one by one, for their verification. Empty if there is this one only.
  virtual std::vector<std::unique_ptr<CommittedStep>> Copies() const { return {}; }
};

// Whether a step that is committed may be replaced; may read all of it.
using GivesWay = std::function<Result<bool>()>;

// Where a run keeps its checkpoints: a folder, or a name at a daemon. Thread-bound.
class CheckpointTarget {
 public:
  virtual ~CheckpointTarget() = default;

  // For messages. No address: it lacks options and all places but the first.
  virtual const std::string& name() const noexcept = 0;
  // Ascending.
  virtual Result<std::vector<std::uint64_t>> Steps() const = 0;
  // As Steps(), but fails if a place that may have more does not answer.
  virtual Result<std::vector<std::uint64_t>> StepsForSure() const { return Steps(); }
  // Places that did not answer, and so may have steps that Steps() lacks: a message for each.
  virtual std::vector<std::string> Unseen() const { return {}; }
  virtual Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const = 0;
  // Makes a step disappear at once, then frees its bytes; with `only`, if it is that save, and not
  // one that has taken its place meanwhile (at a store, shortly before at the latest). Fails with
  // kNotFound.
  virtual Result<void> Remove(std::uint64_t step, const std::optional<AttemptId>& only) = 0;

  // The coordinator begins an attempt, before the others join it. Fails with kConflict if the step
  // is committed already.
  virtual Result<std::unique_ptr<CheckpointAttempt>> Begin(std::uint64_t step,
                                                           const AttemptId& attempt) = 0;
  // The same, but a step that is committed now, and of which `gives_way` then says so, gives way to
  // the attempt: when that is committed, where both can be done at once, else now. Where it is done
  // at once, a save that has taken the step's place since the call, while `gives_way` looked at the
  // step too, does not give way (kConflict at Commit()).
  virtual Result<std::unique_ptr<CheckpointAttempt>> BeginInPlace(std::uint64_t step,
                                                                  const AttemptId& attempt,
                                                                  const GivesWay& gives_way);
  virtual Result<std::unique_ptr<CheckpointAttempt>> Join(std::uint64_t step,
                                                          const AttemptId& attempt) = 0;

  // Whether a save that begins now may share files with a step, as far as that can be found out: a
  // cluster refuses extents that too few of its nodes hold. `base` looks for the step; only where
  // there is doubt.
  using FindStep = std::function<std::optional<std::uint64_t>()>;
  virtual bool MayShare(const FindStep& /*base*/) const { return true; }

  // Decides what is asked under `name`, once for all who ask: the first to bring an answer makes it
  // the one that every caller gets, in one atomic step, durably, until it is forgotten. Names are
  // those of files that are no step's; an answer is one short word.
  virtual Result<std::string> Decide(std::string_view name, std::string_view answer) = 0;
  virtual void Forget(std::string_view name) noexcept = 0;
  // The names that begin with `prefix` under which something is decided, in any order.
  virtual Result<std::vector<std::string>> Decisions(std::string_view prefix) const = 0;
  // The text that Decide() has stored under `name`. Fails with kNotFound if there is none.
  virtual Result<std::string> Decided(std::string_view name) const = 0;
};

// The error of Remove() where the step is another save than `only`.
Error AnotherSave(const CheckpointTarget& target, std::uint64_t step);

// The error of a publication that failed as `tried` says, where `look` kept what is there from
// being seen: not kConflict, for it may be this attempt that is there.
Error WithoutALook(const Error& tried, const Error& look);

struct TargetOptions {
  bool direct = true;
  SessionOptions session;
};

// `target` is a folder, ffrecord://host[:port]/name, s3://bucket/name, or buddies: or stage: of
// such. No I/O for a folder. Fails with kInvalidArgument for an address of any other kind.
Result<std::unique_ptr<CheckpointTarget>> OpenTarget(std::string_view target,
                                                     const TargetOptions& options);
// `timeout`: for the lock of an attempt's folder.
std::unique_ptr<CheckpointTarget> OpenFolderTarget(
    std::string_view folder, bool direct,
    std::chrono::milliseconds timeout = SessionOptions().timeout);
Result<std::unique_ptr<CheckpointTarget>> OpenDaemonTarget(std::string_view address,
                                                           const SessionOptions& options);
// Several places, each the address of a target, behind kBuddiesScheme and parted by '|': every part
// is at two of them (buddy_target.cpp).
inline constexpr std::string_view kBuddiesScheme = "buddies:";
Result<std::unique_ptr<CheckpointTarget>> OpenBuddyTarget(std::string_view address,
                                                          const TargetOptions& options);
// Several places, nearest first, behind kStageScheme and parted by kStageMark: a save goes to the
// first, and copies of it to the others (staged_target.cpp). A comma would be one of the address of
// a cluster, and '|' parts the places of a replicated target, which may be one of these.
inline constexpr std::string_view kStageScheme = "stage:";
inline constexpr char kStageMark = '>';
Result<std::unique_ptr<CheckpointTarget>> OpenStagedTarget(std::string_view address,
                                                           const TargetOptions& options);
// The places in an address of several, `mark` between them.
std::vector<std::string_view> PlacesIn(std::string_view places, char mark);
// A replicated target of places that are open.
struct BuddyPlace {
  std::string name;
  std::unique_ptr<CheckpointTarget> target;
  std::unique_ptr<CheckpointTarget> probe;  // The same, with little patience.
  std::string canonical = {};               // As CanonicalAddress(); empty: the name.
};
std::unique_ptr<CheckpointTarget> JoinBuddies(std::string_view address,
                                              std::vector<BuddyPlace> places,
                                              std::vector<std::size_t> order);
// The place that an address of one target names, however it is spelled: equal texts are one place.
// A folder that exists is its device and inode; one that does not, its path below the folder that
// does. No I/O for addresses of other kinds; those that are malformed are themselves.
std::string IdentityOfTarget(std::string_view target);
// The same, and itself for an address of several places.
std::string KeyOfTarget(std::string_view address);
// Whether an address names several places.
bool IsOfSeveral(std::string_view address);
// One spelling of all of `target`, equal on all hosts that see the same paths.
std::string CanonicalAddress(std::string_view target);
// A run at an S3-compatible store, found and entered as AwsSettings say. Fails with
// kInvalidArgument if this build has no object store.
inline constexpr std::string_view kObjectScheme = "s3://";
Result<std::unique_ptr<CheckpointTarget>> OpenObjectTarget(std::string_view address,
                                                           const SessionOptions& options);
// The step at each of `places` if it is the same save of `step` as `here`, with its own fallbacks;
// if no manifest of `here` says which save it is, any. Places that have none, or cannot be asked,
// are left out.
std::vector<std::unique_ptr<CommittedStep>> SameSaveAt(std::span<const std::string> places,
                                                       const CommittedStep& here,
                                                       std::uint64_t step,
                                                       const SessionOptions& options);

// Names of format.md, "Checkpoint": step-000001200, part-00003.manifest, part-00003/seg-0000.
inline constexpr std::string_view kRootManifestName = "root.manifest";
std::string StepName(std::uint64_t step);
std::string PartManifestName(std::uint32_t rank);
std::string SegmentName(std::uint32_t rank, std::uint32_t segment);
// The rank whose part a file belongs to; nothing if it is of all ranks.
std::optional<std::uint32_t> RankOfFile(std::string_view name);
// The step of a StepName; nothing if `name` is none.
std::optional<std::uint64_t> StepOf(std::string_view name);

}  // namespace ffrecord::client
