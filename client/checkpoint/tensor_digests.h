#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ffrecord/client/checkpoint.h>

#include "client/checkpoint/box_runs.h"
#include "libffrecord/format/checkpoint_segment.h"

namespace ffrecord::client {

// The digest of a tensor is LinearDigest() of its bytes, contiguous and row-major. That of a box is
// what it adds to the digest of its tensor: ranks on any mesh have the same tensor if the XOR of
// the digests of all boxes is the same. format.md, "Digests of tensors".

// Digest of the bytes of `box` from `offset_bytes` on. `shape` is that of the tensor, in elements
// of `element_size_bytes`. Requires that the bytes are within the box. Pure.
std::uint64_t DigestInTensor(const Box& box, std::span<const std::uint64_t> shape,
                             std::uint64_t element_size_bytes, std::uint64_t offset_bytes,
                             std::span<const std::byte> bytes);

// The same for bytes of a tensor view whose plan has been made: its size fits its extent.
std::uint64_t DigestOf(const TensorView& tensor, std::uint64_t offset_bytes,
                       std::span<const std::byte> bytes);

// The digests of the boxes in one segment, summed up while blocks of its payload pass by in any
// order, on any thread. Copies are one and the same.
class BoxDigests {
 public:
  // A box in the segment. Its spans are borrowed.
  struct Place {
    std::uint64_t offset_bytes;  // In the payload.
    std::uint64_t size_bytes;
    Box box;
    std::span<const std::uint64_t> shape;
    std::uint64_t element_size_bytes;
  };
  // Ascending by offset.
  BoxDigests(std::vector<Place> places, std::uint64_t payload_size_bytes);

  // The block of kSegmentBlockSize at `offset_bytes`, or the last one, which may be short. A block
  // that passes by again is not counted again. Thread-safe.
  void AddBlock(std::uint64_t offset_bytes, std::span<const std::byte> block);

  // Whether all blocks have passed by.
  bool is_complete() const;

  // One for each place. Requires that all blocks have passed by.
  std::vector<std::uint64_t> sums() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ffrecord::client
