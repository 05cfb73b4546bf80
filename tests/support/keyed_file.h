#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "libffrecord/record/index/key_index.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/record/write/key_writer.h"
#include "memory_output.h"
#include "temp_folder.h"
#include "test_file.h"

namespace ffrecord::test {

// A record file with keys, in memory.
struct KeyedFile {
  std::size_t pending_max = std::size_t{1} << 20;
  KeyIndex::Hash hash = &KeyHash;
  std::uint64_t undone_max = 0;  // Before some keys, up to so many others are taken back.
  std::string content = {};

  std::mt19937_64 random{1};

  static void Add(const std::string& key, KeyWriter& keys, V2Stream& stream) {
    const std::uint64_t index = stream.totals().record_count;
    const std::string record = std::to_string(index);
    ASSERT_TRUE(stream.AddRecord(AsBytes(record), AsBytes(record)));
    ASSERT_TRUE(key.empty() || keys.Add(index, AsBytes(key), stream));
    ASSERT_TRUE(!stream.segment_is_full() || stream.EndSegment());
  }

  // Records "0", "1", ..., those with a key found by it; "" is none. One commit for each list.
  void Write(const std::vector<std::vector<std::string>>& commits) {
    const test::TempFolder folder;
    test::MemoryOutput output;
    V2Header header;
    header.append_features = V2Header::kKeys;
    V2Stream stream(output, header, std::span<const std::byte>());
    ASSERT_TRUE(stream.WriteFront({}));
    KeyWriter keys({.path = folder / "file.ffr",
                    .read_at =
                        [&](std::uint64_t offset, std::span<std::byte> to) {
                          const auto from = AsBytes(output.content).subspan(offset, to.size());
                          std::copy(from.begin(), from.end(), to.begin());
                          return Result<void>();
                        },
                    .pending_max = pending_max,
                    .hash = hash});
    for (const auto& commit : commits) {
      for (const std::string& key : commit) {
        if (undone_max > 0 && random() % 20 == 0) {
          stream.SetMark();
          keys.SetMark();
          for (std::uint64_t left = random() % undone_max; left > 0; --left)
            Add("undone " + std::to_string(left), keys, stream);
          ASSERT_TRUE(stream.ReturnToMark());
          keys.ReturnToMark();
        }
        Add(key, keys, stream);
      }
      ASSERT_TRUE(keys.Finish(stream));
      ASSERT_TRUE(stream.Commit());
    }
    content = output.content;
  }
};

// The result of ReadKeys, as a list with "" where a record has none.
inline std::vector<std::string> AllKeys(const RecordReader& reader, std::size_t file = 0) {
  const auto keys = reader.ReadKeys(file);
  EXPECT_TRUE(keys) << keys.error().message;
  std::vector<std::string> all(reader.file(file).record_count);
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < keys.value().indices.size(); ++i) {
    const std::uint64_t end = keys.value().ends[i];
    const auto* bytes = reinterpret_cast<const char*>(keys.value().bytes.data());
    EXPECT_TRUE(i == 0 || keys.value().indices[i - 1] < keys.value().indices[i]);
    all.at(keys.value().indices[i]) = std::string(bytes + begin, bytes + end);
    begin = end;
  }
  EXPECT_EQ(begin, keys.value().bytes.size());
  return all;
}

}  // namespace ffrecord::test
