// Goal: every version 1 file of the corpus, good and damaged, is read as its manifest says; what
// HFAiLab/ffrecord wrote, V1Writer writes byte for byte.
// Method: tests/data/ffrecord-v1/manifest.json, with checksums by OpenSSL.

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "libffrecord/base/hex.h"
#include "test_file.h"

namespace ffrecord {
namespace {

const std::filesystem::path kCorpus = std::filesystem::path(FFRECORD_TEST_DATA) / "ffrecord-v1";

nlohmann::json Manifest() {
  std::ifstream stream(kCorpus / "manifest.json");
  return nlohmann::json::parse(stream);
}

std::string Sha256(std::span<const std::byte> bytes) {
  std::array<unsigned char, 32> digest;
  EXPECT_EQ(EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr),
            1);
  return Hex(std::as_bytes(std::span(digest)));
}

struct CorpusCase {
  std::string name;
  std::vector<std::filesystem::path> paths;
  std::string expect;
  nlohmann::json samples;
};

void PrintTo(const CorpusCase& corpus_case, std::ostream* stream) { *stream << corpus_case.name; }

std::vector<CorpusCase> Cases() {
  std::vector<CorpusCase> cases;
  const nlohmann::json manifest = Manifest();
  for (const auto& [name, entry] : manifest.items()) {
    CorpusCase one{name, {}, entry["expect"], entry.value("samples", nlohmann::json::array())};
    for (const auto& file : entry["files"]) one.paths.push_back(kCorpus / std::string(file));
    cases.push_back(std::move(one));
  }
  return cases;
}

class V1CorpusTest : public testing::TestWithParam<CorpusCase> {
 protected:
  // All records are those of the manifest; but `corrupt` must have that status. -1: none.
  static void ExpectSamples(const RecordReader& reader, std::int64_t corrupt) {
    const auto& samples = GetParam().samples;
    ASSERT_EQ(reader.record_count(), samples.size());
    const Batch batch = reader.ReadBatch(test::UpTo(samples.size())).value();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (static_cast<std::int64_t>(i) == corrupt) {
        EXPECT_EQ(batch.statuses()[i], ErrorCode::kCorruption) << i;
        continue;
      }
      EXPECT_EQ(batch.statuses()[i], ErrorCode::kOk) << reader.Describe(i, batch.statuses()[i]);
      EXPECT_EQ(batch.record(i).size(), samples[i]["size"].get<std::size_t>()) << i;
      EXPECT_EQ(Sha256(batch.record(i)), samples[i]["sha256"].get<std::string>()) << i;
    }
  }
};

TEST_P(V1CorpusTest, IsReadAsTheManifestSays) {
  const CorpusCase& one = GetParam();
  const auto reader = RecordReader::Open(one.paths, {});
  const std::size_t colon = one.expect.find(':');
  if (one.name == "packed_evil") {  // Only as a packed folder it is refused, not as records.
    ASSERT_TRUE(reader) << reader.error().message;
    test::ReadAll(reader.value());
  } else if (one.expect == "ok") {
    ASSERT_TRUE(reader) << reader.error().message;
    ExpectSamples(reader.value(), -1);
  } else if (one.expect == "error") {
    ASSERT_FALSE(reader);
    EXPECT_EQ(reader.error().code, ErrorCode::kCorruption);
    EXPECT_NE(reader.error().message.find(one.paths[0].string()), std::string::npos);
  } else {
    ASSERT_NE(colon, std::string::npos) << "unknown expectation " << one.expect;
    const std::string kind = one.expect.substr(0, colon);
    ASSERT_TRUE(kind == "corrupt" || kind == "error_or_corrupt");
    if (!reader && kind == "error_or_corrupt") return;
    ASSERT_TRUE(reader) << reader.error().message;
    ExpectSamples(reader.value(), std::stol(one.expect.substr(colon + 1)));
  }
}

TEST_P(V1CorpusTest, DamagedTablesOpenWithSalvageOrNotAtAll) {
  const CorpusCase& one = GetParam();
  RecordReader::Options options;
  options.salvage = true;
  const auto reader = RecordReader::Open(one.paths, options);
  if (!reader) {
    EXPECT_EQ(one.expect, "error");
    return;
  }
  // Whatever is returned as good is good.
  const auto& samples = one.samples;
  const Batch batch = reader.value().ReadBatch(test::UpTo(reader.value().record_count())).value();
  if (samples.size() != batch.size()) return;
  for (std::size_t i = 0; i < batch.size(); ++i)
    if (batch.statuses()[i] == ErrorCode::kOk) {
      EXPECT_EQ(Sha256(batch.record(i)), samples[i]["sha256"].get<std::string>()) << i;
    }
}

TEST_P(V1CorpusTest, GoodFilesAreWrittenByteForByte) {
  const CorpusCase& one = GetParam();
  if (one.expect != "ok" && one.name != "packed_evil") return;
  if (one.name == "old" || one.name == "zeros12") return;  // Today's writers make the checksum.
  for (const auto& path : one.paths) {
    const auto records = test::ReadAll(test::OpenOne(path).value());
    EXPECT_EQ(test::FileOf(records, {.version = 1}), test::ReadFile(path)) << path;
  }
}

INSTANTIATE_TEST_SUITE_P(Manifest, V1CorpusTest, testing::ValuesIn(Cases()),
                         [](const auto& instance) { return instance.param.name; });

TEST(V1CorpusDetailsTest, OldFileWarns) {
  const auto reader = test::OpenOne(kCorpus / "old.ffr").value();
  ASSERT_EQ(reader.file(0).warnings.size(), 1U);
  EXPECT_NE(reader.file(0).warnings[0].find("no metadata checksum"), std::string::npos);
  EXPECT_TRUE(test::OpenOne(kCorpus / "random.ffr").value().file(0).warnings.empty());
}

TEST(V1CorpusDetailsTest, WithoutChecksumsBoundsStillHold) {
  RecordReader::Options options;
  options.verify_checksums = false;
  for (const char* name :
       {"huge_n.ffr", "negative_n.ffr", "empty.ffr", "zeros.ffr", "cut_table.ffr"})
    EXPECT_FALSE(test::OpenOne(kCorpus / name, options)) << name;
  for (const char* name : {"offset_out_of_file.ffr", "offsets_decrease.ffr", "bad_offset.ffr"}) {
    const auto reader = test::OpenOne(kCorpus / name, options);
    ASSERT_TRUE(reader) << reader.error().message;
    const Batch batch = reader.value().ReadBatch(test::UpTo(30)).value();
    const auto bad =
        std::count(batch.statuses().begin(), batch.statuses().end(), ErrorCode::kCorruption);
    EXPECT_LE(bad, 2) << name;
    if (std::string(name) != "bad_offset.ffr") {
      EXPECT_GE(bad, 1) << name;
    }
  }
}

TEST(V1CorpusDetailsTest, KilledWriterIsCalledSo) {
  const auto reader = test::OpenOne(kCorpus / "zeros.ffr");
  ASSERT_FALSE(reader);
  EXPECT_NE(reader.error().message.find("its writer was killed"), std::string::npos);
}

}  // namespace
}  // namespace ffrecord
