// The byte sources of the library itself: range_reader_conformance.h says what of them is tested.

#include <sys/resource.h>

#include <array>
#include <filesystem>
#include <functional>

#include "bytes.h"
#include "child.h"
#include "libffrecord/io/blocking_request.h"
#include "libffrecord/record/index/spliced_files.h"
#include "libffrecord/record/write/locked_file.h"
#include "libffrecord/source/file_window.h"
#include "libffrecord/source/local_files.h"
#include "libffrecord/source/local_queue.h"
#include "libffrecord/source/resident_files.h"
#include "memory_files.h"
#include "range_queue_conformance.h"
#include "range_reader_conformance.h"
#include "temp_folder.h"

namespace ffrecord::test {
namespace {

using Made = Result<std::shared_ptr<const RangeReader>>;

// Below build/ rather than in memory, for a file system that may do direct I/O.
struct Folder {
  explicit Folder(const Contents& contents) : folder(std::filesystem::current_path()) {
    for (std::size_t i = 0; i < contents.size(); ++i) {
      paths.push_back(folder / ("file-" + std::to_string(i)));
      WriteFile(paths.back(), contents[i]);
    }
  }
  TempFolder folder;
  std::vector<std::filesystem::path> paths;
};

struct LocalSource : Folder {
  using Folder::Folder;
  std::unique_ptr<RangeReader> files;
};

auto Local(IoPolicy io) {
  return [io](const Contents& contents) -> Made {
    auto source = std::make_shared<LocalSource>(contents);
    source->files = FFR_TRY(OpenLocalFiles(source->paths, {.io = io, .queue_depth = 16}));
    if (io == IoPolicy::kDirect && source->files->alignment_bytes(0) == 1)
      return Error{ErrorCode::kUnavailable, "the file system refuses direct I/O"};
    return Made(std::shared_ptr<const RangeReader>(source, source->files.get()));
  };
}

// Each file is made of an index, which has its two ends, and of a source, which has the middle.
auto Spliced(IoPolicy io) {
  return [io](const Contents& contents) -> Made {
    constexpr std::size_t kBlock = InPlaceFront::kSizeBytes;
    auto source = std::make_shared<LocalSource>(contents);
    std::vector<IndexedSource> files;
    for (std::size_t i = 0; i < contents.size(); ++i) {
      const std::string& all = contents[i];
      const std::size_t head = all.size() >= 2 * kBlock ? kBlock : 0;
      const std::size_t middle = (all.size() - head) / (2 * kBlock) * kBlock;
      IndexedSource& file = files.emplace_back();
      file.path = source->paths[i];
      file.index = source->paths[i].string() + kIndexSuffix;
      file.front.head_size_bytes = head;
      file.front.source_size_bytes = middle;
      const std::string front(kBlock, '\0');
      WriteFile(file.index, front + all.substr(0, head) + all.substr(head + middle));
      WriteFile(file.path, all.substr(head, middle));
    }
    source->files = FFR_TRY(OpenIndexed(std::move(files), {.io = io, .queue_depth = 16}));
    if (io == IoPolicy::kDirect && source->files->alignment_bytes(0) == 1)
      return Error{ErrorCode::kUnavailable, "the file system refuses direct I/O"};
    return Made(std::shared_ptr<const RangeReader>(source, source->files.get()));
  };
}

auto Memory(std::uint32_t alignment_bytes) {
  return [alignment_bytes](const Contents& contents) {
    return Made(std::make_shared<const MemoryFiles>(contents, alignment_bytes));
  };
}

struct LockedSource : Folder {
  using Folder::Folder;
  std::optional<AppendFile> file;
  std::optional<LockedFile> reader;
};

Made Locked(const Contents& contents) {
  auto source = std::make_shared<LockedSource>(contents);
  source->file.emplace(FFR_TRY(AppendFile::Open(source->paths[0], nullptr)));
  source->reader.emplace(*source->file);
  return Made(std::shared_ptr<const RangeReader>(source, &*source->reader));
}

const std::vector<RangeReaderForm> kForms{
    {"local_buffered", Local(IoPolicy::kBuffered)},
    {"local_direct", Local(IoPolicy::kDirect)},
    {"local_auto", Local(IoPolicy::kAuto)},
    {"spliced_buffered", Spliced(IoPolicy::kBuffered)},
    {"spliced_direct", Spliced(IoPolicy::kDirect)},
    {"spliced_auto", Spliced(IoPolicy::kAuto)},
    {"memory", Memory(1)},
    {"memory_in_blocks", Memory(512)},
    {.name = "locked", .make = Locked, .file_count_max = 1, .may_be_forked = false}};

INSTANTIATE_TEST_SUITE_P(Forms, RangeReaderConformance, testing::ValuesIn(AndTheirQueues(kForms)),
                         NameOfForm);
INSTANTIATE_TEST_SUITE_P(Forms, RangeQueueConformance, testing::ValuesIn(kForms), NameOfForm);

// --- Reads that the device has not ended ---------------------------------------------------------

// An engine whose requests are under way until Release().
class HeldEngine final : public IoEngine {
 public:
  ~HeldEngine() override { EXPECT_EQ(in_flight(), 0U) << "somebody's memory is still written to"; }

  std::string_view name() const noexcept override { return "held"; }
  std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(held_.size());
  }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    if (is_broken) return Error{ErrorCode::kIo, "held: broken", EIO};
    submitted_count += requests.size();
    held_.insert(held_.end(), requests.begin(), requests.end());
    return static_cast<std::uint32_t>(requests.size());
  }
  // Whoever waits without end, as at the end of a queue, has them released.
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t,
                             std::chrono::milliseconds timeout) override {
    if (!is_released_ && timeout != kIoForever) return 0U;
    const std::size_t count = std::min(done.size(), held_.size());
    for (std::size_t i = 0; i < count; ++i) {
      RunBlocking(*held_[i]);
      done[i] = held_[i];
    }
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<std::uint32_t>(count);
  }
  void Release() { is_released_ = true; }

  bool is_broken = false;           // Takes nothing more.
  std::size_t submitted_count = 0;  // Requests.

 private:
  std::vector<IoRequest*> held_;
  bool is_released_ = false;
};

struct HeldQueue {
  HeldQueue() : source({RandomContent(100'000)}) {
    source.files = OpenLocalFiles(source.paths, {.io = IoPolicy::kBuffered}).value();
    auto held = std::make_unique<HeldEngine>();
    engine = held.get();
    queue = MakeLocalQueue(static_cast<const LocalFiles&>(*source.files), std::move(held));
  }
  std::vector<RangeRead> Ranges(std::span<std::byte> memory) const {
    return {{0, 0, memory.first(1000)}, {0, 50'000, memory.subspan(1000, 1000)}};
  }
  LocalSource source;
  HeldEngine* engine = nullptr;
  std::unique_ptr<RangeQueue> queue;
};

TEST(LocalQueueTest, AGroupThatIsGivenUpEndsWhenTheDeviceHasEnded) {
  constexpr std::chrono::milliseconds kNoWait{0};
  HeldQueue held;
  std::vector<std::byte> memory(4000);
  auto ranges = held.Ranges(std::span(memory).first(2000));
  auto others = held.Ranges(std::span(memory).last(2000));
  NotedGroup group(ranges);
  NotedGroup other(others);
  held.queue->Submit(group);
  held.queue->Submit(other);
  held.queue->Poll(kNoWait);
  ASSERT_GT(held.engine->in_flight(), 0U);

  held.queue->GiveUp(group);
  held.queue->Poll(kNoWait);
  EXPECT_FALSE(group.ended) << "its memory is still being written to";

  held.engine->Release();
  while (!group.ended || !other.ended) held.queue->Poll(kNoWait);
  ASSERT_FALSE(*group.ended);
  EXPECT_EQ(group.ended->error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(group.arrived_count, 0U) << "nobody waits for its ranges";
  EXPECT_TRUE(*other.ended);
  EXPECT_EQ(other.arrived_count, 2U);
}

TEST(LocalQueueTest, AQueueThatIsLeftWaitsForTheDevice) {
  HeldQueue held;
  std::vector<std::byte> memory(2000);
  auto ranges = held.Ranges(memory);
  NotedGroup group(ranges);
  held.queue->Submit(group);
  held.queue.reset();  // The engine would say what was left.
  EXPECT_FALSE(group.ended);
}

// Calls `then` when it has ended.
class ThenGroup final : public NotedGroup {
 public:
  ThenGroup(std::span<RangeRead> ranges, std::function<void()> then)
      : NotedGroup(ranges), then_(std::move(then)) {}
  void Ended(Result<void> result) override {
    NotedGroup::Ended(std::move(result));
    then_();
  }

 private:
  const std::function<void()> then_;
};

TEST(LocalQueueTest, AnEngineThatBreaksWhileGroupsAreToldEndsNoneThatIsWrittenTo) {
  HeldQueue held;
  std::vector<std::byte> memory(4000);
  auto ranges = held.Ranges(std::span(memory).first(2000));
  auto others = held.Ranges(std::span(memory).last(2000));
  NotedGroup late(others);
  ThenGroup under_way(ranges, [&] { EXPECT_EQ(held.engine->in_flight(), 0U); });
  ThenGroup first({}, [&] {
    held.engine->is_broken = true;
    held.queue->Submit(late);
  });
  held.queue->Submit(first);
  held.queue->Submit(under_way);
  ASSERT_GT(held.engine->in_flight(), 0U);

  while (!under_way.ended || !late.ended) held.queue->Poll(std::chrono::milliseconds(0));
  EXPECT_TRUE(*first.ended);
  EXPECT_EQ(under_way.ended->error().code, ErrorCode::kIo);
  EXPECT_EQ(late.ended->error().code, ErrorCode::kIo);
  // What it has not taken is forgotten: its memory may be gone.
  held.engine->is_broken = false;
  held.queue->Poll(std::chrono::milliseconds(0));
  EXPECT_EQ(held.engine->in_flight(), 0U);
}

// In a child that may have few files open: most ranges of the group wait for a descriptor, and they
// must not be begun once those before them have ended.
TEST(LocalQueueTest, AGroupThatIsGivenUpBeginsNothingThatWaitsForADescriptor) {
  EXPECT_EQ(RunInChild([] {
              const rlimit limit{96, 96};
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              LocalSource source(Contents(200, RandomContent(100)));
              source.files = OpenLocalFiles(source.paths, {.io = IoPolicy::kBuffered}).value();
              auto held = std::make_unique<HeldEngine>();
              HeldEngine& engine = *held;
              const auto queue =
                  MakeLocalQueue(static_cast<const LocalFiles&>(*source.files), std::move(held));
              std::vector<std::byte> memory(20'000);
              std::vector<RangeRead> ranges;
              for (std::uint32_t file = 0; file < 200; ++file)
                ranges.push_back({file, 0, std::span(memory).subspan(100 * file, 100)});
              NotedGroup group(ranges);
              queue->Submit(group);
              const std::size_t begun_count = engine.submitted_count;
              EXPECT_GT(begun_count, 0U);
              EXPECT_LT(begun_count, 200U);
              queue->GiveUp(group);
              engine.Release();
              while (!group.ended) queue->Poll(std::chrono::milliseconds(0));
              EXPECT_EQ(engine.submitted_count, begun_count);
              return 0;
            }),
            0);
}

// A range that failed when it was begun is not told of either.
TEST(LocalQueueTest, AGroupThatIsGivenUpHearsNothingOfAFileThatIsGone) {
  EXPECT_EQ(RunInChild([] {
              const rlimit limit{96, 96};
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              LocalSource source(Contents(200, RandomContent(100)));
              source.files = OpenLocalFiles(source.paths, {.io = IoPolicy::kBuffered}).value();
              const auto queue = source.files->MakeQueue(RangeReader::QueueUse::kAnyThread).value();
              std::filesystem::remove(source.paths.back());
              std::array<std::byte, 100> memory;
              std::vector<RangeRead> ranges{{199, 0, memory}};
              NotedGroup group(ranges);
              queue->Submit(group);
              queue->GiveUp(group);
              while (!group.ended) queue->Poll(std::chrono::milliseconds(100));
              EXPECT_EQ(group.ended->error().code, ErrorCode::kDeadlineExceeded);
              EXPECT_EQ(group.arrived_count, 0U);
              return 0;
            }),
            0);
}

// In a child that may have few files open, so that the last of them is closed.
TEST(LocalQueueTest, AGroupThatOneSubmitsAtItsEndHearsOfEachRangeBeforeItsOwn) {
  EXPECT_EQ(RunInChild([] {
              const rlimit limit{96, 96};
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              LocalSource source(Contents(200, RandomContent(100)));
              source.files = OpenLocalFiles(source.paths, {.io = IoPolicy::kBuffered}).value();
              const auto queue = source.files->MakeQueue(RangeReader::QueueUse::kAnyThread).value();
              std::filesystem::remove(source.paths.back());
              std::array<std::byte, 100> memory;
              std::vector<RangeRead> ranges{{199, 0, memory}, {199, 0, memory}};
              std::size_t heard_count = 0;  // Before its end.
              const NotedGroup* told = nullptr;
              ThenGroup second(ranges, [&] { heard_count = told->arrived_count; });
              told = &second;
              ThenGroup first({}, [&] { queue->Submit(second); });
              queue->Submit(first);
              while (!second.ended) queue->Poll(std::chrono::milliseconds(100));
              EXPECT_TRUE(*second.ended);
              EXPECT_EQ(heard_count, 2U);
              for (const RangeRead& range : ranges) EXPECT_EQ(range.status, ErrorCode::kIo);
              queue->Poll(std::chrono::milliseconds(0));
              EXPECT_EQ(second.arrived_count, 2U) << "it may be gone by then";
              return 0;
            }),
            0);
}

// --- FileWindow ----------------------------------------------------------------------------------

TEST(FileWindowTest, AViewIsRightWhereverItBeginsAndEndsBesideWhatIsInMemory) {
  const std::uint64_t window_size = 4U << 20;
  const Contents contents{RandomContent(2 * window_size + 100)};
  const MemoryFiles files(contents);
  for (const std::uint64_t end : {window_size - 1, window_size, window_size + 1, window_size + 2}) {
    FileWindow window(files, 0);
    ASSERT_TRUE(window.View(0, 10));  // Reads a window ahead.
    const auto view = window.View(end - 10, 10);
    ASSERT_TRUE(view) << view.error().message;
    EXPECT_TRUE(std::ranges::equal(view.value(),
                                   std::as_bytes(std::span(contents[0]).subspan(end - 10, 10))));
  }
  FileWindow window(files, 0);
  EXPECT_EQ(window.View(contents[0].size(), 1).error().code, ErrorCode::kCorruption);
  EXPECT_EQ(window.View(contents[0].size() + 1, 0).error().code, ErrorCode::kCorruption);
  EXPECT_TRUE(window.View(contents[0].size(), 0));
}

// --- Files that do not stay as they were ---------------------------------------------------------

TEST(LocalFilesTest, AFileThatGrowsHasChangedAndOneThatShrinksSaysSo) {
  const Contents contents{RandomContent(10'000), RandomContent(10'000)};
  const Folder folder(contents);
  const auto files = OpenLocalFiles(folder.paths, {.io = IoPolicy::kBuffered}).value();

  std::filesystem::resize_file(folder.paths[0], 20'000);
  EXPECT_TRUE(files->HasChanged());
  EXPECT_FALSE(files->resident()->HasShrunk(0));
  std::filesystem::resize_file(folder.paths[0], 10'000);
  EXPECT_FALSE(files->HasChanged());
  std::filesystem::resize_file(folder.paths[1], 9'999);
  EXPECT_TRUE(files->HasChanged());
  EXPECT_FALSE(files->resident()->HasShrunk(0));
  EXPECT_TRUE(files->resident()->HasShrunk(1));
}

TEST(LocalFilesTest, WhatAFileHasLostIsCorruptAndWhatItHasKeptIsRead) {
  const Contents contents{RandomContent(20'000)};
  const Folder folder(contents);
  for (const IoPolicy io : {IoPolicy::kBuffered, IoPolicy::kDirect}) {
    WriteFile(folder.paths[0], contents[0]);
    const auto files = OpenLocalFiles(folder.paths, {.io = io}).value();
    std::filesystem::resize_file(folder.paths[0], 9'000);
    RangesWanted wanted(*files, contents);
    wanted.Add(0, 0, 4096);
    wanted.Add(0, 8192, 4096);
    wanted.Add(0, 12'288, 4096);
    const auto ranges = wanted.Prepare();
    ASSERT_TRUE(files->Read(ranges));
    EXPECT_EQ(ranges[0].status, ErrorCode::kOk);
    EXPECT_EQ(ranges[1].status, ErrorCode::kCorruption);
    EXPECT_EQ(ranges[2].status, ErrorCode::kCorruption);
  }
}

}  // namespace
}  // namespace ffrecord::test
