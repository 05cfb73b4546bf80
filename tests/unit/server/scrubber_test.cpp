// Goal: what has gone bad on the disk is found without anybody reading it, told, and forgotten when
// it is good again; what is good is never called bad; and reading for it is bounded. Method:
// extents that are flipped, cut and mended behind the store's back, with a scrubber in a hurry, by
// a clock of the test.

#include "server/storage/scrubber.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "bytes.h"
#include "eventually.h"
#include "libffrecord/base/unique_fd.h"
#include "new_extents.h"
#include "temp_folder.h"
#include "virtual_clock.h"

// How many of the next reads of this program fail.
static std::atomic<int> failing_read_count = 0;  // NOLINT
extern "C" ssize_t pread64(int fd, void* to, std::size_t size_bytes, off64_t offset_bytes) {
  if (failing_read_count > 0 && failing_read_count.fetch_sub(1) > 0) {
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_pread64, fd, to, size_bytes, offset_bytes);
}

namespace ffrecord::server {
namespace {

using test::AsBytes;
using namespace std::chrono_literals;

class ScrubberTest : public testing::Test {
 protected:
  ExtentPtr Put(std::uint64_t upload, std::string_view data) {
    const ExtentId id = MakeExtentId(upload, 0, 0);
    auto writer = test::Create(*store_, id, data.size()).value();
    EXPECT_TRUE(writer.Append(AsBytes(data)));
    return writer.Seal(Xxh3(AsBytes(data))).value();
  }
  // Changes one bit of the data, or changes it back.
  void Flip(const Extent& extent, std::uint64_t at) const {
    std::fstream file(store_->disks().front()->PathOf(extent.id),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 4));
  }
  // Runs until `count` whole passes are over.
  static void WaitPasses(const Scrubber& scrubber, std::uint64_t count) {
    ASSERT_TRUE(test::Eventually([&] { return scrubber.pass_count() >= count; }));
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

  // What it saved last, once it has ended.
  Scrubber::Position Saved() {
    const std::lock_guard lock(mutex_);
    return saved_;
  }
  Scrubber::Save Keeps() {
    return [this](const Scrubber::Position& position) {
      const std::lock_guard lock(mutex_);
      saved_ = position;
    };
  }
  static Scrubber::WallTime Ago(std::chrono::milliseconds time) {
    return std::chrono::floor<std::chrono::milliseconds>(WallClock::now()) - time;
  }

  static constexpr Scrubber::Options kHurry{1ms, std::uint64_t{1} << 40};
  static constexpr Scrubber::Options kSlow{1000h, 1, 0ms};  // A megabyte is worth days.
  std::optional<test::VirtualClock> clock_{std::in_place};
  test::TempFolder folder_;
  std::unique_ptr<ExtentStore> store_ = ExtentStore::Open(folder_ / "extents").value();
  std::mutex mutex_;
  std::vector<std::pair<ExtentId, std::string>> notes_;
  Scrubber::Position saved_;
};

TEST_F(ScrubberTest, FindsWhatIsBadOnceAndWhatIsGoodAgain) {
  const auto flipped = Put(1, std::string((3 << 20) + 7, 'a'));
  const auto cut = Put(2, std::string(5000, 'b'));
  const auto good = Put(3, std::string(1 << 20, 'c'));
  const auto small = Put(4, "d");
  const auto unnamed = Put(5, "e");
  Flip(*flipped, (2 << 20) + 5);
  Flip(*unnamed, 20);  // Of the trailer.
  std::filesystem::resize_file(store_->disks().front()->PathOf(cut->id), 100);

  {
    const Scrubber scrubber(*store_, *store_->disks().front(), kHurry, {}, Keeps(), Notes());
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
    EXPECT_NE(why.find(store_->disks().front()->PathOf(id).string()), std::string::npos) << why;

  Flip(*flipped, (2 << 20) + 5);
  {
    const Scrubber scrubber(*store_, *store_->disks().front(), kHurry, Saved(), Keeps(), Notes());
    WaitPasses(scrubber, 1);
  }
  EXPECT_FALSE(flipped->is_bad);
  EXPECT_EQ(Saved().bad.size(), 2U);
  EXPECT_EQ(store_->totals().bad_count, 2U);
  ASSERT_EQ(notes().size(), 4U);
  EXPECT_EQ(notes().back().second, "");
  (void)store_->MarkDeleted(cut->id);
  EXPECT_EQ(store_->totals().bad_count, 1U);
}

TEST_F(ScrubberTest, WhatFailsButOnceIsNotTheDisksFault) {
  (void)Put(1, "good");
  failing_read_count = 1;
  const Scrubber scrubber(*store_, *store_->disks().front(), kHurry, {}, Keeps(), Notes());
  WaitPasses(scrubber, 1);
  EXPECT_LE(failing_read_count, 0);
  EXPECT_TRUE(notes().empty());
}

TEST_F(ScrubberTest, WhatTheDaemonLacksIsNotTheDisksFault) {
  clock_.reset();  // It needs descriptors too.
  const auto good = Put(1, "good");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd next(::open("/", O_RDONLY | O_CLOEXEC));
  const rlimit none{static_cast<rlim_t>(next.get()), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);

  const Scrubber scrubber(*store_, *store_->disks().front(), kHurry, {}, Keeps(), Notes());
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(scrubber.pass_count(), 0U);  // It has not been read, nor passed over.
  EXPECT_EQ(store_->totals().bad_count, 0U);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);

  WaitPasses(scrubber, 1);
  EXPECT_EQ(scrubber.read_bytes() % 4, 0U);
  EXPECT_GT(scrubber.read_bytes(), 0U);
  EXPECT_TRUE(notes().empty());
}

TEST_F(ScrubberTest, ReadsNoFasterThanItMayAndEndsAtOnce) {
  (void)Put(1, std::string(8 << 20, 'a'));
  std::optional<Scrubber> scrubber(std::in_place, *store_, *store_->disks().front(), kSlow,
                                   Scrubber::Position{}, Keeps(), Notes());
  clock_->RunFor(1h);
  EXPECT_EQ(scrubber->read_bytes(), std::uint64_t{1} << 20);
  EXPECT_EQ(scrubber->pass_count(), 0U);
  const auto begin = Clock::now();
  scrubber.reset();
  EXPECT_EQ(Clock::now(), begin);
  EXPECT_TRUE(notes().empty());
}

TEST_F(ScrubberTest, WhatIsRemovedIsNotReadToItsEnd) {
  constexpr std::uint64_t kSize = 8 << 20;
  const ExtentId id = Put(1, std::string(kSize, 'a'))->id;
  const Scrubber scrubber(*store_, *store_->disks().front(), {1000h, 4 << 20}, {}, Keeps(),
                          Notes());
  clock_->RunUntilIdle();
  EXPECT_GT(scrubber.read_bytes(), 0U);

  const ExtentPtr removed = store_->MarkDeleted(id);

  EXPECT_TRUE(test::Eventually([&] { return removed.use_count() == 1; }));
  EXPECT_LT(scrubber.read_bytes(), kSize);
}

TEST_F(ScrubberTest, GoesOnWhereItStoodWhenItIsStartedAgain) {
  std::vector<ExtentPtr> extents;
  for (std::uint64_t i = 1; i <= 3; ++i) extents.push_back(Put(i, std::string(1 << 20, 'a')));
  std::ranges::sort(extents, {}, [](const ExtentPtr& extent) { return extent->id; });
  const auto begun = Ago(0ms);
  for (std::size_t start = 0; start < extents.size(); ++start) {
    const Scrubber scrubber(*store_, *store_->disks().front(), kSlow, Saved(), Keeps(), Notes());
    clock_->RunFor(1h);  // One extent is read at once, the next one is due in days.
    EXPECT_EQ(Saved().after, extents[start]->id);
    EXPECT_EQ(scrubber.read_bytes(), std::uint64_t{1} << 20);
    if (start == 2) WaitPasses(scrubber, 1);
  }

  EXPECT_FALSE(Saved().is_under_way);
  EXPECT_GE(Saved().pass_begin, begun);
  EXPECT_GE(Saved().last_end, Saved().pass_begin);
}

TEST_F(ScrubberTest, APassOverNothingIsNone) {
  const Scrubber scrubber(*store_, *store_->disks().front(), kHurry, {}, Keeps(), Notes());
  clock_->RunFor(1s);
  EXPECT_EQ(scrubber.pass_count(), 0U);
  EXPECT_EQ(Saved(), Scrubber::Position{});

  (void)Put(1, "a");

  WaitPasses(scrubber, 1);
}

TEST_F(ScrubberTest, ADiskOnWhichAllIsBadIsNotWrittenForEachOfThem) {
  for (std::uint64_t i = 1; i <= 50; ++i)
    std::filesystem::remove(store_->disks().front()->PathOf(Put(i, "a")->id));
  std::atomic<int> save_count = 0;
  const auto keep = [&](const Scrubber::Position& position) {
    ++save_count;
    Keeps()(position);
  };
  {
    const Scrubber scrubber(*store_, *store_->disks().front(), {1000h, std::uint64_t{1} << 40}, {},
                            keep, Notes());
    WaitPasses(scrubber, 1);
  }
  EXPECT_EQ(notes().size(), 50U);
  EXPECT_EQ(Saved().bad.size(), 50U);
  EXPECT_EQ(save_count, 2);  // Its beginning and its end.
}

TEST_F(ScrubberTest, WhereItStoodIsSavedWhenItEndsThoughThatIsNotDueYet) {
  for (std::uint64_t i = 1; i <= 2; ++i) (void)Put(i, std::string(1 << 20, 'a'));
  {
    const Scrubber scrubber(*store_, *store_->disks().front(), {1000h, 1, 1000h}, {}, Keeps(),
                            Notes());
    clock_->RunFor(1h);  // One extent is read at once, the next one is due in days.
    EXPECT_EQ(Saved().after, ExtentId{});
  }
  EXPECT_NE(Saved().after, ExtentId{});
  EXPECT_TRUE(Saved().is_under_way);
}

TEST_F(ScrubberTest, WhatIsBadStaysSoAfterAStartAndIsNotReadBeforeThePeriodIsOver) {
  const auto flipped = Put(1, std::string(1 << 20, 'a'));
  const auto gone = Put(2, "b");
  Flip(*flipped, 5);
  Flip(*gone, 0);
  {
    const Scrubber scrubber(*store_, *store_->disks().front(), {1000h, std::uint64_t{1} << 40}, {},
                            Keeps(), Notes());
    WaitPasses(scrubber, 1);
  }
  EXPECT_EQ(Saved().bad.size(), 2U);
  std::filesystem::remove(store_->disks().front()->PathOf(gone->id));
  store_ = ExtentStore::Open(folder_ / "extents").value();

  const Scrubber scrubber(*store_, *store_->disks().front(), kSlow, Saved(), Keeps(), Notes());

  EXPECT_TRUE(store_->Find(flipped->id)->is_bad);
  EXPECT_EQ(store_->totals().bad_count, 1U);
  EXPECT_LT(scrubber.age(), 60s);
  clock_->RunFor(1h);
  EXPECT_EQ(scrubber.read_bytes(), 0U);
}

// After the clock was set back: the age of what is to come would be nothing for as long.
TEST_F(ScrubberTest, ItsAgeGrowsThoughTheLastPassEndedInTheFuture) {
  const Scrubber::WallTime before_1970(-1h);
  const auto started = [&](Scrubber::WallTime last_end) {
    const Scrubber::Position from{Ago(5h), last_end, false, {}, {}};
    return std::make_unique<Scrubber>(*store_, *store_->disks().front(), Scrubber::Options{0h, 1},
                                      from, Keeps(), Notes());
  };
  const auto ahead = started(Ago(-90h));

  EXPECT_GE(started(Ago(3h))->age(), 3h);
  EXPECT_LT(started(Ago(3h))->age(), 4h);
  EXPECT_GE(started(before_1970)->age(), 5h);
  EXPECT_LT(started(before_1970)->age(), 6h);
  EXPECT_EQ(ahead->age(), 0s);
  clock_->RunFor(1min);
  EXPECT_EQ(ahead->age(), 60s);
}

TEST_F(ScrubberTest, ItsRateFollowsFromWhatIsLeftAndTheTimeThatIsLeft) {
  const auto first = Put(1, std::string(4 << 20, 'a'));
  const auto second = Put(2, std::string(4 << 20, 'b'));
  const ExtentId& low = std::min(first->id, second->id);
  const auto rate_of = [&](const Scrubber::Position& from) {
    const Scrubber scrubber(*store_, *store_->disks().front(), {10h, 1}, from, Keeps(), Notes());
    clock_->RunUntilIdle();
    EXPECT_GT(scrubber.read_bytes(), 0U);
    return static_cast<double>(scrubber.bytes_per_s());
  };
  const double whole = (8 << 20) / (36000 * 0.9);

  EXPECT_NEAR(rate_of({}), whole, 2);
  EXPECT_NEAR(rate_of({Ago(5h), {}, true, {}, {}}), 2 * whole, 2);
  EXPECT_NEAR(rate_of({Ago(5h), {}, true, low, {}}), whole, 2);       // Half of it is done.
  EXPECT_NEAR(rate_of({Ago(50h), {}, true, {}, {}}), 10 * whole, 2);  // Late: at most this.
  EXPECT_NEAR(rate_of({Ago(-90h), {}, true, {}, {}}), whole, 2);      // The clock was set back.
  const Scrubber small(*store_, *store_->disks().front(), {10h, 1 << 20}, {}, Keeps(), Notes());
  clock_->RunUntilIdle();
  EXPECT_EQ(small.bytes_per_s(), 1U << 20);
}

TEST_F(ScrubberTest, ItsPositionIsKeptAsItIsAndADamagedOneIsTheBeginning) {
  const Scrubber::Position position{Ago(1h),
                                    Ago(2h),
                                    true,
                                    MakeExtentId(1, 2, 3),
                                    {MakeExtentId(4, 0, 0), MakeExtentId(5, 0, 0)}};
  auto bytes = position.Encode();
  EXPECT_EQ(Scrubber::Position::Decode(bytes), position);
  bytes.pop_back();
  EXPECT_EQ(Scrubber::Position::Decode(bytes), Scrubber::Position{});
  EXPECT_EQ(Scrubber::Position::Decode({}), Scrubber::Position{});
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

TEST(WriteHealthTest, ADiskThatIsGoneOrReadOnlyHasFailed) {
  for (const int number : {EIO, EROFS, ENXIO, ENODEV, ESTALE}) {
    WriteHealth health;
    health.Note({ErrorCode::kIo, "write", number});
    EXPECT_FALSE(health.CheckWritable()) << number;
  }
}

}  // namespace
}  // namespace ffrecord::server
