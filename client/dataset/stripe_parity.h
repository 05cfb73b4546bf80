#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "client/dataset/extent_legs.h"
#include "libffrecord/base/erasure_code.h"

namespace ffrecord::client {

// The parity of one stripe, computed from its data members as they are read to be sent. Holds
// `code.parity` extents. Thread-bound.
class StripeParity {
 public:
  // `size_bytes`: of the largest member.
  StripeParity(const ErasureCode& code, std::uint64_t size_bytes)
      : code_(code), sums_(code.parity, std::vector<std::byte>(size_bytes)) {}

  // The next data member begins: `extent` of `source`. Returns a source of the same bytes, which
  // adds each once, however often it is read. Valid until the next call; borrows both.
  ExtentSource Begin(const SourcedExtent& extent, const ExtentSource& source);
  // Ends it: reads what nobody has read, as of an extent that was there already.
  Result<void> End();

  std::span<const std::byte> row(std::size_t row) const { return sums_[row]; }

 private:
  void Add(std::uint64_t offset_bytes, std::span<const std::byte> bytes);

  const ErasureCode code_;
  std::vector<std::vector<std::byte>> sums_;
  std::size_t member_count_ = 0;
  const SourcedExtent* extent_ = nullptr;
  const ExtentSource* source_ = nullptr;
  std::uint64_t added_bytes_ = 0;  // Bytes of the extent that were added, from its begin.
};

}  // namespace ffrecord::client
