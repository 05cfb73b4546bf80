// Goal: extents of an origin are fetched once, verified before they are served, kept within bounds,
// and removed without harm; an origin that is not as it was published is never served.
// Method: files of a folder are the origin; they are changed, cut, hidden and put back.

#include "server/service/origin/origin_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>

#include "bytes.h"
#include "cluster_clients.h"
#include "daemon.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/clock.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using test::Eventually;
using namespace std::chrono_literals;

constexpr std::size_t kSize = 100'000;

class OriginCacheTest : public testing::Test {
 protected:
  OriginCacheTest() {
    fs::create_directory(folder_ / "shared");
    options_.folders = {{folder_ / "cache", disk_.get()}};
    options_.free_bytes_min = 0;
    options_.retry = 1ms;
    options_.reader.allowed = {(folder_ / "shared").string()};
  }
  void Open() {
    cache_.reset();
    auto opened = OriginCache::Open(options_);
    ASSERT_TRUE(opened) << opened.error().message;
    cache_ = std::move(opened).value();
  }

  fs::path PathOf(std::size_t file) const {
    return folder_ / "shared" / ("f" + std::to_string(file));
  }
  // Files of one extent each, which lie in the shared folder.
  DatasetManifest Make(std::size_t count) {
    contents_ = test::SomeExtents(count, kSize);
    DatasetManifest manifest;
    for (std::size_t i = 0; i < count; ++i) {
      test::WriteFile(PathOf(i), contents_[i]);
      const ManifestExtent extent{MakeExtentId(7, static_cast<std::uint32_t>(i), 0), kSize,
                                  Xxh3(test::AsBytes(contents_[i]))};
      manifest.files.push_back(
          {"f" + std::to_string(i), kSize, {extent}, {PathOf(i).string(), ""}});
    }
    return manifest;
  }
  // Opens the cache, and publishes.
  DatasetManifest Publish(std::size_t count) {
    Open();
    auto manifest = Make(count);
    cache_->Change(nullptr, &manifest);
    return manifest;
  }

  // Reads until the extent is on a disk. Its bytes.
  std::string Read(const ExtentId& id) {
    ExtentPtr extent = cache_->Find(id);
    const bool has_come = Eventually([&] {
      if (extent) extent = cache_->Use(extent);
      return extent && extent->disk != nullptr;
    });
    return has_come ? BytesOf(*extent) : "it did not come: " + cache_->counts().trouble;
  }
  static std::string BytesOf(const Extent& extent) {
    const auto file = ExtentStore::OpenFile(extent);
    return file ? Content(file.value().get()) : file.error().message;
  }
  static std::string Content(int fd) {
    std::string bytes(kSize, '\0');
    return ::pread(fd, bytes.data(), kSize, 0) == kSize ? bytes : "short";
  }
  // Reads until the refusal is that one.
  bool IsRefused(const ExtentId& id, ErrorCode refusal) {
    ExtentPtr extent = cache_->Find(id);
    return Eventually([&] {
      extent = cache_->Use(extent);
      return extent->disk == nullptr && extent->refusal == refusal;
    });
  }
  std::size_t FileCount() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(fs::recursive_directory_iterator(folder_ / "cache"),
                              [](const auto& entry) { return entry.is_regular_file(); }));
  }
  // One bit of the extent, whose file is that of the number, is another one from now on.
  void Rot(const Extent& extent, std::size_t number) const {
    std::fstream file(extent.disk->PathOf(extent.id),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5);
    file.put(static_cast<char>(contents_[number][5] ^ 1));
    file.close();
    ASSERT_NE(BytesOf(extent), contents_[number]);
  }
  // The count follows right after the extent can be found.
  bool HasFetched(std::uint64_t count) const {
    return Eventually([&] { return cache_->counts().fetched_count == count; });
  }
  bool IsCached(const ExtentId& id) const { return cache_->store().Find(id) != nullptr; }
  static ExtentId IdOf(const DatasetManifest& manifest, std::size_t file) {
    return manifest.files[file].extents[0].id;
  }

  test::TempFolder folder_;
  const std::unique_ptr<Disk> disk_ = Disk::Open(folder_ / "extents").value();
  OriginCache::Options options_;
  std::vector<std::string> contents_;
  std::unique_ptr<OriginCache> cache_;  // First to go.
};

TEST_F(OriginCacheTest, ManyReadsWaitForOneFetch) {
  const auto manifest = Publish(1);
  const ExtentId id = IdOf(manifest, 0);
  EXPECT_EQ(cache_->Find(id)->disk, nullptr);  // To bind it fetches nothing.
  EXPECT_TRUE(HasFetched(0));

  std::array<std::thread, 4> readers;
  for (std::thread& reader : readers)
    reader = std::thread([&] { EXPECT_EQ(Read(id), contents_[0]); });
  for (std::thread& reader : readers) reader.join();

  EXPECT_TRUE(HasFetched(1));
  EXPECT_EQ(cache_->counts().size_bytes, kSize);
  fs::remove(PathOf(0));
  EXPECT_EQ(Read(id), contents_[0]);
}

TEST_F(OriginCacheTest, AFileOfSeveralExtentsIsReadAtTheRightOffset) {
  Open();
  const std::string bytes = "extents of 64 MiB, and the rest";
  test::WriteFile(PathOf(0), "");
  fs::resize_file(PathOf(0), kExtentSizeMax);
  std::ofstream(PathOf(0), std::ios::app | std::ios::binary) << bytes;
  const ManifestExtent first{MakeExtentId(7, 0, 0), kExtentSizeMax, 1};
  const ManifestExtent rest{MakeExtentId(7, 0, 1), bytes.size(), Xxh3(test::AsBytes(bytes))};
  const DatasetManifest manifest{
      {{"f0", kExtentSizeMax + bytes.size(), {first, rest}, {PathOf(0).string(), ""}}}};
  cache_->Change(nullptr, &manifest);

  ExtentPtr extent = cache_->Find(rest.id);
  ASSERT_TRUE(Eventually([&] { return (extent = cache_->Use(extent))->disk != nullptr; }))
      << cache_->counts().trouble;
  std::string read(bytes.size(), '\0');
  const auto file = ExtentStore::OpenFile(*extent).value();
  ASSERT_EQ(::pread(file.get(), read.data(), read.size(), 0), static_cast<ssize_t>(read.size()));
  EXPECT_EQ(read, bytes);
  EXPECT_TRUE(IsRefused(first.id, ErrorCode::kCorruption));  // Its checksum is no such.
}

TEST_F(OriginCacheTest, WhatWasUsedLeastRecentlyGoesFirst) {
  options_.size_bytes_max = 3 * kSize;
  const auto manifest = Publish(5);
  for (const std::size_t i : {0U, 1U, 2U}) EXPECT_EQ(Read(IdOf(manifest, i)), contents_[i]);
  std::this_thread::sleep_for(2ms);  // The clock of use has milliseconds.
  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  const auto open = ExtentStore::OpenFile(*cache_->Find(IdOf(manifest, 1))).value();

  EXPECT_EQ(Read(IdOf(manifest, 3)), contents_[3]);
  EXPECT_TRUE(IsCached(IdOf(manifest, 0)));
  EXPECT_EQ(Read(IdOf(manifest, 4)), contents_[4]);

  EXPECT_TRUE(IsCached(IdOf(manifest, 0)));
  EXPECT_FALSE(IsCached(IdOf(manifest, 1)));
  EXPECT_FALSE(IsCached(IdOf(manifest, 2)));
  EXPECT_TRUE(Eventually([&] { return FileCount() == 3; }));
  EXPECT_EQ(cache_->counts().evicted_count, 2U);
  EXPECT_EQ(Content(open.get()), contents_[1]);  // Who reads it reads on.
  EXPECT_EQ(Read(IdOf(manifest, 1)), contents_[1]);
}

TEST_F(OriginCacheTest, AnEvictedExtentThatIsStillBoundIsFetchedAgain) {
  options_.size_bytes_max = kSize;
  const auto manifest = Publish(2);
  Read(IdOf(manifest, 0));
  const ExtentPtr bound = cache_->Find(IdOf(manifest, 0));
  Read(IdOf(manifest, 1));
  ASSERT_TRUE(bound->is_deleted);

  ExtentPtr now = bound;
  EXPECT_TRUE(Eventually([&] { return (now = cache_->Use(now))->disk != nullptr; }));
  EXPECT_EQ(BytesOf(*now), contents_[0]);
}

// The scan makes nothing of it, and it has the name of what is to be cached.
TEST_F(OriginCacheTest, AFileWithADamagedTrailerIsReplaced) {
  const auto manifest = Publish(1);
  ASSERT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  cache_.reset();
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "cache"))
    if (entry.is_regular_file()) fs::resize_file(entry.path(), entry.file_size() - 1);
  Open();
  cache_->Change(nullptr, &manifest);
  ASSERT_FALSE(IsCached(IdOf(manifest, 0)));

  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  EXPECT_EQ(FileCount(), 1U);
}

TEST_F(OriginCacheTest, WhatADiskHasLostThatTakesNoWritesIsFetchedToAnother) {
  options_.folders.push_back({folder_ / "other", disk_.get()});
  const auto manifest = Publish(1);
  ASSERT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  const ExtentPtr lost = cache_->Find(IdOf(manifest, 0));
  lost->disk->writes().Note({ErrorCode::kIo, "the disk fails", EIO});
  fs::resize_file(lost->disk->PathOf(lost->id), 10);
  lost->is_suspect = true;

  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  EXPECT_NE(cache_->Find(IdOf(manifest, 0))->disk, lost->disk);
}

TEST_F(OriginCacheTest, ADiskThatTakesNoCacheIsLeftOut) {
  test::WriteFile(folder_ / "file", "no folder");
  options_.folders.push_back({folder_ / "file" / "origin-cache", disk_.get()});
  const auto manifest = Publish(1);
  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);

  options_.folders = {{folder_ / "file" / "origin-cache", disk_.get()}};
  EXPECT_FALSE(OriginCache::Open(options_));
}

TEST_F(OriginCacheTest, AnExtentThatIsLargerThanTheCacheIsNotFetched) {
  options_.size_bytes_max = kSize - 1;
  const auto manifest = Publish(1);
  EXPECT_TRUE(IsRefused(IdOf(manifest, 0), ErrorCode::kIo));  // Another node may take it.
  EXPECT_NE(cache_->counts().trouble.find("origin_cache_mib"), std::string::npos)
      << cache_->counts().trouble;
}

TEST_F(OriginCacheTest, AnOriginThatHasChangedIsNeitherServedNorKept) {
  const auto manifest = Publish(3);
  std::string other = contents_[0];
  other[kSize / 2] ^= 1;
  test::WriteFile(PathOf(0), other);                       // One bit.
  test::WriteFile(PathOf(1), contents_[1] + "x");          // Longer.
  test::WriteFile(PathOf(2), contents_[2].substr(0, 10));  // Shorter.

  for (const std::size_t i : {0U, 1U, 2U}) {
    EXPECT_TRUE(IsRefused(IdOf(manifest, i), ErrorCode::kCorruption)) << i;
    EXPECT_TRUE(Eventually([&] {
      cache_->Use(cache_->Find(IdOf(manifest, i)));
      return cache_->counts().trouble.starts_with(PathOf(i).string() + " has changed");
    })) << cache_->counts().trouble;
    EXPECT_FALSE(IsCached(IdOf(manifest, i)));
  }
  EXPECT_EQ(FileCount(), 0U);

  for (const std::size_t i : {0U, 1U, 2U}) test::WriteFile(PathOf(i), contents_[i]);
  for (const std::size_t i : {0U, 1U, 2U}) EXPECT_EQ(Read(IdOf(manifest, i)), contents_[i]);
}

TEST_F(OriginCacheTest, NothingOutsideTheAllowedFoldersIsRead) {
  Open();
  test::WriteFile(folder_ / "secret", "secret");
  fs::create_symlink(folder_ / "secret", folder_ / "shared" / "link");
  fs::create_directory_symlink(folder_.path(), folder_ / "shared" / "up");
  const std::string shared = (folder_ / "shared").string();
  const auto error_of = [&](const std::string& address) {
    const auto read = OriginReader(options_.reader).Read({{address, ""}, 6}, 0, 6, [](const auto&) {
      return Result<void>();
    });
    return read ? ErrorCode::kOk : read.error().code;
  };

  EXPECT_EQ(cache_->Check((folder_ / "secret").string()).error().code, ErrorCode::kDenied);
  EXPECT_EQ(cache_->Check(shared + "2/x").error().code, ErrorCode::kDenied);
  EXPECT_EQ(cache_->Check("s3://bucket/x").error().code, ErrorCode::kDenied);
  EXPECT_EQ(cache_->Check(shared).error().code, ErrorCode::kDenied);
  for (const std::string& address :
       {shared + "/../secret", shared + "//secret", shared + "/./x", shared + "/x/",
        std::string("shared/x"), std::string("http://host/x"), std::string("s3://b/x*"),
        std::string()})
    EXPECT_EQ(cache_->Check(address).error().code, ErrorCode::kInvalidArgument) << address;
  EXPECT_NE(error_of(shared + "/link"), ErrorCode::kOk);
  EXPECT_NE(error_of(shared + "/up/secret"), ErrorCode::kOk);
  test::WriteFile(folder_ / "shared" / "good", "secret");
  EXPECT_EQ(error_of(shared + "/good"), ErrorCode::kOk);
}

TEST_F(OriginCacheTest, AnOriginThatIsMissingIsToldAndTriedAgain) {
  const auto manifest = Publish(1);
  fs::rename(PathOf(0), folder_ / "away");
  EXPECT_TRUE(IsRefused(IdOf(manifest, 0), ErrorCode::kNotFound));
  EXPECT_NE(cache_->counts().trouble.find(PathOf(0).string()), std::string::npos);

  fs::rename(folder_ / "away", PathOf(0));
  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  EXPECT_EQ(cache_->counts().trouble, "");
}

TEST_F(OriginCacheTest, WhatNoNameHasIsNotFetched) {
  const auto manifest = Publish(1);
  EXPECT_FALSE(cache_->Knows(MakeExtentId(8, 0, 0)));
  EXPECT_EQ(cache_->Find(MakeExtentId(8, 0, 0)), nullptr);
  auto foreign = std::make_shared<Extent>();
  foreign->id = MakeExtentId(8, 0, 0);
  EXPECT_EQ(cache_->Use(foreign), nullptr);
}

TEST_F(OriginCacheTest, ADamagedExtentIsFetchedAgain) {
  const auto manifest = Publish(1);
  const ExtentId id = IdOf(manifest, 0);
  EXPECT_EQ(Read(id), contents_[0]);
  const ExtentPtr bound = cache_->Find(id);
  Rot(*bound, 0);

  cache_->store().Mark(*bound, true);  // As the scrubber does.
  cache_->Discard(*bound);

  EXPECT_EQ(Read(id), contents_[0]);
  EXPECT_TRUE(HasFetched(2));
}

constexpr auto kDoubted = OriginCache::Trust::kDoubted;

TEST_F(OriginCacheTest, ADamagedExtentThatAReaderDoubtsIsFetchedAgain) {
  const auto manifest = Publish(1);
  const ExtentId id = IdOf(manifest, 0);
  EXPECT_EQ(Read(id), contents_[0]);
  ExtentPtr extent = cache_->Find(id);
  Rot(*extent, 0);
  EXPECT_EQ(cache_->Use(extent), extent);  // Nobody has noticed.

  EXPECT_EQ(cache_->Use(extent, kDoubted)->disk, nullptr);
  EXPECT_EQ(Read(id).size(), kSize);  // Others go on reading what there is.
  ASSERT_TRUE(Eventually([&] {
    extent = cache_->Use(extent, kDoubted);
    return extent->disk != nullptr;
  }));

  EXPECT_EQ(BytesOf(*extent), contents_[0]);
  EXPECT_TRUE(HasFetched(2));
  EXPECT_EQ(cache_->counts().damaged_count, 1U);
}

// Such as what a broken disk has left of an extent: the scan takes it for none.
TEST_F(OriginCacheTest, AFileOfItsNameThatIsNoExtentGivesWay) {
  Open();
  const auto manifest = Make(1);
  const fs::path path = cache_->store().disks().front()->PathOf(IdOf(manifest, 0));
  fs::create_directories(path.parent_path());
  test::WriteFile(path, "torn");
  Open();
  cache_->Change(nullptr, &manifest);
  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
}

TEST_F(OriginCacheTest, NothingIsCachedOnADiskThatIsTakenOut) {
  disk_->set_drain(Disk::Drain::kDraining);
  const auto manifest = Publish(1);
  const ExtentPtr absent = cache_->Find(IdOf(manifest, 0));
  EXPECT_TRUE(Eventually([&] {
    cache_->Use(absent);
    return cache_->counts().failed_count > 0;
  }));
  EXPECT_EQ(FileCount(), 0U);
  disk_->set_drain(Disk::Drain::kNone);
  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
}

// Somebody who doubts all the time costs a look now and then, and nothing is fetched.
TEST_F(OriginCacheTest, AnExtentThatIsDoubtedForNothingIsServedAgainAndStays) {
  options_.verify_interval = 1h;
  const auto manifest = Publish(1);
  const ExtentId id = IdOf(manifest, 0);
  EXPECT_EQ(Read(id), contents_[0]);
  const ExtentPtr extent = cache_->Find(id);

  EXPECT_EQ(cache_->Use(extent, kDoubted)->disk, nullptr);
  ASSERT_TRUE(Eventually([&] { return cache_->Use(extent, kDoubted) == extent; }));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(cache_->Use(extent, kDoubted), extent);

  EXPECT_TRUE(HasFetched(1));
  EXPECT_EQ(cache_->counts().damaged_count, 0U);
}

TEST_F(OriginCacheTest, AnExtentThatCouldNotBeReadIsVerifiedAndFetchedAgain) {
  const auto manifest = Publish(1);
  const ExtentId id = IdOf(manifest, 0);
  EXPECT_EQ(Read(id), contents_[0]);
  const ExtentPtr extent = cache_->Find(id);
  fs::remove(extent->disk->PathOf(id));
  extent->is_suspect = true;  // As DiskReader does.

  EXPECT_EQ(Read(id), contents_[0]);
  EXPECT_TRUE(HasFetched(2));
}

// What somebody has to change is tried ten times more seldom than what may pass.
TEST_F(OriginCacheTest, AnOriginThatIsMissingIsTriedSeldom) {
  options_.retry = 5ms;
  const auto manifest = Publish(1);
  fs::remove(PathOf(0));
  const auto began = Clock::now();

  ASSERT_TRUE(Eventually([&] {
    cache_->Use(cache_->Find(IdOf(manifest, 0)));
    return cache_->counts().failed_count >= 3;
  }));

  EXPECT_GE(Clock::now() - began, 2 * 10 * options_.retry);
}

TEST_F(OriginCacheTest, AnAddressThatIsNoLongerAllowedIsRefusedWithoutAFetch) {
  Open();
  auto manifest = Make(1);
  manifest.files[0].origin.address = (folder_ / "other" / "f0").string();
  cache_->Change(nullptr, &manifest);
  EXPECT_TRUE(IsRefused(IdOf(manifest, 0), ErrorCode::kDenied));
  EXPECT_NE(cache_->counts().trouble.find("setting origins"), std::string::npos);
}

// The names of what is cached are looked at while reads look for what is cached.
TEST_F(OriginCacheTest, ReadsAndUpkeepDoNotWaitForEachOther) {
  options_.grace = options_.names_patience = 0ms;
  const auto manifest = Publish(20);
  for (std::size_t i = 0; i < 20; ++i) Read(IdOf(manifest, i));
  std::atomic<bool> is_over{false};
  std::thread upkeep([&] {
    while (!is_over) cache_->Tend();
  });
  for (int round = 0; round < 2000; ++round)
    for (std::size_t i = 0; i < 20; ++i) EXPECT_NE(cache_->Find(IdOf(manifest, i)), nullptr);
  is_over = true;
  upkeep.join();
  EXPECT_TRUE(HasFetched(20));
}

TEST_F(OriginCacheTest, WhatNoNameExplainsLeavesTheCache) {
  const auto manifest = Publish(2);
  for (const std::size_t i : {0U, 1U}) Read(IdOf(manifest, i));
  options_.grace = options_.names_patience = 0ms;
  Open();
  auto half = manifest;
  half.files.resize(1);
  cache_->Change(nullptr, &half);
  cache_->Tend();
  EXPECT_TRUE(Eventually([&] { return FileCount() == 1; }));
  EXPECT_TRUE(IsCached(IdOf(manifest, 0)));
}

TEST_F(OriginCacheTest, ARemovedNameLeavesTheCacheAfterTheGraceAndTheOriginNever) {
  options_.grace = 2s;
  const auto manifest = Publish(2);
  auto half = manifest;
  half.files.resize(1);
  cache_->Change(nullptr, &half);  // Another name has the first file.
  for (const std::size_t i : {0U, 1U}) EXPECT_EQ(Read(IdOf(manifest, i)), contents_[i]);

  cache_->Change(&manifest, nullptr);
  cache_->Tend();
  EXPECT_TRUE(IsCached(IdOf(manifest, 1)));  // Its readers go on.
  EXPECT_TRUE(Eventually([&] {
    cache_->Tend();
    return !cache_->Knows(IdOf(manifest, 1));
  }));

  EXPECT_FALSE(IsCached(IdOf(manifest, 1)));
  EXPECT_TRUE(IsCached(IdOf(manifest, 0)));
  EXPECT_TRUE(Eventually([&] { return FileCount() == 1; }));
  EXPECT_EQ(test::ReadFile(PathOf(0)), contents_[0]);
  EXPECT_EQ(test::ReadFile(PathOf(1)), contents_[1]);
}

TEST_F(OriginCacheTest, ANameThatComesBackWithinTheGraceKeepsItsExtents) {
  options_.grace = 0ms;
  const auto manifest = Publish(1);
  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  cache_->Change(&manifest, nullptr);
  cache_->Change(nullptr, &manifest);
  cache_->Tend();
  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  EXPECT_TRUE(HasFetched(1));
}

TEST_F(OriginCacheTest, ARestartFindsWhatWasFetched) {
  const auto manifest = Publish(2);
  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  Open();
  cache_->Change(nullptr, &manifest);

  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  EXPECT_TRUE(HasFetched(0));
  EXPECT_EQ(Read(IdOf(manifest, 1)), contents_[1]);
}

// As of an upload of other bytes under that id, or of a manifest that an earlier name had.
TEST_F(OriginCacheTest, OtherBytesUnderTheIdAreNotServed) {
  const auto manifest = Publish(1);
  EXPECT_EQ(Read(IdOf(manifest, 0)), contents_[0]);
  Open();
  auto other = Make(1);
  contents_[0][0] ^= 1;
  test::WriteFile(PathOf(0), contents_[0]);
  other.files[0].extents[0].xxh3 = Xxh3(test::AsBytes(contents_[0]));
  cache_->Change(nullptr, &other);

  EXPECT_EQ(Read(IdOf(other, 0)), contents_[0]);
}

}  // namespace
}  // namespace ffrecord::server
