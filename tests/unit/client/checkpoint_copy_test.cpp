// Goal: a compressed copy is the same save, in less room, and damage to it is found and named.
// Method: copies between folders, buddies and back; every file compared; frames damaged; ranges
// that begin and end anywhere.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include <ffrecord/client/checkpoint.h>

#include "checkpoint_state.h"
#include "client/checkpoint/packed_files.h"
#include "libffrecord/source/local_files.h"
#include "seed.h"
#include "temp_folder.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

namespace fs = std::filesystem;
using test::Compare;
using test::SaveAlone;
using test::State;
using test::TempFolder;

// As weights are: exponents vary little.
State Weights(std::uint64_t rows) {
  State state(rows, test::Seed());
  std::mt19937 random(test::Seed());
  std::normal_distribution<float> normal(0, 0.02F);
  for (std::size_t i = 0; i < state.matrix.size(); i += sizeof(float)) {
    const float weight = normal(random);
    std::memcpy(state.matrix.data() + i, &weight, sizeof(weight));
  }
  return state;
}

std::uint64_t SizeOf(const fs::path& folder) {
  std::uint64_t size = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) size += entry.file_size();
  return size;
}

constexpr std::string_view kSegment = "step-000000007/part-00000/seg-0000";

TEST(CheckpointCopyTest, ACompressedCopyIsTheSameSaveInLessRoom) {
  const TempFolder folder;
  const State state = Weights(40'000);
  const std::string plain = folder / "plain", packed = folder / "packed", back = folder / "back";
  const auto commit = SaveAlone(plain, 7, state);
  ASSERT_TRUE(commit);

  const auto copied = CopyCheckpoint(plain, 7, packed, {}, true);

  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_EQ(copied.value().attempt, commit.value().attempt);
  EXPECT_TRUE(CopyCheckpoint(plain, 7, packed, {}, true));  // Again: it is there.
  EXPECT_LT(SizeOf(packed), SizeOf(plain) * 9 / 10);
  EXPECT_FALSE(fs::exists(packed + "/" + std::string(kSegment)));
  EXPECT_EQ(Compare(packed, state), "");
  const auto reader = CheckpointReader::Open(packed, 7, {});
  const auto damage = reader.value().Verify();
  ASSERT_TRUE(damage) << damage.error().message;
  EXPECT_TRUE(damage.value().empty()) << damage.value()[0];

  ASSERT_TRUE(CopyCheckpoint(packed, 7, back, {}));
  for (const auto& entry : fs::recursive_directory_iterator(plain)) {
    if (!entry.is_regular_file()) continue;
    const fs::path same = back / fs::relative(entry.path(), plain);
    EXPECT_EQ(test::ReadFile(entry.path()), test::ReadFile(same)) << same;
  }
}

TEST(CheckpointCopyTest, BuddiesMayKeepThemCompressed) {
  const TempFolder folder;
  const State state = Weights(20'000);
  const std::string plain = folder / "plain";
  const std::string buddies = "buddies:" + std::string(folder / "a") + "|" +
                              std::string(folder / "b") + "|" + std::string(folder / "c");
  ASSERT_TRUE(SaveAlone(plain, 7, state));
  const auto copied = CopyCheckpoint(plain, 7, buddies, {}, true);
  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_EQ(Compare(buddies, state), "");
  fs::remove_all(folder / "a");
  EXPECT_EQ(Compare(buddies, state), "");
}

TEST(CheckpointCopyTest, DamageIsFoundAndNamed) {
  std::mt19937 random(test::Seed());
  const TempFolder folder;
  const State state = Weights(20'000);
  ASSERT_TRUE(SaveAlone(folder / "plain", 7, state));
  ASSERT_TRUE(
      CopyCheckpoint(std::string(folder / "plain"), 7, std::string(folder / "packed"), {}, true));
  const fs::path file =
      fs::path(folder / "packed") / (std::string(kSegment) + std::string(kPackedSuffix));
  const std::string whole = test::ReadFile(file);
  for (int round = 0; round < 18; ++round) {
    std::string damaged = whole;
    if (round % 3 == 0)
      damaged.resize(random() % damaged.size());
    else
      // Where tensors are; nobody reads all that is behind them.
      damaged[random() % (damaged.size() / 2)] ^= static_cast<char>(1 << random() % 8);
    std::ofstream(file, std::ios::binary).write(damaged.data(), std::ssize(damaged));
    const std::string wrong = Compare(folder / "packed", state);
    EXPECT_NE(wrong.find("seg-0000"), std::string::npos) << wrong;
  }
}

// The files of a folder, by direct I/O, which asks for aligned ranges.
class FolderFiles final : public CommittedStep {
 public:
  explicit FolderFiles(const fs::path& folder) : folder_(folder) {}
  std::string Describe(std::string_view name) const override { return std::string(name); }
  Result<std::vector<std::byte>> ReadFile(std::string_view, std::uint64_t) const override {
    return Error{ErrorCode::kNotFound, "no such file"};
  }
  Result<std::unique_ptr<RangeReader>> OpenFiles(
      std::span<const std::string> names) const override {
    std::vector<fs::path> paths;
    for (const auto& name : names) paths.push_back(folder_ / name);
    return OpenLocalFiles(paths, {.io = IoPolicy::kDirect});
  }

 private:
  fs::path folder_;
};

TEST(CheckpointCopyTest, AnyRangesOfSeveralFilesAreRead) {
  std::mt19937 random(test::Seed());
  const TempFolder folder;
  std::vector<std::string> names{"a", "b"};
  std::vector<test::Bytes> contents;
  for (const auto& [name, rows] : {std::pair("a", 40'000U), std::pair("b", 777U)}) {
    const State state = Weights(rows);
    const test::Bytes& raw = contents.emplace_back(state.matrix);
    auto spool =
        PackedSpool::Fill(
            raw.size(),
            [&](std::uint64_t offset, std::uint64_t size) -> Result<std::span<const std::byte>> {
              // As a source that has less at a time than was asked for.
              return std::span(raw).subspan(offset,
                                            std::min<std::uint64_t>(size, 1 + offset % 70'000));
            })
            .value();
    std::ofstream file(folder / (std::string(name) + std::string(kPackedSuffix)), std::ios::binary);
    for (std::uint64_t at = 0; at < spool.size_bytes();) {
      const auto bytes = spool.At(at, 100'000).value();
      file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
      at += bytes.size();
    }
  }
  const auto files = OpenSegments(FolderFiles(folder / "."), names).value();
  ASSERT_EQ(files->file_size_bytes(0), contents[0].size());
  for (int round = 0; round < 20; ++round) {
    std::vector<test::Bytes> room(1 + random() % 30);
    std::vector<RangeRead> ranges;
    for (auto& bytes : room) {
      const auto file = static_cast<std::uint32_t>(random() % 2);
      const std::uint64_t offset = random() % (contents[file].size() + 1);
      bytes.resize(random() % (contents[file].size() - offset + 1));
      ranges.push_back({file, offset, bytes, ErrorCode::kIo});
    }
    ASSERT_TRUE(files->Read(ranges));
    for (const RangeRead& range : ranges) {
      ASSERT_EQ(range.status, ErrorCode::kOk);
      EXPECT_TRUE(std::ranges::equal(
          range.destination,
          std::span(contents[range.file]).subspan(range.offset_bytes, range.destination.size())));
    }
  }
  test::Bytes beyond(10);
  RangeRead range{1, contents[1].size() - 9, beyond, ErrorCode::kOk};
  ASSERT_TRUE(files->Read({&range, 1}));
  EXPECT_EQ(range.status, ErrorCode::kCorruption);
  EXPECT_EQ(OpenSegments(FolderFiles(folder / "."), std::vector<std::string>{"c"}).error().code,
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ffrecord::client
