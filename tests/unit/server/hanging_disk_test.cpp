// Goal: a disk on which deletions, writes or opens hang keeps its own extents, and no other disk's:
// new ones go to the others, names are listed and published, room is told, and all else is read.
// Method: a daemon, or a store, with two disks in this process, whose unlink(), mkdir(), syncs,
// statvfs() and opens wait, or fail, in one of their folders.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "daemon_metrics.h"
#include "hang.h"
#include "new_extents.h"
#include "server/service/jobs/job_pool.h"
#include "server_peers.h"
#include "temp_folder.h"
#include "virtual_clock.h"

namespace {

ffrecord::test::Hang unlink_hangs;
ffrecord::test::Hang mkdir_hangs;
std::atomic<bool> mkdir_fails{false};
ffrecord::test::Hang sync_hangs;
std::atomic<bool> sync_fails{false};
ffrecord::test::Hang statvfs_hangs;
ffrecord::test::Hang open_hangs;
std::atomic<int> hanging_count{0};

bool IsOnHung(std::string_view path) {
  return path.find("/hung/extents") != std::string_view::npos;
}

void HangWhile(const ffrecord::test::Hang& hangs, std::string_view path) {
  if (!hangs || !IsOnHung(path)) return;
  ++hanging_count;
  hangs.Wait();
  --hanging_count;
}

std::string PathOf(int fd) {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored).string();
}

int Sync(long call, int fd) {
  if (sync_hangs || sync_fails) {
    const std::string path = PathOf(fd);
    HangWhile(sync_hangs, path);
    // Those of names and bytes: a folder for names that cannot be made sends an extent elsewhere.
    if (sync_fails && path.find("/hung/extents/") != std::string::npos) {
      errno = EIO;
      return -1;
    }
  }
  return static_cast<int>(::syscall(call, fd));
}

}  // namespace

// In place of the C library's, for the whole program.
extern "C" int unlink(const char* path) noexcept {
  HangWhile(unlink_hangs, path);
  return static_cast<int>(::syscall(SYS_unlink, path));
}
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  HangWhile(mkdir_hangs, path);
  if (mkdir_fails && IsOnHung(path)) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_mkdir, path, mode));
}
extern "C" int fsync(int fd) { return Sync(SYS_fsync, fd); }
extern "C" int fdatasync(int fd) { return Sync(SYS_fdatasync, fd); }
// Of a file that is being opened: open() itself has no name that could be taken.
extern "C" int fstat(int fd, struct stat* status) noexcept {
  if (open_hangs) HangWhile(open_hangs, PathOf(fd));
  static const auto real =
      reinterpret_cast<int (*)(int, struct stat*)>(::dlsym(RTLD_NEXT, "fstat"));
  return real(fd, status);
}
extern "C" int statvfs(const char* path, struct statvfs* status) noexcept {
  HangWhile(statvfs_hangs, path);
  static const auto real =
      reinterpret_cast<int (*)(const char*, struct statvfs*)>(::dlsym(RTLD_NEXT, "statvfs"));
  return real(path, status);
}

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using test::Eventually;

std::size_t FilesIn(const fs::path& disk) {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(disk / "extents"))
    count += entry.is_regular_file() ? 1 : 0;
  return count;
}

class HangingUnlinkTest : public ServerTest {
 protected:
  ~HangingUnlinkTest() override { unlink_hangs = false; }

  // Extents that nobody publishes: given up soon.
  void PutSome(std::uint64_t upload) {
    auto channel = ConnectTo(two_);
    for (std::uint32_t i = 0; i < 8; ++i)
      ASSERT_TRUE(Put(*channel, MakeExtentId(upload, 0, i), "never published"));
  }

  test::TempFolder folder_;
  Daemon two_{{.data = {folder_ / "good", folder_ / "hung"}, .upload_grace = 1s}};
};

TEST_F(HangingUnlinkTest, OtherDisksAreCleanedAllTheSame) {
  unlink_hangs = true;
  PutSome(1);
  ASSERT_TRUE(Eventually([] { return hanging_count > 0; }));
  ASSERT_TRUE(Eventually([&] { return FilesIn(folder_ / "good") == 0; }));
  const std::size_t left_count = FilesIn(folder_ / "hung");
  EXPECT_GT(left_count, 0U);

  // Uploads that fall silent meanwhile are given up too.
  PutSome(2);
  ASSERT_TRUE(Eventually([&] { return FilesIn(folder_ / "good") == 0; }));
  EXPECT_GT(FilesIn(folder_ / "hung"), left_count);

  unlink_hangs = false;
  ASSERT_TRUE(Eventually([&] { return FilesIn(folder_ / "hung") == 0; }));
}

TEST(HangingWriteTest, NewExtentsGoToOtherDisks) {
  test::TempFolder folder;
  ExtentStore::Disks disks;
  for (const char* const name : {"hung", "good"}) {
    fs::create_directories(folder / name);
    disks.present.push_back(Disk::Open(folder / name / "extents").value());
  }
  const auto store = ExtentStore::Open(std::move(disks)).value();
  const Disk& good = *store->disks()[1];
  mkdir_hangs = true;
  std::thread writer([&] {
    // Disks take turns: the second one at the latest hangs.
    for (std::uint32_t i = 0; i < 2; ++i) (void)test::Create(*store, MakeExtentId(1, 0, i), 10);
  });
  EXPECT_TRUE(Eventually([] { return hanging_count > 0; }));
  EXPECT_TRUE(Eventually([&] { return store->disks()[0]->reads().is_suspect(); }));
  EXPECT_FALSE(good.reads().is_suspect());

  for (std::uint32_t i = 0; i < 6; ++i) {
    auto other = test::Create(*store, MakeExtentId(2, 0, i), 3);
    EXPECT_TRUE(other);
    EXPECT_TRUE(other.value().Append(AsBytes(std::string_view("new"))));
    EXPECT_EQ(other.value().Seal(Xxh3(AsBytes(std::string_view("new")))).value()->disk, &good);
  }

  mkdir_hangs = false;
  writer.join();
}

TEST(HangingOpenTest, NewExtentsGoToOtherDisks) {
  test::TempFolder folder;
  ExtentStore::Disks disks;
  for (const char* const name : {"hung", "good"}) {
    fs::create_directories(folder / name);
    disks.present.push_back(Disk::Open(folder / name / "extents").value());
  }
  const auto store = ExtentStore::Open(std::move(disks)).value();
  const Disk& hung = *store->disks()[0];
  ExtentPtr extent;
  for (std::uint32_t i = 0; !extent || extent->disk != &hung; ++i) {
    auto writer = test::Create(*store, MakeExtentId(1, 0, i), 3);
    ASSERT_TRUE(writer.value().Append(AsBytes(std::string_view("old"))));
    extent = writer.value().Seal(Xxh3(AsBytes(std::string_view("old")))).value();
  }
  open_hangs = true;
  std::thread reader([&] { EXPECT_TRUE(ExtentStore::OpenFile(*extent)); });

  EXPECT_TRUE(Eventually([&] { return hung.reads().is_suspect(); }));
  EXPECT_FALSE(store->disks()[1]->reads().is_suspect());
  for (std::uint32_t i = 0; i < 6; ++i) {
    auto place = store->Place(MakeExtentId(2, 0, i), 3);
    EXPECT_TRUE(place && &place.value().disk() != &hung);
  }

  open_hangs = false;
  reader.join();
}

// One event loop, two disks with an extent each.
class HangingOpenReadTest : public ServerTest {
 protected:
  HangingOpenReadTest() : HangingOpenReadTest(std::chrono::hours(1)) {}
  explicit HangingOpenReadTest(std::chrono::milliseconds upload_grace)
      : two_({.data = {folder_ / "good", folder_ / "hung"},
              .core_count = 1,
              .admin = net::Address{"127.0.0.1", 0},
              .upload_grace = upload_grace}) {}
  ~HangingOpenReadTest() override { open_hangs = false; }

  void SetUp() override {
    reader_ = ConnectTo(two_);
    for (std::uint32_t i = 0; !good_ || !hung_; ++i) {
      const ExtentId id = MakeExtentId(9, 0, i);
      const std::size_t before_count = FilesIn(folder_ / "hung");
      ASSERT_TRUE(Put(*reader_, id, kData));
      (FilesIn(folder_ / "hung") > before_count ? hung_ : good_) = id;
    }
    ASSERT_TRUE(reader_->Call(FrameType::kExtentBind, net::ExtentBind{0, {*hung_}}.Encode(), {},
                              Soon(), "a binding"));
  }
  // Sends a batch of the disk that hangs, and waits until its file is being opened.
  std::uint64_t BeginHanging(std::uint32_t deadline_ms = 0) {
    open_hangs = true;
    net::BatchRead batch;
    batch.deadline_ms = deadline_ms;
    batch.entries = {{0, 0, kSize, 0}};
    const auto request = reader_->Send(FrameType::kBatchRead, batch.Encode());
    EXPECT_TRUE(request && reader_->Flush(Soon()));
    EXPECT_TRUE(Eventually([] { return hanging_count > 0; }));
    return request.value();
  }
  std::vector<net::EntryStatus> StatusesOf(std::uint64_t request) {
    const auto header = reader_->Receive(request, Soon(), "the end of the batch");
    EXPECT_TRUE(header) << header.error().message;
    EXPECT_EQ(header.value().type, net::ReplyTo(FrameType::kBatchRead));
    return net::BatchDone::Decode(reader_->body()).value().statuses;
  }
  void ExpectReads(Channel& channel, const ExtentId& id) {
    const auto read = Read(channel, {id}, {{0, 0, kSize, 0}});
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read.value().entries, std::vector{kData});
  }
  std::uint64_t held_bytes() const {
    return test::MetricOf(*two_.server().admin_address(), "ffrecord_inflight_bytes");
  }

  static constexpr std::uint32_t kSize = 1000;
  const std::string kData = std::string(kSize, 'd');
  test::TempFolder folder_;
  Daemon two_;
  std::unique_ptr<Channel> reader_;
  std::optional<ExtentId> good_;
  std::optional<ExtentId> hung_;
};

TEST_F(HangingOpenReadTest, TheOtherDiskIsReadAndTheBatchGoesOnWhenTheDiskAnswers) {
  const std::uint64_t request = BeginHanging();
  const auto other = ConnectTo(two_);
  EXPECT_TRUE(other->Call(FrameType::kPing, {}, {}, Soon(), "a ping"));
  ExpectReads(*other, *good_);
  EXPECT_TRUE(Eventually([&] { return held_bytes() == kSize; }));
  EXPECT_GT(hanging_count, 0);

  open_hangs = false;
  const auto read = Receive(*reader_, request, 1);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read.value().entries, std::vector{kData});
  EXPECT_TRUE(Eventually([&] { return held_bytes() == 0; }));
}

// Also what looks at them first.
TEST_F(HangingOpenReadTest, FilesThatAreOpenAreReadAllTheSame) {
  ExpectReads(*reader_, *hung_);
  open_hangs = true;
  ExpectReads(*reader_, *hung_);
  ExpectReads(*ConnectTo(two_), *hung_);
  EXPECT_EQ(hanging_count, 0);
}

TEST_F(HangingOpenReadTest, ABatchThatIsCancelledEndsAtOnce) {
  const std::uint64_t request = BeginHanging();
  ASSERT_TRUE(reader_->Send(FrameType::kCancel, net::Cancel{request}.Encode()));
  EXPECT_EQ(StatusesOf(request), std::vector{net::EntryStatus::kCancelled});
  EXPECT_TRUE(Eventually([&] { return held_bytes() == 0; }));
  EXPECT_GT(hanging_count, 0);
  open_hangs = false;
  ExpectReads(*reader_, *hung_);
}

TEST_F(HangingOpenReadTest, ABatchEndsAtItsDeadline) {
  const std::uint64_t request = BeginHanging(300);
  EXPECT_EQ(StatusesOf(request), std::vector{net::EntryStatus::kDeadline});
  EXPECT_GT(hanging_count, 0);
  open_hangs = false;
  ExpectReads(*reader_, *hung_);
}

TEST_F(HangingOpenReadTest, AClientThatGoesAwayLeavesNothingBehind) {
  (void)BeginHanging();
  reader_.reset();
  EXPECT_TRUE(Eventually([&] { return held_bytes() == 0; }));
  EXPECT_GT(hanging_count, 0);
  open_hangs = false;
  ExpectReads(*ConnectTo(two_), *hung_);
}

TEST_F(HangingOpenReadTest, ADaemonStopsWhenTheDiskAnswersAgain) {
  (void)BeginHanging();
  EXPECT_FALSE(two_.server().Stop(std::chrono::steady_clock::now() + 200ms));
  open_hangs = false;
  EXPECT_TRUE(two_.server().Stop(std::chrono::steady_clock::now() + 30s));
}

// Nobody publishes the extents: they are deleted soon.
class HangingOpenDeletionTest : public HangingOpenReadTest {
 protected:
  HangingOpenDeletionTest() : HangingOpenReadTest(3s) {}
};

TEST_F(HangingOpenDeletionTest, AnExtentThatIsDeletedMeanwhileIsReadAndThenGoes) {
  const std::uint64_t request = BeginHanging();
  ASSERT_TRUE(Eventually([&] { return FilesIn(folder_ / "good") == 0; }));
  open_hangs = false;
  const auto read = Receive(*reader_, request, 1);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read.value().entries, std::vector{kData});
  reader_.reset();
  EXPECT_TRUE(Eventually([&] { return FilesIn(folder_ / "hung") == 0; }));
}

class HangingUploadTest : public ServerTest {
 protected:
  ~HangingUploadTest() override {
    sync_hangs = sync_fails = statvfs_hangs = mkdir_fails = false;
    for (std::thread& client : clients_) client.join();
  }

  // Puts one extent on a connection of its own; notes whether that succeeded.
  void PutInBackground(std::uint32_t number) {
    // Here: the daemon of a test may be stopped before a thread has come so far.
    clients_.emplace_back([this, number, channel = ConnectTo(two_)] {
      if (Put(*channel, MakeExtentId(3, 0, number), "data")) ++put_count_;
    });
  }

  test::VirtualClock clock_;
  test::TempFolder folder_;
  Daemon two_{
      {.data = {folder_ / "good", folder_ / "hung"}, .admin = net::Address{"127.0.0.1", 0}}};
  std::vector<std::thread> clients_;
  std::atomic<std::uint32_t> put_count_{0};
};

TEST_F(HangingUploadTest, OthersWriteListAndPublishAllTheSame) {
  constexpr std::uint32_t kClientCount = 16;
  sync_hangs = statvfs_hangs = true;
  for (std::uint32_t i = 0; i < kClientCount; ++i) PutInBackground(i);
  // All threads of the disk, and the one that asks for its room.
  static constexpr int kHangingMin = JobPool::kDiskStrandCount + 1;
  ASSERT_TRUE(Eventually([] { return hanging_count >= kHangingMin; }));

  // Those of the good disk are through though they began beside them.
  EXPECT_TRUE(Eventually([&] { return put_count_ >= kClientCount / 2 - 1; })) << put_count_;
  const auto channel = ConnectTo(two_);
  EXPECT_TRUE(channel->Call(FrameType::kCheckRoom, net::CheckRoom{1000, "name"}.Encode(), {},
                            Soon(), "room"));
  EXPECT_TRUE(channel->Call(FrameType::kList, net::List{10, "", ""}.Encode(), {}, Soon(), "names"));
  EXPECT_GT(test::MetricOf(*two_.server().admin_address(), "ffrecord_disk_free_bytes"), 0U);
  // Once the disk has hung for a while, the other one gets all that is new.
  clock_.RunFor(ReadHealth::kSlow + 100ms);
  for (std::uint32_t i = 0; i < 8; ++i)
    ASSERT_TRUE(Put(*ConnectTo(two_), MakeExtentId(4, 0, i), "more"));
  EXPECT_LT(put_count_, kClientCount);

  sync_hangs = statvfs_hangs = false;
  EXPECT_TRUE(Eventually([&] { return put_count_ == kClientCount; }));
}

TEST_F(HangingUploadTest, ADiskOnWhichNoFileCanBeMadeSendsAnUploadToTheOther) {
  mkdir_fails = true;
  const auto channel = ConnectTo(two_);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(Put(*channel, MakeExtentId(5, 0, i), "data"));
  EXPECT_EQ(FilesIn(folder_ / "good"), 4U);
}

// What was acknowledged before stays; what failed is acknowledged on the other disk only; and the
// kernel, which forgets such a failure, is not asked again.
TEST_F(HangingUploadTest, ASyncThatFailsInTheMiddleOfUploadsLosesNothingThatWasAcknowledged) {
  std::vector<ExtentId> ids;
  std::vector<net::BatchEntry> entries;
  const auto put_all = [&](std::uint64_t upload, std::uint32_t count) {
    const auto channel = ConnectTo(two_);
    std::uint32_t failed_count = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      ids.push_back(MakeExtentId(upload, 0, i));
      entries.push_back({static_cast<std::uint32_t>(entries.size()), 0, 4, 0});
      auto put = Put(*channel, ids.back(), "data");
      for (; !put && put.error().code == ErrorCode::kUnavailable; ++failed_count)
        put = Put(*channel, ids.back(), "data");
      EXPECT_TRUE(put) << put.error().message;
    }
    return failed_count;
  };
  EXPECT_EQ(put_all(6, 4), 0U);
  const std::size_t before_count = FilesIn(folder_ / "hung");
  ASSERT_GT(before_count, 0U);

  sync_fails = true;
  EXPECT_EQ(put_all(7, 8), 1U);  // Then the daemon knows.
  sync_fails = false;
  EXPECT_EQ(put_all(8, 4), 0U);
  EXPECT_EQ(FilesIn(folder_ / "good") + before_count, ids.size());

  two_.Kill();
  two_.Start();
  const auto read = Read(*ConnectTo(two_), ids, entries);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read.value().entries, std::vector<std::string>(ids.size(), "data"));
}

// A client that goes away while its upload waits for a thread of the disk leaves nothing behind.
TEST_F(HangingUploadTest, ADaemonStopsWhenTheDiskAnswersAgain) {
  sync_hangs = true;
  for (std::uint32_t i = 0; i < 8; ++i) PutInBackground(i);
  ASSERT_TRUE(Eventually([] { return hanging_count > 0; }));
  EXPECT_FALSE(two_.server().Stop(std::chrono::steady_clock::now() + 200ms));
  sync_hangs = false;
  EXPECT_TRUE(two_.server().Stop(std::chrono::steady_clock::now() + 30s));
}

}  // namespace
}  // namespace ffrecord::server
