#pragma once

#include <ffrecord/record_writer.h>
#include <ffrecord/verify.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "test_file.h"

// Appends to record files, whole and killed, and what is right of the files then.
namespace ffrecord::test {

using Records = std::vector<std::string>;

inline WriteSummary Append(const std::filesystem::path& path, const Records& records,
                           const RecordWriter::AppendOptions& options = {}) {
  auto writer = RecordWriter::Append(path, options);
  EXPECT_TRUE(writer) << writer.error().message;
  for (const std::string& record : records) EXPECT_TRUE(writer.value().Write(AsBytes(record)));
  auto closed = writer.value().Close();
  EXPECT_TRUE(closed) << closed.error().message;
  return closed.value();
}

inline void ExpectWhole(const std::filesystem::path& path) {
  const auto report = VerifyFile(path);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report.value().whole()) << report.value().problems[0];
}

// Leaves the file as a killed append of these records does: all that was written by then is there.
inline void KillAppend(const std::filesystem::path& path, const Records& records) {
  std::string left;
  {
    auto writer = RecordWriter::Append(path, {}).value();
    for (const std::string& record : records) EXPECT_TRUE(writer.Write(AsBytes(record)));
    left = ReadFile(path);
  }
  WriteFile(path, left);
}

inline Records Numbers(int first, int end) {
  Records records;
  for (int i = first; i < end; ++i) records.push_back("record " + std::to_string(i));
  return records;
}

}  // namespace ffrecord::test
