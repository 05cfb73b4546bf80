// Goal: an origin that hangs costs its own readers, a disk that hangs its own extents, and a full
// one no more of the cache than is needed; what hangs keeps no daemon from its end. Method: a cache
// in this process, whose fstat(), unlink() and statvfs() wait, or lie, in one folder.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bytes.h"
#include "cluster_clients.h"
#include "daemon.h"
#include "daemon_cluster.h"
#include "hang.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/clock.h"
#include "server/service/origin/origin_cache.h"
#include "temp_folder.h"

namespace {

ffrecord::test::Hang origin_hangs;
ffrecord::test::Hang unlink_hangs;
std::atomic<bool> disk_is_full{false};
std::atomic<int> hanging_count{0};

void HangWhile(const ffrecord::test::Hang& hangs, std::string_view path, std::string_view where) {
  if (!hangs || path.find(where) == std::string_view::npos) return;
  ++hanging_count;
  hangs.Wait();
  --hanging_count;
}

}  // namespace

// In place of the C library's, for the whole program.
extern "C" int fstat(int fd, struct stat* status) noexcept {
  if (origin_hangs) {
    std::error_code ignored;
    const auto link = "/proc/self/fd/" + std::to_string(fd);
    HangWhile(origin_hangs, std::filesystem::read_symlink(link, ignored).string(), "/hung/");
  }
  static const auto real =
      reinterpret_cast<int (*)(int, struct stat*)>(::dlsym(RTLD_NEXT, "fstat"));
  return real(fd, status);
}
extern "C" int unlink(const char* path) noexcept {
  HangWhile(unlink_hangs, path, "/disk0/");
  return static_cast<int>(::syscall(SYS_unlink, path));
}
extern "C" int statvfs(const char* path, struct statvfs* status) noexcept {
  static const auto real =
      reinterpret_cast<int (*)(const char*, struct statvfs*)>(::dlsym(RTLD_NEXT, "statvfs"));
  const int result = real(path, status);
  if (disk_is_full) status->f_bavail = 0;
  return result;
}

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using test::Eventually;
using namespace std::chrono_literals;

constexpr std::size_t kSize = 100'000;

class OriginFaultsTest : public testing::Test {
 protected:
  OriginFaultsTest() {
    for (const char* const origin : {"good", "hung"}) {
      fs::create_directory(folder_ / origin);
      options_.reader.allowed.push_back((folder_ / origin).string());
    }
    options_.free_bytes_min = 0;
    options_.retry = 1ms;
  }
  ~OriginFaultsTest() override { origin_hangs = unlink_hangs = disk_is_full = false; }

  // A cache on so many disks; unlinks may hang on the first one.
  void Open(std::size_t disk_count) {
    for (std::size_t i = 0; i < disk_count; ++i) {
      const fs::path disk = folder_ / ("disk" + std::to_string(i));
      fs::create_directory(disk);
      disks_.push_back(Disk::Open(disk / "extents").value());
      options_.folders.push_back({disk / "origin-cache", disks_.back().get()});
    }
    auto opened = OriginCache::Open(options_);
    ASSERT_TRUE(opened) << opened.error().message;
    cache_ = std::move(opened).value();
  }
  // The ids of so many extents, each of a file of its own there.
  std::vector<ExtentId> Publish(const std::string& origin, std::size_t count) {
    DatasetManifest manifest;
    std::vector<ExtentId> ids;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string content(kSize, static_cast<char>('a' + contents_.size() % 26));
      const std::string path = (folder_ / origin / ("f" + std::to_string(i))).string();
      test::WriteFile(path, content);
      const auto id = MakeExtentId(++last_upload_, 0, 0);
      manifest.files.push_back({"f" + std::to_string(i),
                                kSize,
                                {{id, kSize, Xxh3(test::AsBytes(content))}},
                                {path, ""}});
      contents_[id] = content;
      ids.push_back(id);
    }
    cache_->Change(nullptr, &manifest);
    return ids;
  }
  // Asks for it once.
  void Ask(const ExtentId& id) { cache_->Use(cache_->Find(id)); }
  // Reads it, and says whether that went well. It may be evicted before it is open.
  bool Reads(const ExtentId& id) {
    ExtentPtr extent = cache_->Find(id);
    return Eventually([&] {
      extent = cache_->Use(extent);
      if (extent->disk == nullptr) return false;
      const auto file = ExtentStore::OpenFile(*extent);
      std::string bytes(kSize, '\0');
      return file && ::pread(file.value().get(), bytes.data(), kSize, 0) == std::ssize(bytes) &&
             bytes == contents_.at(id);
    });
  }
  bool IsCached(const ExtentId& id) const { return cache_->store().Find(id) != nullptr; }

  test::TempFolder folder_;
  OriginCache::Options options_;
  std::uint64_t last_upload_ = 0;
  std::map<ExtentId, std::string> contents_;
  std::vector<std::unique_ptr<Disk>> disks_;
  std::unique_ptr<OriginCache> cache_;  // First to go.
};

// More fetches hang than all origins together may have threads or waiting fetches for.
TEST_F(OriginFaultsTest, AnOriginThatHangsKeepsNoFetchFromAnotherOne) {
  options_.size_bytes_max = 4 * kSize;
  Open(1);
  const auto hung = Publish("hung", 600);
  const auto good = Publish("good", 20);
  origin_hangs = true;
  for (const ExtentId& id : hung) Ask(id);
  ASSERT_TRUE(Eventually([] { return hanging_count == 4; }));

  // Nor has it taken room of the cache, which holds four.
  for (const ExtentId& id : good) EXPECT_TRUE(Reads(id));

  EXPECT_GT(cache_->counts().waiting, 0ms);
  origin_hangs = false;
  EXPECT_TRUE(Reads(hung[0]));
  EXPECT_TRUE(Reads(hung[599]));
  EXPECT_TRUE(Eventually([&] { return cache_->counts().waiting == 0ms; }));
}

TEST_F(OriginFaultsTest, AnOriginThatHangsKeepsNobodyFromTheEnd) {
  Open(1);
  const auto hung = Publish("hung", 1);
  origin_hangs = true;
  Ask(hung[0]);
  ASSERT_TRUE(Eventually([] { return hanging_count == 1; }));

  cache_->BeginStop();
  EXPECT_FALSE(cache_->AwaitEnd(Clock::now() + 20ms));

  origin_hangs = false;
  EXPECT_TRUE(cache_->AwaitEnd(Clock::now() + 60s));
}

TEST_F(OriginFaultsTest, ADiskOnWhichUnlinksHangKeepsNoFetchFromAnotherOne) {
  options_.size_bytes_max = 6 * kSize;
  Open(2);
  const auto ids = Publish("good", 30);
  unlink_hangs = true;
  for (const ExtentId& id : ids) EXPECT_TRUE(Reads(id));
  EXPECT_GT(cache_->counts().evicted_count, 10U);
  EXPECT_EQ(hanging_count, 1);
  cache_->Tend();  // Does not wait for it either.
  EXPECT_TRUE(Reads(ids.back()));
}

// Others have filled the disk: to remove everything would help nobody.
TEST_F(OriginFaultsTest, AFetchThatFindsTheDiskFullRemovesNoMoreThanItNeeds) {
  options_.retry = 1h;
  Open(1);
  const auto ids = Publish("good", 8);
  for (std::size_t i = 0; i < 7; ++i) ASSERT_TRUE(Reads(ids[i]));
  disk_is_full = true;
  cache_->store().disks().front()->RefreshSpace();
  Ask(ids[7]);
  ASSERT_TRUE(Eventually([&] { return cache_->counts().failed_count == 1; }));

  EXPECT_EQ(cache_->counts().evicted_count, 1U);
  EXPECT_EQ(std::ranges::count_if(ids, [&](const ExtentId& id) { return IsCached(id); }), 6);
  EXPECT_NE(cache_->counts().trouble.find("cannot cache it"), std::string::npos);
}

// Its reader hears so at once, and asks another node.
TEST_F(OriginFaultsTest, AFetchThatHasNoRoomIsRefusedUntilThereIsRoomAgain) {
  Open(1);
  const auto ids = Publish("good", 1);
  disk_is_full = true;
  cache_->store().disks().front()->RefreshSpace();
  ExtentPtr extent = cache_->Find(ids[0]);

  EXPECT_TRUE(Eventually([&] {
    extent = cache_->Use(extent);
    return extent->disk == nullptr && extent->refusal == ErrorCode::kIo;
  }));

  disk_is_full = false;
  cache_->store().disks().front()->RefreshSpace();
  EXPECT_TRUE(Reads(ids[0]));
}

// What the others have filled can be evicted once they have ended.
TEST_F(OriginFaultsTest, RoomThatOtherFetchesTakeIsNoReasonToRefuse) {
  Open(1);
  CacheRoom room(cache_->store(), 10 * kSize);
  std::optional<CacheRoom::Reservation> other;
  other.emplace(room.Reserve(kSize).value());
  disk_is_full = true;
  cache_->store().disks().front()->RefreshSpace();

  EXPECT_EQ(room.Reserve(kSize).error().code, ErrorCode::kUnavailable);
  other.reset();
  EXPECT_EQ(room.Reserve(kSize).error().code, ErrorCode::kIo);
  EXPECT_EQ(room.Reserve(kSize).error().system_errno, ENOSPC);
}

// The cache gives way, one extent's worth at a time.
TEST_F(OriginFaultsTest, UpkeepMakesRoomOnADiskThatOthersHaveFilled) {
  Open(1);
  const auto ids = Publish("good", 3);
  for (const ExtentId& id : ids) ASSERT_TRUE(Reads(id));
  cache_->Tend();
  EXPECT_TRUE(Reads(ids[0]));
  EXPECT_EQ(cache_->counts().evicted_count, 0U);
  disk_is_full = true;
  cache_->Tend();
  // 64 MiB are more than all that is there.
  EXPECT_TRUE(Eventually([&] { return cache_->counts().evicted_count == 3; }));
}

class HungOriginClusterTest : public test::DaemonCluster {
 protected:
  ~HungOriginClusterTest() override { origin_hangs = false; }
  void Adjust(const std::string& /*node*/, Server::Options& options) override {
    options.cluster->origins.reader.allowed = {(folder_ / "hung").string()};
  }
};

TEST_F(HungOriginClusterTest, ADaemonEndsInTimeThoughItsOriginHangs) {
  fs::create_directory(folder_ / "hung");
  const std::string content(kSize, 'x');
  test::WriteFile(folder_ / "hung" / "f", content);
  StartNodes(1);
  const ManifestExtent extent{MakeExtentId(7, 0, 0), kSize, Xxh3(test::AsBytes(content))};
  const std::string address = AddressOf(nodes_[0]);
  ASSERT_TRUE(Client().Publish(
      address, "a", {{{"f", kSize, {extent}, {(folder_ / "hung" / "f").string(), ""}}}}));
  origin_hangs = true;
  const auto nothing = [](std::span<const std::byte>) { return Result<void>(); };
  ASSERT_TRUE(Eventually([&] {
    const auto channel = Client().Connect(address).value();
    EXPECT_FALSE(ReadExtent(*channel, extent, test::Within(1s), 10ms, nothing));
    return hanging_count == 1;
  }));

  EXPECT_FALSE(nodes_[0].daemon->Stop(100ms));  // It has not waited for ever.
  EXPECT_EQ(hanging_count, 1);
  origin_hangs = false;
  EXPECT_TRUE(nodes_[0].daemon->Stop(60s));
}

}  // namespace
}  // namespace ffrecord::server
