#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace ffrecord::client {

// A box of an array: where it begins, and how far it reaches in each dimension. Borrowed.
struct Box {
  std::span<const std::uint64_t> offset;
  std::span<const std::uint64_t> extent;
};

// Bytes that two boxes have in common and that are contiguous in both.
struct ByteRun {
  std::uint64_t from_bytes;  // In the first box, stored row-major.
  std::uint64_t to_bytes;    // In the second box.
  std::uint64_t size_bytes;
};

// Calls `use` for each run of the intersection of two boxes of one array, ascending in both; the
// runs are as long as they can be. For 0-d boxes there is one run of one element. Pure.
void ForEachRun(const Box& from, const Box& to, std::uint64_t element_size_bytes,
                const std::function<void(const ByteRun&)>& use);

}  // namespace ffrecord::client
