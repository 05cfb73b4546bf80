#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "libffrecord/io/append_file.h"
#include "libffrecord/source/last_failure.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// Reads a file that is about to be extended, through the descriptor that holds its lock. Borrows
// the file; only the thread that uses it may extend the file meanwhile. Not for forked children.
class LockedFile final : public RangeReader {
 public:
  explicit LockedFile(AppendFile& file) : file_(file), name_(file.path().string()) {}

  std::size_t file_count() const noexcept override { return 1; }
  const std::string& file_name(std::uint32_t) const noexcept override { return name_; }
  std::uint64_t file_size_bytes(std::uint32_t) const noexcept override {
    return file_.old_size_bytes();
  }
  std::uint32_t alignment_bytes(std::uint32_t) const noexcept override { return 1; }
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override;
  std::string Trouble(std::uint32_t, ErrorCode status) const override {
    return last_failure_.Of(status);
  }

 private:
  AppendFile& file_;
  const std::string name_;
  mutable std::mutex mutex_;  // Guards the file, whose engine serves one thread at a time.
  mutable LastFailure last_failure_;
};

}  // namespace ffrecord
