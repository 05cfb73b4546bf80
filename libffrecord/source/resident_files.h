#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ffrecord {

// The files of a RangeReader as this process has them in its address space: records whose pages are
// in memory are copied from there without a read. Thread-safe.
class ResidentFiles {
 public:
  // The bytes of the whole file, if copying from the mapping is the best way to read a record whose
  // pages are in memory; empty if all records are to be read. Touching a page that is not in memory
  // waits for that page. Pages that the file has lost read as zeros, so verify the copy; without a
  // checksum, a copy is valid only if HasShrunk() is false after it was made.
  virtual std::span<const std::byte> Mapped(std::uint32_t file) const = 0;

  // Tells which parts of Mapped() hold the file's bytes; null: all of them do. Other parts read as
  // zeros. The answer may be out of date when the bytes are copied, so use only copies whose
  // checksum was verified.
  class Presence {
   public:
    virtual bool Has(std::uint64_t offset_bytes, std::uint64_t size_bytes) const = 0;

   protected:
    virtual ~Presence() = default;
  };
  virtual const Presence* PresenceOf(std::uint32_t /*file*/) const { return nullptr; }

  // Whether the file is smaller now than when it was opened.
  virtual bool HasShrunk(std::uint32_t /*file*/) const { return false; }

 protected:
  ~ResidentFiles() = default;
};

}  // namespace ffrecord
