#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// The result of a full check of one file.
struct VerifyReport {
  // At most this many problems are described; the rest are only counted.
  static constexpr std::size_t kProblemsMax = 100;

  std::uint32_t format_version = 0;
  std::uint64_t record_count = 0;
  std::uint64_t bad_record_count = 0;  // Records that a reader would reject.
  std::uint64_t file_size_bytes = 0;
  std::uint64_t problem_count = 0;
  std::vector<std::string> problems;  // In file order, each with its place.

  bool whole() const noexcept { return problem_count == 0; }
};

// Reads every byte of a local file once, through the page cache, and checks it: structures,
// padding, each record's checksum, header and decompression, the totals and the fingerprint. A file
// that passes has every bit as written.
//
// `progress`, if given, is called on the calling thread with bytes done and total bytes. When it
// returns false, the check fails with kDeadlineExceeded. Fails as RecordReader::Open if the file
// cannot be opened at all; the report lists all later findings.
FFR_EXPORT Result<VerifyReport> VerifyFile(
    const std::filesystem::path& path,
    const std::function<bool(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace ffrecord
