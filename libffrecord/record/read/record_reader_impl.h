#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <ffrecord/record_reader.h>

#include "libffrecord/base/checksum.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/record/read/stage_clock.h"
#include "libffrecord/source/range_reader.h"
#include "libffrecord/source/resident_guess.h"

namespace ffrecord {

// All of it but guess and counts is fixed once the reader is open; the indexes borrow the source.
struct RecordReader::Impl {
  std::shared_ptr<const RangeReader> source;
  RecordReader::Options options;
  PrefetchHinter hinter;  // Empty: hints have no effect.
  std::vector<std::unique_ptr<FileIndex>> indexes;
  std::vector<std::uint64_t> first_indexes;  // For each file, and behind the last.
  std::shared_ptr<const Schema> schema;
  Digest128 fingerprint{};
  bool forms_records = false;  // Some file has a RecordForm that is not plain.
  mutable ResidentGuess resident_guess;
  mutable std::atomic<std::uint64_t> batches_from_memory{0};
  mutable std::atomic<std::uint64_t> batches_read{0};
  mutable StageSums stages;

  std::uint64_t record_count() const noexcept { return first_indexes.back(); }
  // The file that holds record `index`: O(log files), and at once where all hold as many. Requires
  // index < record_count().
  std::uint32_t FileOf(std::uint64_t index) const noexcept;
};

}  // namespace ffrecord
