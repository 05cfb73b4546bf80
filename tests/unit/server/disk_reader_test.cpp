// Goal: a disk that does not answer stops no other, neither in reads nor in opens; runs that wait
// for their file can be given up at any time, and leave nothing behind. Method: an engine that
// takes reads of one folder and never ends them, shared with another folder; files that are opened
// when the test says so.

#include "server/service/read/disk_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "bytes.h"
#include "libffrecord/base/clock.h"
#include "new_extents.h"
#include "open_at_once.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using test::AsBytes;
using test::TempFolder;
using namespace std::chrono_literals;

// Room for DiskReader::kDepth requests, those that hang included.
class HangingEngine final : public IoEngine {
 public:
  HangingEngine(std::string hangs, bool& is_over) : hangs_(std::move(hangs)), is_over_(is_over) {}

  std::string_view name() const noexcept override { return "hanging"; }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    std::uint32_t taken = 0;
    for (IoRequest* const request : requests) {
      if (in_flight() == DiskReader::kDepth) break;
      const auto path =
          std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(request->fd)).string();
      if (path.find(hangs_) != std::string::npos)
        hanging_.push_back(request);
      else
        FFR_TRY(inner_->Submit({&request, 1}));
      ++taken;
    }
    return taken;
  }
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override {
    if (inner_->in_flight() > 0) return inner_->Wait(done, count_min, timeout);
    std::uint32_t count = 0;
    for (; is_over_ && !hanging_.empty() && count < done.size(); ++count) {
      done[count] = hanging_.back();
      done[count]->result = -EIO;
      hanging_.pop_back();
    }
    return count;
  }
  std::uint32_t in_flight() const noexcept override {
    return inner_->in_flight() + static_cast<std::uint32_t>(hanging_.size());
  }

 private:
  const std::string hangs_;
  bool& is_over_;
  std::unique_ptr<IoEngine> inner_ = MakeThreadsEngine(DiskReader::kDepth).value();
  std::vector<IoRequest*> hanging_;
};

TEST(DiskReaderTest, ADiskThatHangsLeavesOthersTheirPart) {
  const TempFolder folder;
  ExtentStore::Disks disks;
  for (const char* const name : {"hung", "good"})
    disks.present.push_back(Disk::Open(folder / name).value());
  const auto store = ExtentStore::Open(std::move(disks)).value();
  const std::string data(1000, 'x');
  ExtentPtr hung;
  ExtentPtr good;
  for (std::uint32_t i = 0; !hung || !good; ++i) {
    auto writer = test::Create(*store, MakeExtentId(1, 0, i), data.size()).value();
    ASSERT_TRUE(writer.Append(AsBytes(data)));
    const ExtentPtr extent = writer.Seal(Xxh3(AsBytes(data))).value();
    (extent->disk == store->disks()[0].get() ? hung : good) = extent;
  }
  bool is_over = false;
  DiskReader reader(std::make_unique<HangingEngine>("/hung/", is_over), {16, 0, 2'000'000, 2},
                    test::OpenAtOnce(reader));

  constexpr std::uint32_t kCount = 5000;
  std::uint32_t started = 0;
  for (; started < kCount && reader.HasRoomFor(*hung); ++started)
    reader.Start({1, 1, started}, {&hung, 0, 1000});
  EXPECT_EQ(started, 1000U);  // Half of the memory; more than the engine has room for.
  EXPECT_TRUE(reader.HasRoomFor(*good));
  std::vector<DiskReader::Completed> completed;
  for (std::uint32_t i = 0; i < 200; ++i) reader.Start({1, 2, i}, {&good, 0, 1000});
  for (int i = 0; i < 20'000 && completed.size() < 200; ++i)
    ASSERT_TRUE(reader.Poll(1ms, completed));
  ASSERT_EQ(completed.size(), 200U);
  for (const auto& one : completed) EXPECT_EQ(one.ticket.batch, 2U);

  is_over = true;
  for (int i = 0; i < 20'000 && completed.size() < 1200; ++i)
    ASSERT_TRUE(reader.Poll(1ms, completed));
  EXPECT_EQ(completed.size(), 1200U);
  EXPECT_EQ(hung->disk->reads().error_count(), 1000U);
  EXPECT_EQ(good->disk->reads().error_count(), 0U);
  EXPECT_EQ(reader.held_bytes(), 1'200'000U);
  EXPECT_TRUE(reader.HasRoomFor(*hung));
  reader.Release(1'200'000);

  // What was withdrawn before the engine took it counts no more either.
  is_over = false;
  for (std::uint32_t i = 0; i < 1000; ++i) reader.Start({1, 3, i}, {&hung, 0, 1000});
  ASSERT_TRUE(reader.Poll(0ms, completed));
  EXPECT_FALSE(reader.HasRoomFor(*hung));
  reader.Withdraw(1, 3);
  EXPECT_TRUE(reader.HasRoomFor(*hung));
  is_over = true;
  for (int i = 0; i < 20'000 && completed.size() < 2200; ++i)
    ASSERT_TRUE(reader.Poll(1ms, completed));
  reader.Release(1'000'000);
}

// What was fetched from an origin to the disk takes no part of another disk's, nor one of its own.
TEST(DiskReaderTest, ACacheIsReadWithinThePartOfItsDisk) {
  const TempFolder folder;
  const auto disk = Disk::Open(folder / "extents").value();
  const auto other = Disk::Open(folder / "other").value();
  ExtentStore::Disks caches;
  caches.present.push_back(Disk::Open(folder / "hung").value());
  caches.present.front()->set_is_cache(*disk);
  const auto cache = ExtentStore::Open(std::move(caches)).value();
  const std::string data(1000, 'x');
  auto writer = test::Create(*cache, MakeExtentId(1, 0, 0), data.size()).value();
  ASSERT_TRUE(writer.Append(AsBytes(data)));
  const ExtentPtr cached = writer.Seal(Xxh3(AsBytes(data))).value();
  Extent own;
  own.disk = disk.get();
  Extent foreign;
  foreign.disk = other.get();
  bool is_over = false;
  DiskReader reader(std::make_unique<HangingEngine>("/hung/", is_over), {16, 0, 200'000, 2},
                    test::OpenAtOnce(reader));

  std::uint32_t started = 0;
  for (; started < 1000 && reader.HasRoomFor(*cached); ++started)
    reader.Start({1, 1, started}, {&cached, 0, 1000});

  EXPECT_EQ(started, 100U);
  EXPECT_FALSE(reader.HasRoomFor(own));
  EXPECT_TRUE(reader.HasRoomFor(foreign));
  is_over = true;
  std::vector<DiskReader::Completed> completed;
  for (int i = 0; i < 1000 && completed.size() < started; ++i)
    ASSERT_TRUE(reader.Poll(1ms, completed));
  EXPECT_EQ(completed.size(), started);
  EXPECT_TRUE(cached->is_suspect);  // Each of these reads has failed.
  reader.Release(100'000);
}

// Files are opened when the test says so.
class OpeningTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kSize = 1000;

  static std::unique_ptr<ExtentStore> MakeStore(const std::filesystem::path& folder) {
    ExtentStore::Disks disks;
    disks.present.push_back(Disk::Open(folder).value());
    return ExtentStore::Open(std::move(disks)).value();
  }
  static ExtentPtr Put(ExtentStore& store, std::uint32_t number) {
    const std::string data(kSize, 'x');
    auto writer = test::Create(store, MakeExtentId(1, 0, number), data.size()).value();
    EXPECT_TRUE(writer.Append(AsBytes(data)));
    return writer.Seal(Xxh3(AsBytes(data))).value();
  }
  bool Start(const ExtentPtr& extent, std::uint64_t batch,
             Clock::time_point deadline = Clock::time_point::max()) {
    return reader_.Start({1, batch, 0}, {&extent, 0, kSize}, nullptr, deadline);
  }
  void Open(const ExtentPtr& extent) {
    reader_.TakeOpened(extent, OpenExtents::Open(extent, true));
  }
  std::vector<DiskReader::Completed> Poll(std::size_t count) {
    std::vector<DiskReader::Completed> completed;
    for (int i = 0; i < 10'000 && completed.size() < count; ++i)
      EXPECT_TRUE(reader_.Poll(1ms, completed));
    EXPECT_EQ(completed.size(), count);
    for (const auto& one : completed) reader_.Release(one.size_bytes);
    return completed;
  }

  const TempFolder folder_;
  const std::unique_ptr<ExtentStore> store_ = MakeStore(folder_ / "one");
  bool is_over_ = true;
  std::vector<std::vector<ExtentPtr>> lists_;
  DiskReader reader_{std::make_unique<HangingEngine>("/hung/", is_over_),
                     {1000, 0, 100'000'000, 2},
                     [this](std::vector<ExtentPtr> list, bool) { lists_.push_back(list); }};
};

TEST_F(OpeningTest, ADiskHasOneListAtATimeInTheOrderOfTheRuns) {
  std::vector<ExtentPtr> extents;
  for (std::uint32_t i = 0; i < 2 * WaitingRuns::kListMax; ++i) extents.push_back(Put(*store_, i));
  for (const ExtentPtr& extent : extents) EXPECT_FALSE(Start(extent, 1));
  for (const ExtentPtr& extent : extents) EXPECT_FALSE(Start(extent, 2));
  ASSERT_EQ(lists_.size(), 1U);
  EXPECT_EQ(lists_[0], std::vector{extents[0]});
  EXPECT_EQ(reader_.waiting_count(), 2 * extents.size());

  Open(extents[0]);
  ASSERT_EQ(lists_.size(), 2U);
  EXPECT_EQ(lists_[1],
            std::vector(extents.begin() + 1, extents.begin() + 1 + WaitingRuns::kListMax));
  for (const ExtentPtr& extent : std::vector(lists_[1])) Open(extent);
  ASSERT_EQ(lists_.size(), 3U);
  EXPECT_EQ(lists_[2].back(), extents.back());
  for (const ExtentPtr& extent : std::vector(lists_[2])) Open(extent);
  EXPECT_EQ(lists_.size(), 3U);
  EXPECT_EQ(reader_.waiting_count(), 0U);
  for (const auto& one : Poll(2 * extents.size())) EXPECT_EQ(one.status, net::EntryStatus::kOk);
  EXPECT_TRUE(Start(extents[0], 3));  // It is open now.
  Poll(1);
  EXPECT_EQ(reader_.held_bytes(), 0U);
}

TEST_F(OpeningTest, RunsThatAreWithdrawnLeaveNothingBehindWhileTheDiskHangs) {
  const ExtentPtr hung = Put(*store_, 0);
  EXPECT_FALSE(Start(hung, 1));
  for (std::uint32_t i = 1; i < 200; ++i) {
    const ExtentPtr extent = Put(*store_, i);
    EXPECT_FALSE(Start(extent, 2));
    reader_.Withdraw(1, 2);
    EXPECT_EQ(extent.use_count(), 2) << "only the store has it beside the test";
  }
  for (const auto& one : Poll(199)) EXPECT_EQ(one.status, net::EntryStatus::kCancelled);
  EXPECT_EQ(reader_.waiting_count(), 1U);
  EXPECT_EQ(reader_.held_bytes(), kSize);
  reader_.Withdraw(1);
  Poll(1);

  // It comes open when nobody waits any more.
  Open(hung);
  EXPECT_EQ(lists_.size(), 1U);
  EXPECT_EQ(reader_.held_bytes(), 0U);
  EXPECT_TRUE(reader_.HasRoomFor(*hung));
  EXPECT_TRUE(Start(hung, 3));
  EXPECT_EQ(Poll(1).at(0).status, net::EntryStatus::kOk);
}

TEST_F(OpeningTest, WaitingRunsCountAgainstTheirDisk) {
  const ExtentPtr extent = Put(*store_, 0);
  std::uint32_t started = 0;
  for (; started < 100'000 && reader_.HasRoomFor(*extent); ++started) (void)Start(extent, 1);
  EXPECT_EQ(started, 50'000U);  // Half of the memory.
  const std::uint64_t room_count = reader_.room_count();
  reader_.Withdraw(1);
  EXPECT_GT(reader_.room_count(), room_count);
  EXPECT_TRUE(reader_.HasRoomFor(*extent));
  Poll(started);
}

TEST_F(OpeningTest, ARunWaitsNoLongerThanItsDeadline) {
  const ExtentPtr extent = Put(*store_, 0);
  const auto now = Clock::now();
  EXPECT_FALSE(Start(extent, 1, now + 1s));
  EXPECT_FALSE(Start(extent, 2));
  reader_.GiveUpLate(now);
  EXPECT_FALSE(reader_.must_poll());
  reader_.GiveUpLate(now + 1s);
  EXPECT_TRUE(reader_.must_poll());
  const auto late = Poll(1);
  EXPECT_EQ(late.at(0).ticket.batch, 1U);
  EXPECT_EQ(late.at(0).status, net::EntryStatus::kDeadline);
  Open(extent);
  EXPECT_EQ(Poll(1).at(0).status, net::EntryStatus::kOk);
}

TEST_F(OpeningTest, AnOpenThatFailsFailsTheRunsOfItsFileOnly) {
  const ExtentPtr lost = Put(*store_, 0);
  const ExtentPtr good = Put(*store_, 1);
  for (const std::uint64_t batch : {1U, 2U}) EXPECT_FALSE(Start(lost, batch));
  EXPECT_FALSE(Start(good, 3));
  reader_.TakeOpened(lost, Error{ErrorCode::kIo, "cannot open: injected", 5});
  Open(good);
  for (const auto& one : Poll(3))
    EXPECT_EQ(one.status,
              one.ticket.batch < 3 ? net::EntryStatus::kIoError : net::EntryStatus::kOk);
  EXPECT_EQ(lost->disk->reads().error_count(), 2U);
  EXPECT_FALSE(Start(lost, 4));  // It is tried again.
  reader_.TakeOpened(lost, Error{ErrorCode::kNotFound, "cannot open: injected", 2});
  EXPECT_EQ(Poll(1).at(0).status, net::EntryStatus::kNotHere);
}

// What is read ahead is told of such a run once it is known whether it was in memory.
TEST_F(OpeningTest, ARunTellsWhetherItHasWaitedForItsFile) {
  const ExtentPtr extent = Put(*store_, 0);
  EXPECT_FALSE(Start(extent, 1));
  Open(extent);
  EXPECT_TRUE(Poll(1).at(0).has_waited);
  EXPECT_TRUE(Start(extent, 2));
  EXPECT_FALSE(Poll(1).at(0).has_waited);
}

// In the client's memory, for one.
TEST_F(OpeningTest, ARunThatHasWaitedIsReadToItsPlace) {
  const ExtentPtr extent = Put(*store_, 0);
  std::vector<std::byte> memory(kSize);
  std::span<std::byte> view(memory);
  EXPECT_FALSE(reader_.Start({1, 1, 0}, {&extent, 0, kSize},
                             PooledBuffer(&view, [](std::span<std::byte>*) {})));
  Open(extent);
  EXPECT_EQ(Poll(1).at(0).status, net::EntryStatus::kOk);
  EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{'x'}; }));
}

class MappedOpeningTest : public OpeningTest {
 protected:
  // Opens the file, and gives what has come of one run that waited for it.
  DiskReader::Completed StartAndOpen(const ExtentPtr& extent) {
    EXPECT_FALSE(mapping_.Start({1, 1, 0}, {&extent, 0, kSize}));
    auto file = OpenExtents::Open(extent, true).value();
    is_mapped_ = file.mapped.has_value();
    mapping_.TakeOpened(extent, std::move(file));
    std::vector<DiskReader::Completed> completed;
    for (int i = 0; i < 10'000 && completed.empty(); ++i)
      EXPECT_TRUE(mapping_.Poll(1ms, completed));
    mapping_.Release(kSize);
    return std::move(completed.at(0));
  }
  bool is_mapped_ = false;
  DiskReader mapping_{std::make_unique<HangingEngine>("/hung/", is_over_),
                      {1000, 1000, 100'000'000, 2},
                      [](const std::vector<ExtentPtr>&, bool) {}};
};

TEST_F(MappedOpeningTest, ARunThatIsInMemoryOnceItsFileIsOpenIsNotRead) {
  const auto found = StartAndOpen(Put(*store_, 0));
  if (!is_mapped_) GTEST_SKIP() << "the kernel does not tell what is in memory";
  ASSERT_TRUE(found.resident);
  EXPECT_TRUE(found.has_waited);
  EXPECT_EQ(found.resident->bytes.size(), kSize);
}

// What it has lost would be zeros.
TEST_F(MappedOpeningTest, AFileThatWasCutIsReadAndNotTakenFromMemory) {
  const ExtentPtr extent = Put(*store_, 0);
  const auto file = ExtentStore::OpenFile(*extent).value();
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file.get()));
  std::filesystem::resize_file(path, kSize / 2);
  const auto found = StartAndOpen(extent);
  EXPECT_FALSE(found.resident);
  EXPECT_EQ(found.status, net::EntryStatus::kCorrupt);
}

// The extent has the same id on both disks, and each reader gets the file that it asked for.
TEST_F(OpeningTest, AnExtentThatMovesWhileItIsOpenedIsReadOnBothDisks) {
  const auto other = MakeStore(folder_ / "other");
  const ExtentPtr before = Put(*store_, 0);
  const ExtentPtr after = Put(*other, 0);
  EXPECT_FALSE(Start(before, 1));
  EXPECT_FALSE(Start(after, 2));
  ASSERT_EQ(lists_.size(), 2U);  // One for each disk.
  Open(after);
  Open(before);
  for (const auto& one : Poll(2)) EXPECT_EQ(one.status, net::EntryStatus::kOk);
  EXPECT_TRUE(Start(before, 3));
  EXPECT_FALSE(Start(after, 4));
  Open(after);
  Poll(2);
}

}  // namespace
}  // namespace ffrecord::server
