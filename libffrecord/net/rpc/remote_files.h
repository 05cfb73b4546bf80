#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/rpc/session.h"
#include "libffrecord/source/file_copies.h"
#include "libffrecord/source/last_failure.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::net {

// The files of one manifest, read from the daemon that serves them: one BATCH_READ for a call, its
// bytes received where they are wanted, or, over shared memory, read there by the daemon itself. A
// queue has many calls under way on one connection.
//
// If the daemon goes away, a call connects again and asks for what has not arrived, until
// `options.timeout` has passed; then each range that is missing gets kUnavailable or
// kDeadlineExceeded. kNotFound: the extent is no longer there, since the name was removed and the
// daemon has started anew since. Thread-safe; a forked child may go on using it.
class RemoteFiles final : public RangeReader, public FileCopies {
 public:
  // `location` is for the names of the files. Holds the session.
  RemoteFiles(std::shared_ptr<Session> session, DatasetManifest manifest, std::string location,
              const SessionOptions& options);
  ~RemoteFiles() override;

  std::size_t file_count() const noexcept override { return manifest_.files.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override { return names_[file]; }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return manifest_.files[file].size_bytes;
  }
  std::uint32_t alignment_bytes(std::uint32_t) const noexcept override { return 1; }
  const CoalescingOptions& coalescing() const noexcept override { return kDaemonCoalescing; }
  Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const override {
    return session_->TakeMemory(size_bytes);
  }
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override;
  Result<std::unique_ptr<RangeQueue>> MakeQueue(QueueUse use) const override;
  // The daemon has one copy, which is read once more: the daemon receives a report of the damage,
  // and looks what is wrong. For kDoubtEveryS from then on, other damage in that extent is not
  // reported. For kDoubtEveryS from then on, other damage in that extent is not told.
  Result<PooledBuffer> ReadFromCopies(std::uint32_t file, std::uint64_t offset_bytes,
                                      std::uint64_t size_bytes, const IsRight& is_right,
                                      Patience& patience) const override;
  std::vector<std::string> DamagedCopies(std::uint32_t /*file*/) const override { return {}; }
  std::string Trouble(std::uint32_t, ErrorCode status) const override {
    const std::string last = last_failure_.Of(status);
    if (!last.empty() || status != ErrorCode::kNotFound) return last;
    return session_->peer() +
           " has it no more: the name was removed, or that daemon is a node of a cluster now and "
           "others have it; open it again";
  }
  // From where the nodes of a cluster fetch the file; empty: from nowhere.
  const std::string& origin_address(std::uint32_t file) const noexcept {
    return manifest_.files[file].origin.address;
  }

  // Whether extents are members of stripes: a node that lacks one can bring it.
  bool has_stripes() const noexcept { return manifest_.has_code(); }

  // --- For its queues ---
  Session& session() const noexcept { return *session_; }
  std::chrono::milliseconds timeout() const noexcept { return options_.timeout; }
  std::uint64_t number() const noexcept { return number_; }
  std::span<const ExtentId> extents() const noexcept { return extents_; }
  std::uint32_t first_extent(std::uint32_t file) const noexcept { return first_extent_[file]; }
  bool Passes(const RangeRead& range) const noexcept { return PassesEnd(range); }
  void NoteFailure(const Error& error) const { last_failure_.Note(error); }

 private:
  static constexpr std::uint32_t kDoubtEveryS = 10;

  const std::shared_ptr<Session> session_;
  const DatasetManifest manifest_;
  const SessionOptions options_;
  const std::uint64_t number_;               // Number of this set of files, for Connection::Bind.
  std::vector<std::string> names_;           // Names of the files, for messages.
  std::vector<std::uint32_t> first_extent_;  // Each file's first one, among all of the manifest.
  std::vector<ExtentId> extents_;            // Extents of all files.
  mutable LastFailure last_failure_;         // Failure of calls that gave up.
  // The extent whose damage was reported last, in the high half, and in which second.
  mutable std::atomic<std::uint64_t> told_{0};
};

}  // namespace ffrecord::net
