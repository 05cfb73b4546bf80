#pragma once

#include <cstdint>

namespace ffrecord {

// The requests of one reader to its object stores, and the use of its cache, in this process.
struct StoreReport {
  std::uint64_t requests = 0;        // With retries, hedges and those that opened the files.
  std::uint64_t retries = 0;         // After failures that may pass.
  std::uint64_t hedges = 0;          // Second requests for answers that were late.
  std::uint64_t throttled = 0;       // Answers 429 and 503.
  std::uint64_t received_bytes = 0;  // In whole answers.

  // Ranges of 16 MiB at most, merged from records that lie close together. Bytes that are copied
  // from memory (RecordReader::IoReport::batches_from_memory) are not among them.
  std::uint64_t cache_hits = 0;
  std::uint64_t cache_misses = 0;     // Not there, or damaged.
  std::uint64_t cache_evictions = 0;  // Entries of 16 MiB that this reader removed to make room.
};

}  // namespace ffrecord
