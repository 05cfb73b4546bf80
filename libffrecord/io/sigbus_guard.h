#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ffrecord {

// A range of memory whose pages read as zeros where the file below them is gone, instead of ending
// the process with SIGBUS. Made after the mapping, destroyed before it.
//
// The first one installs a handler, chained to the one before it: a fault elsewhere, and a signal
// that someone sent, still reach that. A program that installs a handler of its own later, and
// does not chain it, takes this protection away; where it sets the default again, the next guard
// brings ours back, for all ranges. Thread-safe; inherited by forked children.
class SigbusGuard {
 public:
  // What a lost page becomes: private memory that may be written to, where the range is.
  enum class Access : std::uint8_t { kRead, kReadWrite };

  SigbusGuard() noexcept = default;
  SigbusGuard(const void* begin, std::size_t size_bytes, Access access = Access::kRead);
  SigbusGuard(SigbusGuard&& other) noexcept;
  SigbusGuard& operator=(SigbusGuard&& other) noexcept;
  ~SigbusGuard();

  // Puts the handler in front of one that was installed since and does not call ours, as torch does
  // in its worker processes; what it does not know still reaches that one. Does nothing where no
  // range is guarded yet. Requires that no other thread does the same.
  static void TakeOver() noexcept;

  // Whether a page of this range was lost, now or ever: it reads as zeros, even if the file has it
  // again, and no new fault tells of it.
  bool has_lost() const noexcept;

  // How many pages of this process were lost so far: bytes copied between two equal counts were
  // those of files.
  static std::uint64_t lost_count() noexcept;

  struct Range;  // An entry of the table that the handler reads.

 private:
  Range* range_ = nullptr;
};

}  // namespace ffrecord
