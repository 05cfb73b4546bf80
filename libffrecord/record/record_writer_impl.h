#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include <ffrecord/record_writer.h>
#include <ffrecord/result.h>

#include "libffrecord/format/place.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/io/io_engine.h"

namespace ffrecord {

// What is fixed in ordinary use, and chosen by tests: golden files need a fixed id, faults need an
// engine that fails.
struct WriterInternals {
  std::optional<FileId> file_id;  // Random if there is none.
  std::uint32_t pages_per_segment = V2Header::kPagesPerSegmentDefault;
  std::unique_ptr<IoEngine> engine;  // AtomicFile's own if null.
};

// RecordWriter::Create and V1Writer::Create, with a choice of internals.
Result<RecordWriter> CreateRecordWriter(const std::filesystem::path& path, Schema schema,
                                        const RecordWriter::Options& options,
                                        WriterInternals internals);
Result<V1Writer> CreateV1Writer(const std::filesystem::path& path, std::uint64_t record_count,
                                bool replace, std::unique_ptr<IoEngine> engine);

}  // namespace ffrecord
