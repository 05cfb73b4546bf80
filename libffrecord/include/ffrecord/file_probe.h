#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// How fast a file was read in one way.
struct ReadRate {
  bool is_direct = false;  // O_DIRECT; otherwise through the page cache.
  bool is_random = false;  // Blocks in random order; otherwise from the beginning of the file on.
  std::uint32_t block_bytes = 0;
  std::uint32_t depth = 0;  // Reads in flight.
  std::uint64_t read_count = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t cached_bytes = 0;  // How many of those the page cache held before the read.
  std::chrono::nanoseconds duration{};
  std::chrono::nanoseconds latency_median{};
  std::chrono::nanoseconds latency_p99{};
};

// The cost of reads of one file here.
struct FileFindings {
  std::uint64_t size_bytes = 0;
  // Alignment of memory and of offsets, for direct I/O; 0 if the file cannot be read so.
  std::uint32_t direct_memory_alignment_bytes = 0;
  std::uint32_t direct_offset_alignment_bytes = 0;
  std::string why_not_direct;  // For people; empty if it can be read so.
  // Share of the file in the page cache before the first read, 0 to 1; of a large file, an estimate
  // from 4,096 samples. None if the kernel does not tell, or the file is empty.
  std::optional<double> resident_share;
  // Share of the blocks that were read through the page cache that are still there half a second
  // later. None if there were none, or the kernel does not tell.
  std::optional<double> kept_share;
  std::vector<ReadRate> rates;  // Direct ones first; none if the file is empty.
};

struct FileProbeOptions {
  // For all reads together, and for the reads of one kind; what comes first ends them. Reads that
  // are in flight then are waited for.
  std::chrono::milliseconds duration{3000};
  std::uint64_t read_bytes_max = std::uint64_t{128} << 20;
};

// Reads the file at `path` with the I/O engine of the library: 4 KiB and 128 KiB in random order,
// 32 at a time, and 1 MiB in order, 8 at a time; each of them direct, then through the page cache,
// where blocks that are not there yet are preferred. Never writes; the page cache keeps what was
// read through it.
//
// Fails as opening the file does, with kInvalidArgument if an option is 0 or negative, and with kIo
// if a read fails. Thread-safe.
FFR_EXPORT Result<FileFindings> ProbeFile(const std::filesystem::path& path,
                                          const FileProbeOptions& options);

}  // namespace ffrecord
