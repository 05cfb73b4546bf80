// Goal: a file appears under its name whole, or not at all, and nothing else stays in its folder.
// Method: write through each mode, compare with a model; then let every write and sync fail in
// turn, fill the disk, and look at the folder.

#include "libffrecord/io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "faulty_engine.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord {
namespace {

using test::FaultyEngine;
using test::ReadFile;
using test::TempFolder;
using test::WriteFile;
using Kind = IoRequest::Kind;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string RandomText(std::mt19937& random, std::size_t size) {
  std::string text(size, '\0');
  for (char& letter : text) letter = static_cast<char>(random());
  return text;
}

TEST(AtomicFileTest, IsAbsentUntilItIsPublishedWhole) {
  TempFolder folder;
  auto file = AtomicFile::Create(folder / "new.ffr", {}).value();

  ASSERT_TRUE(file.Append(Bytes("hello ")));
  ASSERT_TRUE(file.Append(Bytes("world")));
  EXPECT_EQ(folder.entry_count(), 0U);
  EXPECT_EQ(file.size_bytes(), 11U);
  ASSERT_TRUE(file.Publish());

  EXPECT_EQ(ReadFile(folder / "new.ffr"), "hello world");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(AtomicFileTest, DiscardedLeavesNothing) {
  TempFolder folder;
  {
    auto file = AtomicFile::Create(folder / "new.ffr", {}).value();
    const std::string large(5 << 20, 'x');
    ASSERT_TRUE(file.Append(Bytes(large)));
  }

  EXPECT_EQ(folder.entry_count(), 0U);
}

TEST(AtomicFileTest, AnEmptyFileIsPublishedEmpty) {
  TempFolder folder;
  auto file = AtomicFile::Create(folder / "empty", {}).value();

  ASSERT_TRUE(file.Publish());

  EXPECT_TRUE(std::filesystem::exists(folder / "empty"));
  EXPECT_EQ(std::filesystem::file_size(folder / "empty"), 0U);
}

TEST(AtomicFileTest, RandomAppendsAndOverwritesMatchAModelInEachMode) {
  std::mt19937 random(test::Seed());
  TempFolder folder;
  for (int round = 0; round < 60; ++round) {
    AtomicFile::Options options;
    options.direct = random() % 2 == 0;
    options.buffer_size_bytes = 4096 * (1 + random() % 4);
    options.buffers_in_flight = 1 + random() % 4;
    options.expected_size_bytes = random() % 2 * (random() % 400000);
    test::Faults faults;
    faults.seed = static_cast<std::uint32_t>(random());
    faults.disorder = random() % 2 == 0;
    // Direct I/O is short by whole blocks; other transfers by any number of bytes.
    if (random() % 2 == 0) faults.short_transfer_unit_bytes = options.direct ? 512 : 1;
    auto engine = std::make_unique<FaultyEngine>(MakeIoEngine(16).value(), faults);
    const std::string name = "file" + std::to_string(round);
    auto file = AtomicFile::Create(folder / name, options, std::move(engine)).value();
    std::string model;
    for (std::size_t step = random() % 40; step > 0; --step) {
      const std::string text = RandomText(random, random() % 20000);
      if (random() % 3 != 0 || model.empty()) {
        ASSERT_TRUE(file.Append(Bytes(text)));
        model += text;
      } else if (random() % 4 == 0) {
        ASSERT_TRUE(file.AppendZeros(text.size()));
        model.append(text.size(), '\0');
      } else {
        const std::size_t offset = random() % model.size();
        const std::string_view part(text.data(), std::min(text.size(), model.size() - offset));
        const auto written = file.WriteAt(offset, Bytes(part));
        ASSERT_TRUE(written) << written.error().message;
        model.replace(offset, part.size(), part);
      }
      ASSERT_EQ(file.size_bytes(), model.size());
    }

    const auto published = file.Publish();

    ASSERT_TRUE(published) << published.error().message;
    ASSERT_TRUE(ReadFile(folder / name) == model) << "round " << round;
    struct stat status {};
    ASSERT_EQ(::stat((folder / name).c_str(), &status), 0);
    EXPECT_LE(static_cast<std::size_t>(status.st_blocks) * 512, model.size() + 65536)
        << "what was reserved in vain is still there";
  }
  EXPECT_EQ(folder.entry_count(), 60U);
}

}  // namespace
}  // namespace ffrecord
