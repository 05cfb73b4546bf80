#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

namespace ffrecord::client {

// The files behind one name of a daemon or a cluster, as plain bytes: those of a dataset, or of one
// step of a checkpoint (RUN/step-000001200). Nothing in them is interpreted: a RecordReader and a
// CheckpointReader do that.
//
// The files stay those of the moment in which the name was opened: if the name is replaced, reads
// return the old bytes as long as the daemon has them, and fail with kNotFound afterwards.
//
// Thread-safe; copies share one connection, and a forked child may go on using them.
class FFR_EXPORT ServedFiles {
 public:
  // A file is verified in parts of this size, the last of which may be shorter: a read that has a
  // whole part, from a multiple of this on, is checked. Other reads are not.
  static constexpr std::uint64_t kVerifiedBytes = std::uint64_t{64} << 20;

  struct File {
    std::string name;  // In the served name; those of checkpoints have folders.
    std::uint64_t size_bytes = 0;
    std::string version;  // 16 hex digits that change if any byte of the file changes.
  };

  // `address` is ffrecord://host[:port][,host[:port]...]/name. `give_up` as for Read(). Fails as
  // OpenDataset does for it.
  static Result<ServedFiles> Open(std::string_view address, const SessionOptions& options,
                                  const std::function<bool()>& give_up = {});

  const std::vector<File>& files() const noexcept;

  // Bytes [offset_bytes, offset_bytes + destination.size()) of a file, to be put at `destination`.
  struct Range {
    std::uint32_t file = 0;  // Index into files().
    std::uint64_t offset_bytes = 0;
    std::span<std::byte> destination;  // Borrowed for the call.
  };

  // Reads all ranges in one submission; the ranges may overlap, their destinations may not. A whole
  // part that fails its check is read from the other nodes of a cluster. After an error,
  // destinations may be partly written.
  //
  // Fails with kInvalidArgument, before any read, if a range passes the end of its file; kNotFound
  // if the name was replaced and its old bytes are gone; kCorruption if no node has a whole part
  // undamaged; kIo, kUnavailable, kDeadlineExceeded.
  // `give_up`, if given, is called on the calling thread about ten times per second during a long
  // read: kDeadlineExceeded once it returns true.
  Result<void> Read(std::span<const Range> ranges, const std::function<bool()>& give_up = {}) const;

 private:
  struct Impl;
  explicit ServedFiles(std::shared_ptr<const Impl> impl) noexcept;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace ffrecord::client
