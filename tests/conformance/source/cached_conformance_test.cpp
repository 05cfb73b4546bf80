// Files through a cache on disk as a byte source: range_reader_conformance.h says what is tested,
// with a cache that is empty, full of what is read, and damaged. Then what the cache alone
// promises: nothing that happens to its folder changes what is read, and its bound holds.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "libffrecord/source/block_cache.h"
#include "libffrecord/source/cached_files.h"
#include "libffrecord/source/cached_view.h"
#include "libffrecord/source/resident_files.h"
#include "memory_files.h"
#include "range_queue_conformance.h"
#include "range_reader_conformance.h"
#include "temp_folder.h"
#include "virtual_clock.h"

namespace ffrecord::test {
namespace {

using Made = Result<std::shared_ptr<const RangeReader>>;

constexpr std::uint64_t kBound = BlockCache::kSizeMin;
// A cache looks at its folder, and notes what is used, once in a second.
constexpr std::chrono::milliseconds kNextLook{1100};

struct CachedSource {
  explicit CachedSource(const Contents& contents)
      : counting(std::make_shared<MemoryFiles>(contents)) {
    for (std::size_t i = 0; i < contents.size(); ++i)
      identities.push_back("file " + std::to_string(i));
  }
  void Open() {
    files =
        OpenCachedFiles(counting, BlockCache::Open(folder / "cache", kBound).value(), identities);
  }
  // What is read of the files behind the cache by `read`.
  template <class Read>
  std::uint64_t Behind(const Read& read) const {
    const std::uint64_t before = counting->range_bytes();
    read();
    return counting->range_bytes() - before;
  }
  std::vector<std::filesystem::path> Entries() const {
    std::vector<std::filesystem::path> entries;
    for (const auto& one : std::filesystem::recursive_directory_iterator(folder.path()))
      if (one.path().extension() == ".blocks") entries.push_back(one.path());
    return entries;
  }

  TempFolder folder{std::filesystem::current_path()};
  std::shared_ptr<MemoryFiles> counting;
  std::vector<std::string> identities;
  std::unique_ptr<RangeReader> files;
};

// All of a file in blocks, through the cache.
std::string WholeOf(const RangeReader& files, std::uint32_t file) {
  const std::uint64_t size = files.file_size_bytes(file);
  const std::uint64_t block = files.alignment_bytes(file);
  auto memory = files.TakeMemory((size + block - 1) / block * block + block).value();
  std::vector<RangeRead> ranges;
  for (std::uint64_t at = 0; at < size; at += 100 * block)
    ranges.push_back(
        {file, at,
         memory->subspan(at, std::min(100 * block, (size - at + block - 1) / block * block))});
  if (!files.Read(ranges)) return "not read";
  for (const RangeRead& range : ranges)
    if (range.status != ErrorCode::kOk) return "bad status";
  return {reinterpret_cast<const char*>(memory->data()), size};
}

Made Cached(const Contents& contents, bool is_warm, bool is_damaged) {
  auto source = std::make_shared<CachedSource>(contents);
  source->Open();
  if (is_warm)
    for (std::uint32_t file = 0; file < contents.size(); ++file) WholeOf(*source->files, file);
  if (is_damaged)
    for (const auto& path : source->Entries()) {
      std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
      for (std::uintmax_t at = 8192; at < std::filesystem::file_size(path); at += 20'000) {
        stream.seekp(static_cast<std::streamoff>(at));
        stream.put('x');
      }
    }
  return Made(std::shared_ptr<const RangeReader>(source, source->files.get()));
}

const std::vector<RangeReaderForm> kForms{
    {.name = "empty", .make = [](auto& contents) { return Cached(contents, false, false); }},
    {.name = "warm", .make = [](auto& contents) { return Cached(contents, true, false); }},
    {.name = "damaged",
     .make = [](auto& contents) { return Cached(contents, true, true); },
     .presence_is_right = false}};

INSTANTIATE_TEST_SUITE_P(Forms, RangeReaderConformance, testing::ValuesIn(AndTheirQueues(kForms)),
                         NameOfForm);
INSTANTIATE_TEST_SUITE_P(Forms, RangeQueueConformance, testing::ValuesIn(kForms), NameOfForm);

// --- What the cache promises ---------------------------------------------------------------------

class BlockCacheTest : public testing::Test {
 protected:
  BlockCacheTest() : contents_{RandomContent((20U << 20) + 777)}, source_(contents_) {
    source_.Open();
  }
  std::uint64_t ReadBehind() {
    return source_.Behind([&] { EXPECT_TRUE(WholeOf(*source_.files, 0) == contents_[0]); });
  }

  Contents contents_;
  CachedSource source_;
};

TEST_F(BlockCacheTest, WhatWasReadIsNotReadAgain) {
  EXPECT_EQ(ReadBehind(), contents_[0].size());
  EXPECT_EQ(ReadBehind(), 0U);
  source_.Open();  // As another process would.
  EXPECT_EQ(ReadBehind(), 0U);
}

TEST_F(BlockCacheTest, AnotherVersionFindsNothing) {
  ReadBehind();
  source_.identities = {"file 0, replaced"};
  source_.Open();
  EXPECT_EQ(ReadBehind(), contents_[0].size());
}

TEST_F(BlockCacheTest, EveryDamagedBlockIsReadAgain) {
  ReadBehind();
  for (const auto& path : source_.Entries()) {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(1'000'000);
    stream.put('x').put('y');
  }
  EXPECT_GT(ReadBehind(), 0U);
  EXPECT_EQ(ReadBehind(), 0U);  // It was mended.
}

TEST_F(BlockCacheTest, EntriesThatAreCutEmptyOrSwappedAreMisses) {
  ReadBehind();
  const auto entries = source_.Entries();
  ASSERT_EQ(entries.size(), 2U);
  std::filesystem::resize_file(entries[0], 1'000'000);
  EXPECT_GT(ReadBehind(), 0U);
  std::filesystem::resize_file(entries[0], 0);
  std::filesystem::resize_file(entries[1], 4097);
  source_.Open();
  EXPECT_EQ(ReadBehind(), contents_[0].size());
  const auto aside = source_.folder / "aside";
  std::filesystem::rename(entries[0], aside);
  std::filesystem::rename(entries[1], entries[0]);
  std::filesystem::rename(aside, entries[1]);
  source_.Open();
  EXPECT_EQ(ReadBehind(), contents_[0].size());
  EXPECT_EQ(ReadBehind(), 0U);
}

// Each is whole, and its check that of its bytes.
TEST_F(BlockCacheTest, BlocksThatHaveChangedPlacesWithTheirChecksAreMisses) {
  ReadBehind();
  constexpr std::size_t kCheckBytes = sizeof(std::uint64_t);
  for (const auto& path : source_.Entries()) {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto swap = [&](std::uint64_t at, std::size_t size) {
      std::string both(2 * size, '\0');
      stream.seekg(static_cast<std::streamoff>(at));
      stream.read(both.data(), std::ssize(both));
      std::rotate(both.begin(), both.begin() + static_cast<std::ptrdiff_t>(size), both.end());
      stream.seekp(static_cast<std::streamoff>(at));
      stream.write(both.data(), std::ssize(both));
    };
    swap(BlockCache::kBlockBytes, kCheckBytes);
    swap(BlockCache::kDataBegin, BlockCache::kBlockBytes);
  }
  source_.Open();
  EXPECT_GT(ReadBehind(), 0U);
  EXPECT_EQ(ReadBehind(), 0U);
}

TEST_F(BlockCacheTest, AFolderThatIsRemovedIsMadeAgain) {
  VirtualClock clock;
  ReadBehind();
  std::filesystem::remove_all(source_.folder / "cache");
  ReadBehind();  // Perhaps out of files that have no name any more.
  clock.RunFor(kNextLook);
  ReadBehind();
  EXPECT_EQ(ReadBehind(), 0U);
  EXPECT_EQ(source_.Entries().size(), 2U);
}

TEST_F(BlockCacheTest, AFullDiskCostsTimeAlone) {
  const auto in_child = [this] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &small);  // Writes fail as on a full disk.
    return WholeOf(*source_.files, 0) == contents_[0] && WholeOf(*source_.files, 0) == contents_[0]
               ? 0
               : 1;
  };
  EXPECT_EQ(RunInChild(in_child), 0);
  EXPECT_GT(ReadBehind(), 0U);
}

// A tmpfs of `mib` at the folder, for this process alone; false if that is not allowed here.
bool MountSmallDisk(const std::filesystem::path& folder, const std::string& mib) {
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, ("size=" + mib + "m").c_str()) == 0;
}

// A tmpfs fails writes of entries that look large enough, and has no page for a hole in one that is
// mapped: whatever is read there is right, from the cache or from the source.
TEST_F(BlockCacheTest, AFullTmpfsCostsTimeAlone) {
  const auto in_child = [this] {
    const auto cache = source_.folder / "cache";
    std::filesystem::create_directory(cache);
    if (!MountSmallDisk(cache, "10")) return kSkipped;
    source_.Open();
    for (int turn = 0; turn < 2; ++turn)
      if (WholeOf(*source_.files, 0) != contents_[0]) return 1;
    const auto mapped = source_.files->resident()->Mapped(0);
    const auto wanted = std::as_bytes(std::span(contents_[0]));
    std::uint64_t present_bytes = 0;
    for (std::uint64_t at = 0; at + 4096 <= wanted.size(); at += 4096) {
      if (!source_.files->resident()->PresenceOf(0)->Has(at, 4096)) continue;
      present_bytes += 4096;
      if (!std::ranges::equal(mapped.subspan(at, 4096), wanted.subspan(at, 4096))) return 2;
    }
    // What fits was kept, and is used.
    const std::uint64_t size = contents_[0].size();
    if (present_bytes == 0 || present_bytes >= size) return 3;
    if (source_.Behind([&] { WholeOf(*source_.files, 0); }) >= size) return 4;
    // Somebody else fills the rest, then makes room.
    std::ofstream(cache / "other") << std::string(10U << 20, 'x');
    if (WholeOf(*source_.files, 0) != contents_[0]) return 5;
    std::filesystem::remove(cache / "other");
    return WholeOf(*source_.files, 0) == contents_[0] ? 0 : 6;
  };
  const int ended = RunInChild(in_child);
  if (ended == kSkipped) GTEST_SKIP() << "a tmpfs cannot be mounted here";
  EXPECT_EQ(ended, 0);
}

TEST_F(BlockCacheTest, AFullTmpfsIsUsedAgainOnceItHasRoom) {
  const auto in_child = [this] {
    const auto cache = source_.folder / "cache";
    std::filesystem::create_directory(cache);
    if (!MountSmallDisk(cache, "40")) return kSkipped;
    std::ofstream(cache / "other") << std::string(41U << 20, 'x');
    source_.Open();
    if (WholeOf(*source_.files, 0) != contents_[0]) return 1;
    std::filesystem::remove(cache / "other");
    source_.Open();  // As another process would; this one keeps nothing for ten seconds.
    if (WholeOf(*source_.files, 0) != contents_[0]) return 2;
    return source_.Behind([&] { WholeOf(*source_.files, 0); }) == 0 ? 0 : 3;
  };
  const int ended = RunInChild(in_child);
  if (ended == kSkipped) GTEST_SKIP() << "a tmpfs cannot be mounted here";
  EXPECT_EQ(ended, 0);
}

// What is said to be in memory is there, and all of it is.
bool IsInMemory(const RangeReader& files, std::uint32_t file, std::string_view content) {
  const auto mapped = files.resident()->Mapped(file);
  return files.resident()->PresenceOf(file)->Has(0, content.size()) &&
         std::ranges::equal(mapped, std::as_bytes(std::span(content)));
}

TEST_F(BlockCacheTest, WhatIsKeptIsMapped) {
  EXPECT_FALSE(source_.files->resident()->PresenceOf(0)->Has(0, 1));
  ReadBehind();
  EXPECT_TRUE(IsInMemory(*source_.files, 0, contents_[0]));
  source_.Open();  // As another process would, that has read nothing.
  EXPECT_TRUE(IsInMemory(*source_.files, 0, contents_[0]));
  const auto in_child = [this] { return IsInMemory(*source_.files, 0, contents_[0]) ? 0 : 1; };
  EXPECT_EQ(RunInChild(in_child), 0);
}

TEST_F(BlockCacheTest, WhatIsNotKeptIsNotMapped) {
  const std::uint64_t block = source_.files->alignment_bytes(0);
  auto memory = source_.files->TakeMemory(10 * block).value();
  std::vector<RangeRead> ranges{{0, 70 * block, *memory}};
  ASSERT_TRUE(source_.files->Read(ranges));
  const auto* const present = source_.files->resident()->PresenceOf(0);
  EXPECT_TRUE(present->Has(70 * block, 10 * block));
  EXPECT_TRUE(present->Has(80 * block - 1, 1));
  EXPECT_FALSE(present->Has(70 * block, 10 * block + 1));
  EXPECT_FALSE(present->Has(70 * block - 1, 2));
  EXPECT_FALSE(present->Has(18U << 20, 1));  // Of an entry that nobody has made.
}

TEST_F(BlockCacheTest, WhatOthersKeepIsMappedOnceItIsRead) {
  auto another =
      OpenCachedFiles(source_.counting, BlockCache::Open(source_.folder / "cache", kBound).value(),
                      source_.identities);
  EXPECT_FALSE(another->resident()->PresenceOf(0)->Has(0, 1));
  ReadBehind();
  EXPECT_EQ(source_.Behind([&] { WholeOf(*another, 0); }), 0U);
  EXPECT_TRUE(IsInMemory(*another, 0, contents_[0]));
}

TEST_F(BlockCacheTest, AMappedEntryThatIsEvictedReadsAsZerosUntilItIsThereAgain) {
  ReadBehind();
  ASSERT_TRUE(IsInMemory(*source_.files, 0, contents_[0]));
  for (const auto& path : source_.Entries()) {  // As the eviction of another process does.
    std::filesystem::resize_file(path, 0);
    std::filesystem::remove(path);
  }
  EXPECT_FALSE(IsInMemory(*source_.files, 0, contents_[0]));
  EXPECT_EQ(ReadBehind(), contents_[0].size());
  EXPECT_TRUE(IsInMemory(*source_.files, 0, contents_[0]));
}

TEST_F(BlockCacheTest, AMappedEntryThatIsRemovedIsLetGo) {
  VirtualClock clock;
  ReadBehind();
  ASSERT_TRUE(IsInMemory(*source_.files, 0, contents_[0]));
  std::filesystem::remove_all(source_.folder / "cache");
  clock.RunFor(kNextLook);
  source_.files->resident()->Mapped(0);
  EXPECT_FALSE(source_.files->resident()->PresenceOf(0)->Has(0, 1));
}

// A view of a file of that many entries, and an entry for any place in it.
struct ViewOfEntries {
  explicit ViewOfEntries(std::uint64_t count)
      : view(BlockCache::Open(folder / "cache", kBound).value(),
             {.id = {}, .size_bytes = count * BlockCache::kEntryBytes}) {}
  bool Add(int fd, std::uint64_t number) const {
    const auto entry = std::make_shared<BlockCache::Entry>();
    entry->fd.Reset(::dup(fd));
    entry->number = number;
    entry->inode = 1;
    view.Add(entry, number * BlockCache::kEntryBytes, BlockCache::kBlockBytes);
    return view.Has(number * BlockCache::kEntryBytes, BlockCache::kBlockBytes);
  }

  TempFolder folder{std::filesystem::current_path()};
  CachedView view;
};

TEST(CachedViewTest, AnEntryThatCannotBeMappedLeavesNoHole) {
  const ViewOfEntries entries(3);
  const UniqueFd refuses(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  EXPECT_FALSE(entries.Add(refuses.get(), 1));
  const auto bytes = entries.view.bytes();
  std::vector<unsigned char> pages(bytes.size() / BlockCache::kBlockBytes);
  EXPECT_EQ(::mincore(const_cast<std::byte*>(bytes.data()), bytes.size(), pages.data()), 0);
}

// Every second entry is there, so that a part without one lies between any two.
TEST(CachedViewTest, ProcessesOutliveTheEvictionOfAllThatTheyMap) {
  const auto in_child = [] {
    constexpr std::uint64_t kCount = 70'000;
    const ViewOfEntries entries(kCount);
    const auto path = entries.folder / "entry";
    std::ofstream(path) << "";
    std::filesystem::resize_file(path, BlockCache::kDataBegin + BlockCache::kEntryBytes);
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    std::vector<std::uint64_t> mapped;
    for (std::uint64_t number = 0; number < kCount; number += 2)
      if (entries.Add(fd.get(), number)) mapped.push_back(number);
    std::filesystem::resize_file(path, 0);
    std::byte sum{};
    mapped.resize(std::min<std::size_t>(mapped.size(), 8000));
    for (const std::uint64_t number : mapped)
      sum |= entries.view.bytes()[number * BlockCache::kEntryBytes + 9 * BlockCache::kBlockBytes];
    return !mapped.empty() && sum == std::byte{} ? 0 : 1;
  };
  EXPECT_EQ(RunInChild(in_child), 0);
}

std::uint64_t UsedBytes(const std::filesystem::path& folder) {
  std::uint64_t used = 0;
  for (const auto& one : std::filesystem::recursive_directory_iterator(folder)) {
    struct stat facts {};
    if (::stat(one.path().c_str(), &facts) == 0 && S_ISREG(facts.st_mode))
      used += static_cast<std::uint64_t>(facts.st_blocks) * 512;
  }
  return used;
}

TEST(BlockCacheBoundTest, HoldsForSeveralProcessesAndWhatWasUsedLastStays) {
  Contents contents;
  for (std::uint64_t i = 0; i < 12; ++i) contents.push_back(RandomContent((10U << 20) + i));
  CachedSource source(contents);
  source.Open();
  std::vector<pid_t> children;
  for (std::uint32_t child = 0; child < 3; ++child) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      bool is_right = true;
      for (std::uint32_t turn = 0; turn < 12; ++turn) {
        const std::uint32_t file = (turn + 4 * child) % 12;
        is_right = is_right && WholeOf(*source.files, file) == contents[file];
      }
      ::_exit(is_right ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_LE(UsedBytes(source.folder.path()), kBound);
  EXPECT_GT(UsedBytes(source.folder.path()), kBound / 3);
  VirtualClock clock;
  for (std::uint32_t file = 0; file < 5; ++file) WholeOf(*source.files, file);
  clock.RunFor(kNextLook);
  WholeOf(*source.files, 4);
  WholeOf(*source.files, 7);
  WholeOf(*source.files, 8);
  EXPECT_EQ(source.Behind([&] { WholeOf(*source.files, 4); }), 0U);
  EXPECT_LE(UsedBytes(source.folder.path()), kBound);
}

TEST(BlockCacheBoundTest, WhatIsUsedFromMemoryAloneStays) {
  VirtualClock clock;
  Contents contents;
  for (std::uint64_t i = 0; i < 8; ++i) contents.push_back(RandomContent((10U << 20) + i));
  CachedSource source(contents);
  source.Open();
  for (std::uint32_t file = 0; file < 4; ++file) WholeOf(*source.files, file);
  clock.RunFor(kNextLook);
  ASSERT_TRUE(IsInMemory(*source.files, 0, contents[0]));
  source.files->resident()->Mapped(0);
  clock.RunFor(kNextLook);
  ASSERT_TRUE(IsInMemory(*source.files, 0, contents[0]));
  EXPECT_EQ(source.files->report().store->cache_evictions, 0U);
  for (std::uint32_t file = 4; file < 7; ++file) WholeOf(*source.files, file);
  EXPECT_GT(source.files->report().store->cache_evictions, 0U);
  EXPECT_EQ(source.Behind([&] { WholeOf(*source.files, 0); }), 0U);
  EXPECT_GT(source.Behind([&] { WholeOf(*source.files, 1); }), 0U);
}

TEST(BlockCacheKillTest, AKilledProcessLeavesNothingWrong) {
  const Contents contents{RandomContent(30U << 20)};
  CachedSource source(contents);
  source.Open();
  for (int round = 0; round < 10; ++round) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (;;) {
        WholeOf(*source.files, 0);
        std::error_code ignored;
        std::filesystem::remove_all(source.folder / "cache", ignored);
        source.Open();
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30 + 17 * round));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    source.Open();
    ASSERT_TRUE(WholeOf(*source.files, 0) == contents[0]);
  }
}

TEST(BlockCacheFilesTest, LeavesFilesOfOthersAlone) {
  Contents contents;
  for (int i = 0; i < 10; ++i) contents.push_back(RandomContent(10U << 20));
  CachedSource source(contents);
  source.Open();
  const auto mine = source.folder / "cache/blocks-1/mine.blocks";
  std::ofstream(mine) << std::string(1000, 'm');
  for (std::uint32_t file = 0; file < 10; ++file) WholeOf(*source.files, file);
  EXPECT_TRUE(std::filesystem::exists(mine));
}

TEST(BlockCacheOpenTest, RefusesWhatCannotBe) {
  const TempFolder folder;
  EXPECT_EQ(BlockCache::Open(folder.path(), kBound - 1).error().code, ErrorCode::kInvalidArgument);
  std::ofstream(folder / "file") << "x";
  EXPECT_EQ(BlockCache::Open(folder / "file", kBound).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace ffrecord::test
