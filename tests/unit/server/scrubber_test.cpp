// Goal: what has gone bad on the disk is found without anybody reading it, told, and forgotten when
// it is good again; what is good is never called bad; and reading for it is bounded. Method:
// extents that are flipped, cut and mended behind the store's back, with a scrubber in a hurry.

#include "server/storage/scrubber.h"

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <thread>

#include "bytes.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using test::AsBytes;
using namespace std::chrono_literals;

class ScrubberTest : public testing::Test {
 protected:
  ExtentPtr Put(std::uint64_t upload, std::string_view data) {
    const ExtentId id = MakeExtentId(upload, 0, 0);
    auto writer = store_->Create(id, data.size()).value();
    EXPECT_TRUE(writer.Append(AsBytes(data)));
    return writer.Seal(Xxh3(AsBytes(data))).value();
  }
  // Changes one bit of the data, or changes it back.
  void Flip(const Extent& extent, std::uint64_t at) const {
    std::fstream file(store_->PathOf(extent.id), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 4));
  }
  // Runs until `count` whole passes are over.
  static void WaitPasses(const Scrubber& scrubber, std::uint64_t count) {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (scrubber.pass_count() < count && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(1ms);
    ASSERT_GE(scrubber.pass_count(), count);
  }
  Scrubber::Found Notes() {
    return [this](const Extent& extent, const std::string& why) {
      const std::lock_guard lock(mutex_);
      notes_.emplace_back(extent.id, why);
    };
  }
  std::vector<std::pair<ExtentId, std::string>> notes() {
    const std::lock_guard lock(mutex_);
    return notes_;
  }

  static constexpr Scrubber::Options kHurry{std::uint64_t{1} << 40, 1ms};
  test::TempFolder folder_;
  std::unique_ptr<ExtentStore> store_ = ExtentStore::Open(folder_ / "extents").value();
  std::mutex mutex_;
  std::vector<std::pair<ExtentId, std::string>> notes_;
};

TEST_F(ScrubberTest, FindsWhatIsBadOnceAndWhatIsGoodAgain) {
  const auto flipped = Put(1, std::string((3 << 20) + 7, 'a'));
  const auto cut = Put(2, std::string(5000, 'b'));
  const auto good = Put(3, std::string(1 << 20, 'c'));
  const auto small = Put(4, "d");
  const auto unnamed = Put(5, "e");
  Flip(*flipped, (2 << 20) + 5);
  Flip(*unnamed, 20);  // Of the trailer.
  std::filesystem::resize_file(store_->PathOf(cut->id), 100);

  {
    const Scrubber scrubber(*store_, kHurry, Notes());
    WaitPasses(scrubber, 3);
  }

  EXPECT_TRUE(flipped->is_bad);
  EXPECT_TRUE(cut->is_bad);
  EXPECT_FALSE(good->is_bad);
  EXPECT_FALSE(small->is_bad);
  EXPECT_TRUE(unnamed->is_bad);
  EXPECT_EQ(store_->totals().bad_count, 3U);
  ASSERT_EQ(notes().size(), 3U);
  for (const auto& [id, why] : notes())
    EXPECT_NE(why.find(store_->PathOf(id).string()), std::string::npos) << why;

  Flip(*flipped, (2 << 20) + 5);
  {
    const Scrubber scrubber(*store_, kHurry, Notes());
    WaitPasses(scrubber, 1);
  }
  EXPECT_FALSE(flipped->is_bad);
  EXPECT_EQ(store_->totals().bad_count, 2U);
  ASSERT_EQ(notes().size(), 4U);
  EXPECT_EQ(notes().back().second, "");
  (void)store_->Condemn(cut->id);
  EXPECT_EQ(store_->totals().bad_count, 1U);
}

TEST_F(ScrubberTest, ReadsNoFasterThanItMayAndEndsAtOnce) {
  (void)Put(1, std::string(8 << 20, 'a'));
  const auto begin = std::chrono::steady_clock::now();
  {
    // A piece of a megabyte is worth an hour.
    const Scrubber scrubber(*store_, {(std::uint64_t{1} << 20) / 3600, 1ms}, Notes());
    while (scrubber.read_bytes() == 0) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(scrubber.read_bytes(), std::uint64_t{1} << 20);
    EXPECT_EQ(scrubber.pass_count(), 0U);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
  EXPECT_TRUE(notes().empty());
}

TEST(WriteHealthTest, AFullDiskIsTriedAgainAndAFailedOneIsNot) {
  WriteHealth health;
  health.Note({ErrorCode::kIo, "too many files", EMFILE});
  health.Note({ErrorCode::kConflict, "exists"});
  EXPECT_EQ(health.report().state, WriteHealth::State::kGood);

  health.Note({ErrorCode::kIo, "no space", ENOSPC});
  EXPECT_EQ(health.report().state, WriteHealth::State::kFull);
  EXPECT_EQ(health.report().why, "no space");
  EXPECT_TRUE(health.CheckWritable());
  health.NoteSuccess();
  EXPECT_EQ(health.report().state, WriteHealth::State::kGood);

  health.Note({ErrorCode::kIo, "fsync: input/output error", EIO});
  health.NoteSuccess();
  health.Note({ErrorCode::kIo, "no space", ENOSPC});
  EXPECT_EQ(health.report().state, WriteHealth::State::kFailed);
  const auto checked = health.CheckWritable();
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::kIo);
  EXPECT_EQ(checked.error().system_errno, EIO);
  EXPECT_NE(checked.error().message.find("fsync: input/output error"), std::string::npos);
  EXPECT_NE(checked.error().message.find("read-only"), std::string::npos);
}

}  // namespace
}  // namespace ffrecord::server
