#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// The subject of an event of a profile. Coarse kinds, a few per step, have a ring of their own, so
// that thousands of fine ones do not push them out. Numbers are those of the file and never change.
enum class ProfileKind : std::uint16_t {
  kWait = 1,        // The training thread waits for a batch.
  kBackward = 2,    // It runs autograd.
  kOptimizer = 3,   // It steps an optimizer.
  kSave = 4,        // A save blocks it. `detail`: the step of the checkpoint.
  kCommit = 5,      // A save writes and commits, on any thread. `detail` as for kSave.
  kLoad = 6,        // A checkpoint is loaded.
  kCollective = 7,  // `detail`: its number in its group; `first`: waited for its turn, in us.
  kSource = 8,      // A loader begins; `name`: where its records are.

  kRead = 32,        // A batch is read. `first`: waiting for storage, `second`: for submission, us.
  kDaemonRead = 33,  // A daemon answers. `first`: on its disks, `second`: in its queue, us.
  kDecode = 34,      // Decoders, transforms.
  kCollate = 35,
  kFetch = 36,     // All of the reading and decoding of a batch in Python.
  kTransfer = 37,  // A batch crosses processes, or goes to a device.
  kStage = 38,     // Tensors are copied for a save.
  kSubmit = 39,    // The order is computed, requests are made.
  kUpload = 40,    // A part of an upload goes to a daemon. `first`: pacing has held it before, us.
};
inline constexpr std::uint16_t kProfileFineKinds = 32;  // From here on.

// Times are of the steady clock, in nanoseconds.
struct ProfileEvent {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t detail = 0;
  std::uint32_t first = 0;
  std::uint32_t second = 0;
  std::uint16_t kind = 0;
  std::uint16_t name = 0;  // Index of Profile::Name(); 0: none.
};

// The profile of this process: events of fixed size in rings of a mapped file, which has them even
// if the process is killed. `docs/internals/profile-format.md` describes the file.
//
// There is one per process, off until Open(). A forked child is off again, and opens its own. All
// functions are thread-safe, and do not wait for the disk: the kernel writes the pages. Recording
// allocates nothing and takes no lock.
class FFR_EXPORT Profile {
 public:
  struct Options {
    std::uint32_t coarse_events = 1 << 17;  // Rounded up to a power of two, at most 1 << 24.
    std::uint32_t fine_events = 1 << 17;    // Rounded in the same way.
    std::int32_t rank = -1;                 // -1: unknown.
    std::int32_t local_rank = -1;
    std::int32_t world_size = -1;
    std::string command{};  // For people; cut after 1,023 bytes.
  };

  // Makes the file at `path` and allocates all of its blocks, so that a full disk fails here and
  // not later; replaces a profile that is on, which goes on if this fails. Fails with kIo,
  // kInvalidArgument.
  static Result<void> Open(const std::string& path, const Options& options);
  // Writes into the file that another process has opened. Fails with kIo, kCorruption.
  static Result<void> Attach(const std::string& path);
  // Off from now on; the file of the process that opened it says that it ended well. Nothing
  // happens if it is off.
  static void Close() noexcept;
  static bool is_on() noexcept;

  // A number for a name, the same each time while the profile is on. 0 if it is off, or has no room
  // for more names. Takes a lock: callers keep the number.
  static std::uint16_t Name(std::string_view name) noexcept;
  // Changes when the numbers of names become invalid.
  static std::uint32_t generation() noexcept;

  static void Record(const ProfileEvent& event) noexcept;

  // Notes that something has begun: it stands in the file as unfinished until End(). Returns a
  // token; 0 if the profile is off or 128 things are unfinished, of fine kinds 64.
  static std::uint64_t Begin(const ProfileEvent& event) noexcept;
  // Ends it and records it. With token 0 it only records.
  static void End(std::uint64_t token, const ProfileEvent& event) noexcept;

  // Ends it and records nothing: it was given up.
  static void Drop(std::uint64_t token) noexcept;

  // Once they are known.
  static void SetRank(std::int32_t rank, std::int32_t world_size) noexcept;
};

}  // namespace ffrecord
