#pragma once

#include <array>
#include <atomic>
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
#include <ffrecord/export.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

namespace ffrecord::client {

class CheckpointTarget;

// One tensor, or the slice of it that this rank holds, in the caller's memory: contiguous,
// row-major.
struct TensorView {
  std::string key;                    // Path in the state-dict structure; unique in a rank shard.
  std::string dtype;                  // "float32", "bfloat16", ...: the names of format.md.
  std::vector<std::uint64_t> shape;   // Shape of the whole tensor.
  std::vector<std::uint64_t> offset;  // Offset of this slice in the tensor; zeros if whole.
  std::vector<std::uint64_t> extent;  // Extent of this slice; equal to shape if whole.
  std::span<const std::byte> data;    // With `fetch`: no address, but the right size.
  // For a tensor that is not contiguous in this process's memory: fills `into` with the slice's
  // bytes from fetch_offset_bytes + `offset_bytes` on. Called for one range after another, on any
  // thread and on several at a time, and perhaps twice for the same range.
  std::function<Result<void>(std::uint64_t offset_bytes, std::span<std::byte> into)> fetch = {};
  std::uint64_t fetch_offset_bytes = 0;
  // True: `data` does not change until the save ends. False: not until SaveOptions::released.
  bool is_stable = false;
};

// The all-gather by which the ranks of one save communicate. Fails on every rank if a rank is gone.
// A world of one needs none.
class FFR_EXPORT CheckpointGroup {
 public:
  virtual ~CheckpointGroup() = default;
  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t size() const = 0;
  // Returns `mine` of each rank, in rank order; sizes may differ.
  virtual Result<std::vector<std::vector<std::byte>>> AllGather(
      std::span<const std::byte> mine) = 0;
};

// The results that all ranks learn in one round of agreement.
struct RankResults {
  struct Failure {
    Error error;       // Its message begins with the rank.
    std::string kind;  // As the rank passed it.
  };
  std::vector<std::vector<std::byte>> results;  // In rank order; empty if a rank failed.
  std::optional<Failure> failure;               // The failure of the lowest rank that failed.
};

// One round of agreement: an all-gather of `mine`, the result of this rank or its error, after
// which every rank has the same RankResults. Saves and loads consist of such rounds: a rank that
// fails tells the others in the next round, so that none of them waits for it. `kind` classifies
// the error for the other ranks, for example by the type of an exception; it may be empty.
//
// Fails as the all-gather does, and with kUnavailable if what it returns is malformed, or not in
// rank order.
FFR_EXPORT Result<RankResults> AllGatherResults(CheckpointGroup& group,
                                                const Result<std::vector<std::byte>>& mine,
                                                std::string_view kind = {});

struct Commit {
  std::uint64_t step = 0;
  std::string attempt;           // 32 hex digits, unique to this save.
  std::uint64_t size_bytes = 0;  // Size of all ranks' tensors.
  // For a step in a list: why it cannot be loaded; empty if nothing is known to be wrong with it.
  std::string damage = {};
  // For a step in a list: whether training went back behind it and went on from there. kLatest
  // never is one.
  bool is_given_up = false;
};

// Progress of this rank's tensors: bytes count once they are hashed, just before they are written.
// Complete progress is not yet a commit. Thread-safe.
struct SaveProgress {
  std::atomic<std::uint64_t> total_bytes{0};  // 0 until the save is planned.
  std::atomic<std::uint64_t> done_bytes{0};   // At most total_bytes, unless a transfer restarts.
};

struct SaveOptions {
  bool direct = true;  // Write with O_DIRECT if the file system allows it.
  // Reuse this rank's bytes from the newest step at the target, and write only the rest. In a
  // folder, reused files get a second name (hard links), at a daemon the extents do; a store copies
  // them. Files that this process has not verified since they were written are read first, and
  // those with damage are not reused. At several places everything is written. If a daemon refuses
  // what was reused, as when that step is removed meanwhile, everything is written after all,
  // unless tensors that are not stable were released: then it fails with kConflict, and the next
  // save of this process writes everything, on all ranks.
  bool incremental = false;
  SessionOptions session;  // For ffrecord:// targets.
  // Called at most once, on any thread, when the save no longer reads tensors that are not stable.
  // Not called if the save fails before that.
  std::function<void()> released;
  std::shared_ptr<SaveProgress> progress;  // Updated during the save; may be null.
  // Replace a committed checkpoint of the same step. In a folder and at a daemon the old one stays
  // until the new one is durable; elsewhere it is removed first.
  bool replaces = false;
  // TakeTurn() of when the state was taken, for a save that ends while its caller goes on: what the
  // process has loaded since then is not what this state goes on from. 0: as the save begins.
  std::uint64_t turn = 0;
  // Keys of tensors that training changes. `unchanged`, if given, is called before the step becomes
  // visible if what this rank writes of some of them is bit-identical to what it has written in the
  // last save of this process at the target, which was of `step`. If it fails, the save does, on
  // all ranks.
  std::vector<std::string> training = {};
  std::function<Result<void>(std::uint64_t step, std::span<const std::string> keys)> unchanged = {};
};
FFR_EXPORT std::uint64_t TakeTurn();

// Writes one checkpoint: all rank shards become durable and visible together, or none does
// (format.md, "Checkpoint"). `target` is a folder, ffrecord://host[:port]/run/name, or
// s3://bucket/run/name, with the store configured by the usual AWS variables and files.
// `structure` is the encoded state-dict structure with its small values (format.md, "Values"); that
// of rank 0 is stored.
//
// Returns once the checkpoint is committed. Every rank gets the same outcome. A committed `step`
// that is damaged is replaced; a whole one fails the save with kConflict, after rank 0 has read it,
// if this process has not verified it before. Fails with kIo (ENOSPC: the save leaves nothing
// behind), kUnavailable, kInvalidArgument if two slices of a tensor overlap or leave a gap, or if
// ranks disagree.
FFR_EXPORT Result<Commit> SaveCheckpoint(std::string_view target, std::uint64_t step,
                                         std::span<const TensorView> tensors,
                                         std::span<const std::byte> structure,
                                         CheckpointGroup* group, const SaveOptions& options);

// A checkpoint whose ranks communicate by other means, such as torch.distributed.checkpoint. The
// coordinator calls Begin() and sends attempt() to the other ranks. Every rank writes its shard and
// sends the result of Write() to the coordinator, which commits.
//
// If the coordinator's object is destroyed before Commit(), it abandons the checkpoint. After a
// call of Commit(), whatever its result, it removes nothing that may be visible. Thread-bound.
class FFR_EXPORT CheckpointShards {
 public:
  // Called by the coordinator. Replaces a damaged `step`; fails with kConflict if a whole one is
  // committed there.
  static Result<CheckpointShards> Begin(std::string_view target, std::uint64_t step,
                                        const SaveOptions& options);
  // Called by the other ranks; `attempt` is the coordinator's attempt().
  static Result<CheckpointShards> Join(std::string_view target, std::uint64_t step,
                                       std::string_view attempt, const SaveOptions& options);
  CheckpointShards(CheckpointShards&&) noexcept;
  CheckpointShards& operator=(CheckpointShards&&) noexcept;
  ~CheckpointShards();

  // By which the other ranks join: begins with the attempt, 32 hex digits.
  const std::string& attempt() const noexcept;

  // Looks for tensors that training should have changed, as SaveOptions say; before Write(). A
  // shard that was written counts as saved.
  void Watch(
      std::vector<std::string> training,
      std::function<Result<void>(std::uint64_t step, std::span<const std::string> keys)> unchanged);

  // Makes this rank's shard durable, and returns its description for Commit(). Ranks count from 0.
  // Fails as SaveCheckpoint, for this rank alone.
  Result<std::vector<std::byte>> Write(std::uint32_t rank, std::span<const TensorView> tensors);

  // Makes the checkpoint visible. `shards` are the results of Write(), in rank order. Called once,
  // by the coordinator. Fails with kConflict if another save of the step committed first,
  // kInvalidArgument if the slices do not cover each tensor exactly once, or if `structure` refers
  // to a missing tensor.
  Result<client::Commit> Commit(std::span<const std::vector<std::byte>> shards,
                                std::span<const std::byte> structure);

 private:
  struct Impl;
  explicit CheckpointShards(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// Staging buffer: tensors are copied into it, so that they may change while the copies are saved.
// Keep it from save to save: pages that were used before are several times faster.
//
// Thread-bound, except that any thread may read its memory once Copy() has returned.
class FFR_EXPORT StagingArena {
 public:
  // Reserves `size_bytes`; the system provides pages on first use. Fails with kIo (ENOMEM).
  static Result<StagingArena> Create(std::uint64_t size_bytes);
  StagingArena(StagingArena&&) noexcept;
  StagingArena& operator=(StagingArena&&) noexcept;
  ~StagingArena();

  // The memory, aligned to pages.
  std::span<std::byte> bytes() const noexcept;

  struct CopyJob {
    std::span<const std::byte> from;
    std::uint64_t offset_bytes;  // In the arena.
  };
  // Copies with several threads. Requires that every job fits into the arena.
  void Copy(std::span<const CopyJob> jobs);

 private:
  struct Impl;
  explicit StagingArena(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// A tensor in a checkpoint.
struct StoredTensor {
  std::string key;
  std::string dtype;
  std::vector<std::uint64_t> shape;
};

// A slice of a stored tensor, as one rank saved it.
struct SavedSlice {
  std::string key;
  std::vector<std::uint64_t> offset;
  std::vector<std::uint64_t> extent;
};

// A committed checkpoint, opened and verified down to its manifests. Thread-safe.
class FFR_EXPORT CheckpointReader {
 public:
  // Opens `step` or, with kLatest, the highest step that is committed and complete. Fails with
  // kNotFound if there is none (the message says what exists instead), kCorruption (the message
  // names the file), kIo, kUnavailable.
  static constexpr std::uint64_t kLatest = ~std::uint64_t{0};
  static Result<CheckpointReader> Open(std::string_view target, std::uint64_t step,
                                       const SessionOptions& options);
  // Opens the newest complete step below `below`, as Open() does for kLatest.
  static Result<CheckpointReader> OpenBelow(std::string_view target, std::uint64_t below,
                                            const SessionOptions& options);
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  // Tells this process that it goes on from this step, as a program does that restores a run: if
  // later steps were there when it was opened, the next save at the target gives them up, unless it
  // has a greater number than all of them. SaveCheckpoint() tells the same of what it has saved.
  // Unless it `is_certain`, the caller does not know whether the program goes on from here or only
  // looks: a save whose result depends on that fails with kConflict, but for a process that has
  // loaded or saved nothing else. A program that only looks does not call this. Fails as Open() if
  // it cannot see now what is there; then the next save looks.
  Result<void> GoOn(bool is_certain) const;

  const Commit& commit() const noexcept;
  std::uint32_t world_size() const noexcept;  // Number of ranks of the save.
  std::span<const std::byte> structure() const noexcept;
  const std::vector<StoredTensor>& tensors() const noexcept;  // Ascending by key.
  std::vector<SavedSlice> slices() const;                     // Ascending by key and offset.
  // One for each of tensors(): TensorDigest() of its bytes as they were when they were saved,
  // whatever slices the ranks had. None if the step was saved without.
  std::vector<std::optional<std::uint64_t>> digests() const;
  // With kLatest: why newer steps were skipped, one message per step.
  const std::vector<std::string>& skipped() const noexcept;
  // With kLatest: places that did not answer, and may have newer steps; one message per place.
  const std::vector<std::string>& unseen() const noexcept;

  // Reads tensor slices into their `destination`s. The slices need not be those of the save.
  // Verifies every block that it reads. Fails with kNotFound for an unknown key, kInvalidArgument
  // if a slice or the size of a destination is wrong, kCorruption (the message names file, segment
  // and offset). After an error, destinations may be partly written.
  struct Request {
    std::string key;
    std::vector<std::uint64_t> offset;
    std::vector<std::uint64_t> extent;
    std::span<std::byte> destination;  // Contiguous, row-major, of extent's size.
  };
  Result<void> Read(std::span<const Request> requests) const;

  // Reads every block, padding included; returns a message per damaged one, kDamageMax at most. If
  // no block is damaged, returns a message per slice whose bytes are not those of digests().
  // Fails if blocks cannot be asked for: kUnavailable, kDeadlineExceeded, kDenied.
  static constexpr std::size_t kDamageMax = 1000;
  Result<std::vector<std::string>> Verify() const;

  // Whether Read() would return every byte: one copy at least is whole. Reads the segments that
  // this process has not verified since they were written, if it `reads`, and asks whether the
  // others are there. Fails as Verify().
  Result<bool> IsWhole(bool reads = true) const;

 private:
  friend Result<CheckpointReader> OpenStep(const CheckpointTarget& target, std::uint64_t step);
  struct Impl;
  explicit CheckpointReader(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// The committed steps at `target`, ascending; empty if there are none. A damaged step has `damage`,
// and no attempt if its root manifest is damaged. kManifests reads every manifest and finds every
// segment in its size, as a load of the latest step does; kRoots reads root manifests only. Which
// ones were given up says `target`, or the target `line_of`.
enum class ListDepth : std::uint8_t { kRoots, kManifests };
FFR_EXPORT Result<std::vector<Commit>> ListCheckpoints(std::string_view target,
                                                       const SessionOptions& options,
                                                       ListDepth depth = ListDepth::kManifests,
                                                       std::string_view line_of = {});

// Forgets what this process has loaded and saved, and so where its runs go on: as if it had just
// begun.
FFR_EXPORT void ForgetWhereRunsGoOn();

// Their numbers alone, as one listing finds them. ListCheckpoints reads one step after the other,
// and leaves out those that are removed before it comes to them: if steps come and go, it can find
// none of two of which one was always there.
FFR_EXPORT Result<std::vector<std::uint64_t>> ListSteps(std::string_view target,
                                                        const SessionOptions& options);

// The digest of a tensor's bytes, contiguous and row-major: the XOR of those of its parts, each
// from its `offset_bytes` (below 2^48) on. Zeros add nothing. Equal for other bytes by accident,
// once in 2^64, or if somebody wants that.
FFR_EXPORT std::uint64_t TensorDigest(std::span<const std::byte> bytes,
                                      std::uint64_t offset_bytes = 0);

// XXH3-128 of each tensor's bytes, by several threads: equal on two ranks if the bytes are. Fails
// as a tensor's `fetch` does.
FFR_EXPORT Result<std::vector<std::array<std::byte, 16>>> ContentDigests(
    std::span<const TensorView> tensors);

// XXH3-64 of each block of `block_bytes`, more than 0, seeded with its number: `first` is the
// number of the first block, and the last may be short. A block in another's place differs.
FFR_EXPORT std::vector<std::uint64_t> BlockChecksums(std::span<const std::byte> bytes,
                                                     std::size_t block_bytes, std::uint64_t first);

// Whether the addresses `a` and `b` name one place, however they are spelled, or whether a place of
// one of them, if it is a replicated target, is a place of the other. Folders are compared as the
// system knows them.
FFR_EXPORT bool SharePlace(std::string_view a, std::string_view b);

// Removes a committed step: it disappears at once and for good, then its bytes are freed. Readers
// that have it open may fail. With an `attempt`, only if the step is that save: kNotFound if
// another save has taken its place, even during the call (at a store, up to shortly before). Fails
// with kNotFound, kIo, kUnavailable, kInvalidArgument if `attempt` is not 32 hex digits.
FFR_EXPORT Result<void> RemoveCheckpoint(std::string_view target, std::uint64_t step,
                                         const SessionOptions& options,
                                         std::string_view attempt = {});

// The steps to keep.
struct Retention {
  // Number of newest whole steps to keep, 1 or more. Newer damaged steps do not count, and stay as
  // well; so do steps whose root manifest is damaged. Steps that were given up do not count and, if
  // that many others are whole, do not stay.
  std::uint64_t keep_last = 1;
  std::uint64_t keep_every = 0;  // Also keep steps that this divides; 0: none.
  // A step counts as whole if every block is: segments that this process has not verified since
  // they were written are read, and the others have to be there still. Without, if every manifest
  // verifies and every segment exists with its size.
  bool verify = true;
  bool dry_run = false;  // Remove nothing; return the steps that would be removed.
};

// Removes all other steps, oldest first, and returns them. Never removes the last step that can be
// loaded: if fewer than `keep_last` steps are whole, it removes nothing. Call it in one process.
// Fails with kInvalidArgument, and as ListCheckpoints and RemoveCheckpoint; steps that it removed
// before a failure stay removed.
FFR_EXPORT Result<std::vector<Commit>> PruneCheckpoints(std::string_view target,
                                                        const Retention& retention,
                                                        const SessionOptions& options);

// Copies the committed `step` of one target to another: the same attempt, the same bytes. The copy
// becomes visible when it is complete. A new call after a failed or killed copy does not send again
// what has arrived, and sends nothing if the copy is whole. A damaged copy is replaced. Every block
// is verified as it is read, and read from another copy of the source if there is one. With
// `compresses`, segments take less space at the destination and reads are slower; readers return
// the same bytes. Compression keeps one segment at a time in a temporary file below TMPDIR, or
// /var/tmp. Fails with kNotFound, kCorruption (a manifest or a block of the source), kConflict if
// another save of that step is committed at the destination, kIo, kDenied, kUnavailable. That save
// is replaced, once the copy is whole, if it is `replaces` (32 hex digits), or if the run has given
// it up: where training went back, its copies go back with the first step that is copied since.
// That the destination holds copies of this run, `is_of_run` says, or a save that is at both
// places.
FFR_EXPORT Result<Commit> CopyCheckpoint(std::string_view from, std::uint64_t step,
                                         std::string_view to, const SessionOptions& options,
                                         bool compresses = false, std::string_view replaces = {},
                                         bool is_of_run = false);

}  // namespace ffrecord::client
