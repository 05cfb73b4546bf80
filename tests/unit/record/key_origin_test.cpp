// Goal: a reader tells how the keys of each file were given, so that a copy of it can be given them
// alike.
// Method: files without keys, with keys given apart and with those of a column, none of which need
// have a key; the same after an append; and a file of version 1.

#include <gtest/gtest.h>

#include <string>

#include "appends.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::OpenOne;
using test::TestFile;

const Schema kSchema = Schema::Make({{"name", ColumnType::kUtf8}, {"x", ColumnType::kU16}}).value();

RecordReader::KeyOrigin OriginOf(const TestFile& file) {
  const auto reader = OpenOne(file.path());
  const auto origin = reader.value().ReadKeyOrigin(0);
  EXPECT_TRUE(origin) << origin.error().message;
  return origin ? origin.value() : RecordReader::KeyOrigin{};
}

TEST(KeyOriginTest, IsThatOfTheWriterAlsoIfNoRecordHasAKey) {
  for (const bool has_records : {false, true})
    for (const std::string column : {"", "name"}) {
      SCOPED_TRACE(column + (has_records ? ", records" : ", no records"));
      RecordWriter::Options options;
      options.keys = true;
      options.key_column = column;
      const std::vector<std::string> records(has_records ? 2 : 0, "xy");
      const TestFile file(records, {.schema = kSchema, .writer = options});
      EXPECT_TRUE(OriginOf(file).has_keys);
      EXPECT_EQ(OriginOf(file).column, column);
      test::Append(file.path(), {"zw"});
      EXPECT_TRUE(OriginOf(file).has_keys);
      EXPECT_EQ(OriginOf(file).column, column);
    }
}

TEST(KeyOriginTest, FileWithoutKeysHasNone) {
  for (const int version : {1, 2}) {
    const TestFile file({"a", "b"}, {.version = version});
    EXPECT_FALSE(OriginOf(file).has_keys);
    EXPECT_EQ(OriginOf(file).column, std::nullopt);
    const auto beyond = OpenOne(file.path()).value().ReadKeyOrigin(1);
    EXPECT_EQ(beyond.error().code, ErrorCode::kOutOfRange);
  }
}

}  // namespace
}  // namespace ffrecord
