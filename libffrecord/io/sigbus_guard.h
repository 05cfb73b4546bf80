#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ffrecord {

// A range of memory whose pages read as zeros where the file below them is gone, instead of ending
// the process with SIGBUS. Made after the mapping, destroyed before it.
//
// The first guard installs a handler, chained to the previous one: faults elsewhere, and signals
// that a process sent, still reach that one. A program that later installs its own handler without
// chaining removes this protection. If it restores the default, the next guard installs ours again,
// for all ranges. Thread-safe; inherited by forked children.
class SigbusGuard {
 public:
  // The access to the private memory that replaces a lost page: the same as that of the range.
  enum class Access : std::uint8_t { kRead, kReadWrite };

  SigbusGuard() noexcept = default;
  SigbusGuard(const void* begin, std::size_t size_bytes, Access access = Access::kRead);
  SigbusGuard(SigbusGuard&& other) noexcept;
  SigbusGuard& operator=(SigbusGuard&& other) noexcept;
  ~SigbusGuard();

  // Installs our handler in front of one that was installed since and does not call ours, as
  // torch's is in its worker processes. Faults outside our ranges still reach that one. Does
  // nothing while no range is guarded. Requires that no other thread does the same.
  static void TakeOver() noexcept;

  // Whether a page of this range was ever lost. It keeps reading as zeros, even if the file has it
  // again, and causes no new fault.
  bool has_lost() const noexcept;

  // How many pages this process has lost so far. Bytes that were copied between two equal counts
  // came from the files.
  static std::uint64_t lost_count() noexcept;

  struct Range;  // An entry of the table that the handler reads.

 private:
  Range* range_ = nullptr;
};

}  // namespace ffrecord
