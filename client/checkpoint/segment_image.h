#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/client/checkpoint.h>

#include "client/checkpoint/plan.h"
#include "libffrecord/format/checkpoint_segment.h"

namespace ffrecord::client {

// The bytes of one segment file as they will be, made when asked for: payload from the tensors,
// which are borrowed for its life, then the table of block checksums, padding and trailer.
//
// Each block is hashed as it is handed out, so that hashing runs beside the writing of the blocks
// before it. A second request for a block hashes it anew. Thread-bound.
class SegmentImage {
 public:
  SegmentImage(const StoredSegment& segment, std::span<const Placement> placements,
               std::span<const TensorView> tensors);

  const SegmentLayout& layout() const noexcept { return layout_; }

  // Bytes from `offset_bytes` on, at least one and at most `size_bytes_max`; valid until the next
  // call. Requires offset_bytes < layout().file_size_bytes, and that every block of the payload has
  // been asked for before anything behind it is.
  std::span<const std::byte> At(std::uint64_t offset_bytes, std::uint64_t size_bytes_max);

  // Of the table handed out. Requires that the whole file has been asked for.
  const Digest128& table_digest() const noexcept { return table_digest_; }

 private:
  std::span<const std::byte> Payload(std::uint64_t offset_bytes);
  std::span<const std::byte> Contiguous(std::uint64_t offset_bytes) const;
  void Gather(std::uint64_t begin, std::uint64_t end);
  std::span<const std::byte> DataOf(const Placement& placement) const;
  std::size_t FirstEndingAfter(std::uint64_t offset_bytes) const;
  void MakeEnd();

  SegmentId id_;
  SegmentLayout layout_;
  std::span<const Placement> placements_;
  std::span<const TensorView> tensors_;
  std::vector<std::uint64_t> checks_;
  std::vector<std::byte> gathered_;  // The last block that no single tensor filled.
  std::vector<std::byte> end_;       // All behind the payload.
  Digest128 table_digest_{};
};

}  // namespace ffrecord::client
