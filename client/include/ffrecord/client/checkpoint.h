#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/client/dataset.h>
#include <ffrecord/export.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

namespace ffrecord::client {

// One tensor, or the box of it that this rank holds, in caller's memory: contiguous, row-major.
struct TensorView {
  std::string key;                    // Path in the state's tree; unique in a part.
  std::string dtype;                  // "float32", "bfloat16", ...: the names of format.md.
  std::vector<std::uint64_t> shape;   // Of the whole tensor.
  std::vector<std::uint64_t> offset;  // Of this box in it; zeros if whole.
  std::vector<std::uint64_t> extent;  // Of this box; equal to shape if whole.
  std::span<const std::byte> data;    // Of no address, but of its size, if `fetch` is given.
  // Of a tensor whose bytes are not in one piece of this process's memory: copies those of the box
  // from fetch_offset_bytes + `offset_bytes` on. Called piece by piece, on any thread, also for the
  // same piece twice; must be safe to be called on several threads.
  std::function<Result<void>(std::uint64_t offset_bytes, std::span<std::byte> into)> fetch = {};
  std::uint64_t fetch_offset_bytes = 0;
  // Nobody changes `data` until the save has ended; else not until SaveOptions::released.
  bool is_stable = false;
};

// How the ranks of one save talk: gather the same number of bytes from each and give all to all.
// Fails, on every rank alike, when a rank is gone. Not needed for a world of one.
class FFR_EXPORT CheckpointGroup {
 public:
  virtual ~CheckpointGroup() = default;
  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t size() const = 0;
  // `mine` from each rank, in rank order; sizes may differ.
  virtual Result<std::vector<std::vector<std::byte>>> AllGather(
      std::span<const std::byte> mine) = 0;
};

struct Commit {
  std::uint64_t step = 0;
  std::string attempt;           // 32 hex digits, unique to this save.
  std::uint64_t size_bytes = 0;  // Of all ranks' tensors.
};

// How far this rank's tensors have come on their way to the target: what was hashed, just before it
// is written. All of it is not yet a commit. Thread-safe.
struct SaveProgress {
  std::atomic<std::uint64_t> total_bytes{0};  // 0 until the save is planned.
  std::atomic<std::uint64_t> done_bytes{0};   // At most total_bytes, but for a transfer begun anew.
};

struct SaveOptions {
  bool direct = true;  // Write past the page cache where the file system allows it.
  // Keep what the newest step at the target holds of this rank's bytes, and write only the rest: in
  // a folder, as second names of its files (hard links). At a daemon everything is written.
  bool incremental = false;
  SessionOptions session;  // For ffrecord:// targets.
  // Called at most once, on any thread, when no tensor that is not stable is read any more; not if
  // the save fails before.
  std::function<void()> released;
  std::shared_ptr<SaveProgress> progress;  // Told of, if there is one.
  // Take the place of what is committed under that step, if there is something. In a folder and at
  // a daemon it stays until all of the new one is durable; elsewhere it is removed first.
  bool replaces = false;
};

// Writes one checkpoint: all ranks' parts durable and visible together, or none
// (format.md, "Checkpoint"). `target` is a folder, ffrecord://host[:port]/run/name, or
// s3://bucket/run/name of a store that the usual AWS variables and files name.
// `tree` is the encoded tree of small values (format.md, "Values"), taken from rank 0.
//
// Returns once the checkpoint is committed. Every rank gets the same outcome. Fails with kConflict
// if `step` is already committed there, kIo (ENOSPC: nothing of it is left), kUnavailable,
// kInvalidArgument if two boxes of a tensor overlap or leave a gap, or ranks disagree.
FFR_EXPORT Result<Commit> SaveCheckpoint(std::string_view target, std::uint64_t step,
                                         std::span<const TensorView> tensors,
                                         std::span<const std::byte> tree, CheckpointGroup* group,
                                         const SaveOptions& options);

// A checkpoint whose ranks talk by means of their own, such as torch.distributed.checkpoint: the
// coordinator begins it and tells the others its name, every rank writes its part and hands what
// that returns to the coordinator, who commits. Destroyed before Commit(), the coordinator's object
// abandons the checkpoint; once Commit() was called nothing that may be visible is removed,
// whatever became of it. Thread-bound.
class FFR_EXPORT CheckpointParts {
 public:
  // For the coordinator. Fails with kConflict if `step` is committed there already.
  static Result<CheckpointParts> Begin(std::string_view target, std::uint64_t step,
                                       const SaveOptions& options);
  // For the other ranks; `attempt` is the coordinator's attempt().
  static Result<CheckpointParts> Join(std::string_view target, std::uint64_t step,
                                      std::string_view attempt, const SaveOptions& options);
  CheckpointParts(CheckpointParts&&) noexcept;
  CheckpointParts& operator=(CheckpointParts&&) noexcept;
  ~CheckpointParts();

  const std::string& attempt() const noexcept;  // 32 hex digits.

  // Makes this rank's part durable, and says what the coordinator needs to know of it. Ranks count
  // from 0. Fails as SaveCheckpoint does, for this rank alone.
  Result<std::vector<std::byte>> Write(std::uint32_t rank, std::span<const TensorView> tensors);

  // Makes the checkpoint visible, of `parts` in rank order. For the coordinator, once. Fails with
  // kConflict if another save of the step was faster, kInvalidArgument if tensors are not covered
  // exactly once or `tree` refers to one that is not there.
  Result<client::Commit> Commit(std::span<const std::vector<std::byte>> parts,
                                std::span<const std::byte> tree);

 private:
  struct Impl;
  explicit CheckpointParts(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// Memory that tensors are copied to, so that they may change while their copies are saved. It stays
// with its owner from save to save: pages that were used before are several times faster.
//
// Thread-bound, but for its memory, which others may read once Copy() has returned.
class FFR_EXPORT StagingArena {
 public:
  // Room for `size_bytes`; pages are taken from the system as they are first used. Fails with kIo
  // (ENOMEM).
  static Result<StagingArena> Create(std::uint64_t size_bytes);
  StagingArena(StagingArena&&) noexcept;
  StagingArena& operator=(StagingArena&&) noexcept;
  ~StagingArena();

  // Aligned to pages.
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

// Where one stored tensor lies; what a loader asks for.
struct StoredTensor {
  std::string key;
  std::string dtype;
  std::vector<std::uint64_t> shape;
};

// A box of a stored tensor, as one rank saved it.
struct SavedBox {
  std::string key;
  std::vector<std::uint64_t> offset;
  std::vector<std::uint64_t> extent;
};

// A committed checkpoint, opened and verified down to its manifests. Thread-safe.
class FFR_EXPORT CheckpointReader {
 public:
  // `step` or, with kLatest, the highest step that is committed and whole. Fails with kNotFound if
  // there is none (the message says what was found instead), kCorruption (names the file), kIo,
  // kUnavailable.
  static constexpr std::uint64_t kLatest = ~std::uint64_t{0};
  static Result<CheckpointReader> Open(std::string_view target, std::uint64_t step,
                                       const SessionOptions& options);
  // Opens the newest step below `below` that is whole, as Open() does for kLatest.
  static Result<CheckpointReader> OpenBelow(std::string_view target, std::uint64_t below,
                                            const SessionOptions& options);
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  const Commit& commit() const noexcept;
  std::uint32_t world_size() const noexcept;  // Of the save.
  std::span<const std::byte> tree() const noexcept;
  const std::vector<StoredTensor>& tensors() const noexcept;  // Ascending by key.
  std::vector<SavedBox> boxes() const;                        // Ascending by key and offset.
  // With kLatest: why newer steps were passed over, one message for each.
  const std::vector<std::string>& skipped() const noexcept;

  // Reads boxes into `destination`s, whatever the boxes of the save were. Every block read is
  // verified. Fails with kNotFound for a key that is not there, kInvalidArgument if a box or a
  // destination's size is wrong, kCorruption (names file, segment, offset): destinations may then
  // be partly written.
  struct Request {
    std::string key;
    std::vector<std::uint64_t> offset;
    std::vector<std::uint64_t> extent;
    std::span<std::byte> destination;  // Contiguous, row-major, of extent's size.
  };
  Result<void> Read(std::span<const Request> requests) const;

  // Reads every block there is, also padding, and says what is wrong with which: a message for
  // each, kDamageMax at most; none if all is well. Fails only if reading does.
  static constexpr std::size_t kDamageMax = 1000;
  Result<std::vector<std::string>> Verify() const;

 private:
  struct Impl;
  explicit CheckpointReader(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// The committed steps at `target` whose root manifest verifies, ascending. Empty if there are none.
FFR_EXPORT Result<std::vector<Commit>> ListCheckpoints(std::string_view target,
                                                       const SessionOptions& options);

// Makes a committed step disappear, at once and for good, then frees its bytes. Readers that have
// it open may fail. Fails with kNotFound, kIo, kUnavailable.
FFR_EXPORT Result<void> RemoveCheckpoint(std::string_view target, std::uint64_t step,
                                         const SessionOptions& options);

// Which steps stay.
struct Retention {
  // So many of the newest that are whole: every manifest verifies, every segment is there in its
  // size. 1 or more. Newer ones that are not whole do not count, and stay as well.
  std::uint64_t keep_last = 1;
  std::uint64_t keep_every = 0;  // And those that this divides; 0: none.
  bool verify = false;           // Every block is read as well before a step counts.
  bool dry_run = false;          // Remove nothing, and say what would go.
};

// Removes the others, oldest first; returns those removed. Never the last step that can be loaded:
// where fewer than `keep_last` are whole, nothing is removed. Call it in one process. Fails with
// kInvalidArgument, and as ListCheckpoints and RemoveCheckpoint do; what went before stays gone.
FFR_EXPORT Result<std::vector<Commit>> PruneCheckpoints(std::string_view target,
                                                        const Retention& retention,
                                                        const SessionOptions& options);

// Copies the committed `step` of one target to another as it is: the same attempt, the same bytes.
// It is visible there when all of it is. What a copy that failed or was killed has sent is not sent
// again. Done at once if it is there already. If it `compresses`, the segments take less room
// there, for slower reads; whoever reads them sees no difference. Meanwhile one of them is below
// TMPDIR, or /var/tmp. Fails with kNotFound, kCorruption (a manifest of the source), kConflict if
// another save of that step is committed there, kIo, kDenied, kUnavailable.
FFR_EXPORT Result<Commit> CopyCheckpoint(std::string_view from, std::uint64_t step,
                                         std::string_view to, const SessionOptions& options,
                                         bool compresses = false);

}  // namespace ffrecord::client
