#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>
#include <ffrecord/store_report.h>

namespace ffrecord {

// Files that the program reads itself, for example with the client of a store that this library
// does not support. client::OpenDelegated makes a reader of them.
//
// The reader puts the ranges that it needs into this queue, and waits. Threads of the program take
// them in groups, in the order of arrival, and answer each range. Offsets and sizes are in bytes.
// An answer is copied during the call, unless its reader has given up.
//
// Thread-safe. A forked child begins with an empty queue, which threads of the child must serve.
class FFR_EXPORT DelegatedReads {
 public:
  struct File {
    std::string name;  // For messages; no secrets.
    std::uint64_t size_bytes = 0;
    // Text that identifies this version of the file at this place: another version, or a file of
    // the same name on another host, must have another text. Empty: unknown; no cache is possible.
    std::string version;
  };

  struct Options {
    // A range fails with kDeadlineExceeded if it is not answered in this time (one more second for
    // each 64 KB) after it was taken, or if no range is taken for this time.
    std::chrono::milliseconds timeout{30'000};
    // Bounds of a group; a larger range is a group of its own. At least 1.
    std::uint32_t group_count_max = 32;
    std::uint64_t group_bytes_max = std::uint64_t{16} << 20;
  };

  // Bytes [offset_bytes, offset_bytes + size_bytes) of a file; at least one, inside the file.
  struct Range {
    std::uint64_t id = 0;
    std::uint32_t file = 0;
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;
  };

  struct Group {
    std::vector<Range> ranges;    // Empty: the reader is closed; end the thread.
    bool is_help_wanted = false;  // Others wait, and no thread waits in Take() for them.
  };

  // Whether a range that has failed is put into the queue again, with back-off, until the timeout.
  enum class Retry : std::uint8_t {
    kNever,
    kLater,      // The failure may pass.
    kThrottled,  // As kLater: the store asks for fewer requests.
  };

  DelegatedReads(std::vector<File> files, const Options& options);
  DelegatedReads(const DelegatedReads&) = delete;
  DelegatedReads& operator=(const DelegatedReads&) = delete;
  ~DelegatedReads();

  const std::vector<File>& files() const noexcept;

  // Waits until ranges are wanted, or the reader is closed.
  Group Take();

  // Answers a range with its bytes. Too few bytes count as a temporary failure (kLater), too many
  // as kNever. Has no effect if the range was answered before, or if nobody waits for it any more.
  void Answer(std::uint64_t id, std::span<const std::byte> bytes);
  // Answers that a range cannot be read. Readers see the code and the message of `error`.
  void Refuse(std::uint64_t id, Error error, Retry retry);
  // Whether somebody waits for an answer.
  bool IsWanted(std::uint64_t id) const;

  // Ends Take() of all threads of this process, now and later. Ranges that wait fail with
  // kUnavailable.
  void Close();

  // For the library's own layers.
  struct Impl;
  Impl& impl() const noexcept { return *impl_; }

 private:
  const std::unique_ptr<Impl> impl_;
};

}  // namespace ffrecord
