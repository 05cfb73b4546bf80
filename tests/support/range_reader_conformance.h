#pragma once

// Goal: code that reads byte ranges need not know where they come from: every form of RangeReader
// keeps each promise of range_reader.h. Method: the same tests over each form, on files of known
// random bytes. A form's program includes this header and instantiates RangeReaderConformance with
// a way to make one.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bytes.h"
#include "child.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/source/range_reader.h"
#include "libffrecord/source/resident_files.h"
#include "queued_reader.h"
#include "seed.h"
#include "virtual_clock.h"

namespace ffrecord::test {

using Contents = std::vector<std::string>;

struct RangeReaderForm {
  std::string name;
  // A reader of files that hold these bytes, with all that it borrows. kUnavailable: this machine
  // has no such thing.
  std::function<Result<std::shared_ptr<const RangeReader>>(const Contents&)> make;
  std::size_t file_count_max = 100;
  std::uint64_t range_count = 3000;  // Where many are read; fewer where each takes long.
  bool may_be_forked = true;
  bool presence_is_right = true;  // Bytes that it reports to be in memory are the file's.
  bool is_queued = false;         // Its calls go through a RangeQueue.
};

// The forms, and beside each the same through its queues.
inline std::vector<RangeReaderForm> AndTheirQueues(std::vector<RangeReaderForm> forms) {
  const std::size_t count = forms.size();
  for (std::size_t i = 0; i < count; ++i) {
    forms.push_back(forms[i]);
    forms.back().name += "_queued";
    forms.back().is_queued = true;
  }
  return forms;
}

inline std::string RandomContent(std::uint64_t size_bytes) {
  std::mt19937_64 random(Seed() + size_bytes);
  std::string content(size_bytes, '\0');
  for (std::size_t i = 0; i < content.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(&content[i], &word, std::min(sizeof(word), content.size() - i));
  }
  return content;
}

// Ranges of one call, in memory of the reader's own. Bytes between them must stay as they are.
class RangesWanted {
 public:
  RangesWanted(const RangeReader& reader, const Contents& contents)
      : reader_(reader), contents_(contents) {}

  // Bytes [offset, offset + size), widened to the file's alignment.
  void Add(std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
    const std::uint64_t block = reader_.alignment_bytes(file);
    const std::uint64_t begin = offset_bytes / block * block;
    const std::uint64_t size = (offset_bytes - begin + size_bytes + block - 1) / block * block;
    AddAsIs(file, begin, size);
  }
  void AddAsIs(std::uint32_t file, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
    ranges_.push_back({file, offset_bytes, {}, ErrorCode::kInvalidArgument});
    sizes_.push_back(size_bytes);
  }
  void AddRandomly(std::size_t count, std::mt19937& random) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto file = static_cast<std::uint32_t>(random() % contents_.size());
      const std::uint64_t file_size = contents_[file].size();
      const std::uint64_t offset = random() % (file_size + 1);
      Add(file, offset, random() % (std::min<std::uint64_t>(file_size - offset, 20'000) + 1));
    }
  }

  // The ranges, with their memory.
  std::span<RangeRead> Prepare() {
    std::uint64_t end = kGuardBytes;
    for (const std::uint64_t size : sizes_) end = AlignUp(end + size) + kGuardBytes;
    memory_ = reader_.TakeMemory(end).value();
    Fill(*memory_, kGuard);
    std::uint64_t begin = kGuardBytes;
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      // Not on a page, unless the file wants it so.
      const std::uint64_t odd = reader_.alignment_bytes(ranges_[i].file) == 1 ? i % 7 : 0;
      ranges_[i].destination = memory_->subspan(begin + odd, sizes_[i]);
      begin = AlignUp(begin + sizes_[i]) + kGuardBytes;
    }
    return ranges_;
  }

  RangeRead& range(std::size_t i) { return ranges_[i]; }
  std::span<std::byte> memory() const { return *memory_; }

  // That each range that is kOk has the bytes of its file, and that nothing else was written.
  void ExpectRight() const {
    std::size_t end = 0;  // End of the range before.
    for (const RangeRead& range : ranges_) {
      const auto begin = static_cast<std::size_t>(range.destination.data() - memory_->data());
      ASSERT_TRUE(IsGuard(memory_->subspan(end, begin - end)));
      end = begin + range.destination.size();
      if (range.status != ErrorCode::kOk || range.destination.empty()) continue;
      const std::string& content = contents_[range.file];
      ASSERT_LE(range.offset_bytes, content.size());
      const auto wanted =
          std::string_view(content).substr(range.offset_bytes, range.destination.size());
      ASSERT_EQ(std::memcmp(range.destination.data(), wanted.data(), wanted.size()), 0)
          << wanted.size() << " bytes at " << range.offset_bytes << " of file " << range.file;
    }
    ASSERT_TRUE(IsGuard(memory_->subspan(end)));
  }

  // That no range, and nothing else, has been written.
  void ExpectUntouched() const { EXPECT_TRUE(IsGuard(*memory_)); }

  static constexpr std::byte kGuard{0xA5};

 private:
  static constexpr std::uint64_t kGuardBytes = BufferPool::kAlignment;
  static bool IsGuard(std::span<const std::byte> bytes) {
    return bytes.empty() || (bytes[0] == kGuard &&
                             std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
  }
  static std::uint64_t AlignUp(std::uint64_t offset) {
    return (offset + 8 + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
  }

  const RangeReader& reader_;
  const Contents& contents_;
  std::vector<RangeRead> ranges_;
  std::vector<std::uint64_t> sizes_;
  PooledBuffer memory_;
};

class RangeReaderConformance : public testing::TestWithParam<RangeReaderForm> {
 protected:
  void SetUp() override {
    contents_ = {RandomContent((3U << 20) + 1234), RandomContent(70'001), RandomContent(1),
                 RandomContent(3 * 4096), RandomContent(0)};
    contents_.resize(std::min(contents_.size(), GetParam().file_count_max));
    auto reader = GetParam().make(contents_);
    if (!reader && reader.error().code == ErrorCode::kUnavailable)
      GTEST_SKIP() << reader.error().message;
    ASSERT_TRUE(reader) << reader.error().message;
    reader_ = std::move(reader).value();
    if (GetParam().is_queued) reader_ = std::make_shared<QueuedReader>(std::move(reader_));
  }

  std::uint64_t SizeOf(std::uint32_t file) const { return contents_[file].size(); }
  // The end of the file's last block; of the file where any range may be read.
  std::uint64_t EndOf(std::uint32_t file) const {
    const std::uint64_t block = reader_->alignment_bytes(file);
    return (SizeOf(file) + block - 1) / block * block;
  }
  // All is read, by the calling thread's own reader or a child's.
  bool ReadsRight(std::uint32_t seed) const {
    std::mt19937 random(seed);
    RangesWanted wanted(*reader_, contents_);
    wanted.AddRandomly(GetParam().range_count / 50, random);
    const auto ranges = wanted.Prepare();
    if (!reader_->Read(ranges)) return false;
    wanted.ExpectRight();
    return std::ranges::all_of(ranges, [](auto& range) { return range.status == ErrorCode::kOk; });
  }

  std::mt19937 random_{Seed()};
  Contents contents_;
  std::shared_ptr<const RangeReader> reader_;
};

TEST_P(RangeReaderConformance, FilesAreKnownByNameAndSize) {
  ASSERT_EQ(reader_->file_count(), contents_.size());
  std::set<std::string> names;
  for (std::uint32_t file = 0; file < contents_.size(); ++file) {
    EXPECT_EQ(reader_->file_size_bytes(file), SizeOf(file));
    EXPECT_FALSE(reader_->file_name(file).empty());
    names.insert(reader_->file_name(file));
    const std::uint32_t alignment = reader_->alignment_bytes(file);
    EXPECT_TRUE(alignment > 0 && (alignment & (alignment - 1)) == 0) << alignment;
    EXPECT_LE(alignment, BufferPool::kAlignment);
  }
  EXPECT_EQ(names.size(), contents_.size());
}

TEST_P(RangeReaderConformance, AnUntouchedFileHasNeitherChangedNorShrunkNorAnyTrouble) {
  EXPECT_FALSE(reader_->HasChanged());
  for (std::uint32_t file = 0; file < contents_.size(); ++file) {
    if (const ResidentFiles* const resident = reader_->resident()) {
      EXPECT_FALSE(resident->HasShrunk(file));
    }
    EXPECT_EQ(reader_->Trouble(file, ErrorCode::kIo), "");
  }
}

TEST_P(RangeReaderConformance, MemoryIsOfTheSizeThatWasAskedForAndAligned) {
  for (const std::uint64_t size : {1U, 4096U, 100'000U, 5U << 20}) {
    const auto memory = reader_->TakeMemory(size);
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_EQ(memory.value()->size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.value()->data()) % BufferPool::kAlignment,
              0U);
  }
}

TEST_P(RangeReaderConformance, RangesOfAnyFilesInAnyOrderOverlappingAndEmptyAreRead) {
  RangesWanted wanted(*reader_, contents_);
  wanted.AddRandomly(300, random_);
  for (std::uint32_t file = 0; file < contents_.size(); ++file) {
    wanted.Add(file, 0, SizeOf(file));
    wanted.AddAsIs(file, 0, 0);
    wanted.AddAsIs(file, SizeOf(file) / 4096 * 4096, 0);
  }
  for (int i = 0; i < 3; ++i) wanted.Add(0, 100'000, 10'000);  // The same, and half of it.
  wanted.Add(0, 105'000, 10'000);
  const auto ranges = wanted.Prepare();

  const auto read = reader_->Read(ranges);

  ASSERT_TRUE(read) << read.error().message;
  for (const RangeRead& range : ranges)
    EXPECT_EQ(range.status, ErrorCode::kOk) << range.file << " " << range.offset_bytes;
  wanted.ExpectRight();
}

TEST_P(RangeReaderConformance, MoreRangesThanOneSubmissionTakesAreRead) {
  RangesWanted wanted(*reader_, contents_);
  for (std::uint64_t i = 0; i < GetParam().range_count; ++i) wanted.Add(0, i * 997, 1 + i % 5);
  const auto ranges = wanted.Prepare();
  ASSERT_TRUE(reader_->Read(ranges));
  for (const RangeRead& range : ranges) ASSERT_EQ(range.status, ErrorCode::kOk);
  wanted.ExpectRight();
}

TEST_P(RangeReaderConformance, OneCallReadsIntoMemoryOfSeveralKinds) {
  constexpr std::uint64_t kPlace = 64U << 10;
  constexpr std::uint64_t kTurns = 8;
  const PooledBuffer blocks[] = {reader_->TakeMemory(kTurns * kPlace).value(),
                                 BufferPool::Process().Take(kTurns * kPlace).value(),
                                 reader_->TakeMemory(kTurns * kPlace).value()};
  std::vector<RangeRead> ranges;
  for (std::uint64_t turn = 0; turn < kTurns; ++turn)
    for (const PooledBuffer& block : blocks)
      ranges.push_back({0, ranges.size() * kPlace, block->subspan(turn * kPlace, kPlace)});

  const auto read = reader_->Read(ranges);

  ASSERT_TRUE(read) << read.error().message;
  for (const RangeRead& range : ranges) {
    EXPECT_EQ(range.status, ErrorCode::kOk);
    EXPECT_EQ(std::memcmp(range.destination.data(), &contents_[0][range.offset_bytes], kPlace), 0);
  }
}

TEST_P(RangeReaderConformance, NothingIsReadIfNothingIsWanted) {
  EXPECT_TRUE(reader_->Read({}));
  EXPECT_TRUE(reader_->ReadEach({}, [](RangeRead&) { FAIL(); }));
}

TEST_P(RangeReaderConformance, ARangePastTheEndSpoilsItsOwnStatusOnly) {
  const std::uint32_t file = contents_.size() > 1 ? 1 : 0;
  const std::uint64_t block = reader_->alignment_bytes(file);
  const std::uint64_t farthest = ~std::uint64_t{0} / block * block;
  RangesWanted wanted(*reader_, contents_);
  wanted.Add(0, 5000, 5000);
  wanted.AddAsIs(file, EndOf(file), block);              // Behind the end.
  wanted.AddAsIs(file, EndOf(file) - block, 2 * block);  // Across it.
  wanted.AddAsIs(file, 0, EndOf(file) + block);
  wanted.AddAsIs(file, std::uint64_t{1} << 40, block);
  wanted.AddAsIs(file, farthest, block);  // The sum of both is small.
  wanted.AddAsIs(file, EndOf(file) + block, 0);
  wanted.AddAsIs(file, EndOf(file), 0);  // Passes nothing.
  wanted.Add(0, 0, 5000);
  const auto ranges = wanted.Prepare();

  const auto read = reader_->Read(ranges);

  ASSERT_TRUE(read) << read.error().message;
  for (std::size_t i = 0; i < ranges.size(); ++i)
    EXPECT_EQ(ranges[i].status, i >= 1 && i <= 6 ? ErrorCode::kCorruption : ErrorCode::kOk) << i;
  wanted.ExpectRight();
}

TEST_P(RangeReaderConformance, TheLastBlockOfEachFileIsRead) {
  RangesWanted wanted(*reader_, contents_);
  for (std::uint32_t file = 0; file < contents_.size(); ++file)
    if (SizeOf(file) > 0)
      wanted.AddAsIs(file, EndOf(file) - reader_->alignment_bytes(file),
                     reader_->alignment_bytes(file));
  const auto ranges = wanted.Prepare();
  ASSERT_TRUE(reader_->Read(ranges));
  for (const RangeRead& range : ranges) EXPECT_EQ(range.status, ErrorCode::kOk) << range.file;
  wanted.ExpectRight();
}

TEST_P(RangeReaderConformance, EachRangeArrivesOnceOnTheCallingThreadWithItsStatusAndItsBytes) {
  RangesWanted wanted(*reader_, contents_);
  wanted.AddRandomly(200, random_);
  wanted.AddAsIs(0, EndOf(0), reader_->alignment_bytes(0));
  wanted.AddAsIs(0, 0, 0);
  const auto ranges = wanted.Prepare();
  const auto caller = std::this_thread::get_id();
  std::vector<int> arrived(ranges.size());

  const auto read = reader_->ReadEach(ranges, [&](RangeRead& range) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    const auto i = static_cast<std::size_t>(&range - ranges.data());
    ASSERT_LT(i, ranges.size());
    ++arrived[i];
    EXPECT_EQ(range.status, i == 200 ? ErrorCode::kCorruption : ErrorCode::kOk);
    if (range.status != ErrorCode::kOk || range.destination.empty()) return;
    const auto content = std::string_view(contents_[range.file]).substr(range.offset_bytes);
    const std::size_t size = std::min(content.size(), range.destination.size());
    EXPECT_EQ(std::memcmp(range.destination.data(), content.data(), size), 0);
  });

  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(std::ranges::all_of(arrived, [](int count) { return count == 1; }));
  wanted.ExpectRight();
}

TEST_P(RangeReaderConformance, WithoutPatienceNothingIsBegun) {
  VirtualClock clock;
  const Patience::GiveUp give_up = [] { return true; };
  Patience patience(give_up);
  RangesWanted wanted(*reader_, contents_);
  wanted.AddRandomly(100, random_);
  const auto ranges = wanted.Prepare();
  clock.RunFor(2 * Patience::kInterval);  // It is not asked before.

  const auto read = reader_->ReadEach(
      ranges, [](RangeRead&) { FAIL(); }, patience);

  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kDeadlineExceeded);
  clock.RunUntilIdle();
  wanted.ExpectUntouched();
}

TEST_P(RangeReaderConformance, WhoHasGivenUpIsNotWrittenToAnyMore) {
  std::optional<VirtualClock> clock(std::in_place);
  const Patience::GiveUp give_up = [] { return true; };
  std::optional<Patience> patience(give_up);
  RangesWanted wanted(*reader_, contents_);
  for (int i = 0; i < 20; ++i) wanted.Add(0, 0, SizeOf(0));
  const auto ranges = wanted.Prepare();
  std::size_t arrived = 0;

  const auto read = reader_->ReadEach(
      ranges,
      [&](RangeRead&) {
        if (arrived++ == 0) SleepFor(2 * Patience::kInterval);
      },
      *patience);

  // A form that has read all before the first range arrives has nothing to give up.
  if (read) {
    EXPECT_EQ(arrived, ranges.size());
    wanted.ExpectRight();
  } else {
    EXPECT_EQ(read.error().code, ErrorCode::kDeadlineExceeded);  // Perhaps all had come by then.
  }
  Fill(wanted.memory(), RangesWanted::kGuard);
  clock->RunUntilIdle();
  wanted.ExpectUntouched();
  patience.reset();
  clock.reset();
  EXPECT_TRUE(ReadsRight(4));
}

TEST_P(RangeReaderConformance, AnIndexIsMappedInsideTheFileAndNowhereElse) {
  for (std::uint32_t file = 0; file < contents_.size(); ++file) {
    const std::uint64_t size = SizeOf(file);
    for (const auto& [offset, count] : {std::pair(std::uint64_t{0}, size),
                                        {size / 2, size / 4},
                                        {size - size / 3, size / 3},
                                        {size, 0},
                                        {0, 0}}) {
      const auto mapped = reader_->MapIndex(file, offset, count);
      ASSERT_TRUE(mapped) << mapped.error().message;
      const auto bytes = mapped.value().bytes;
      ASSERT_EQ(bytes.size(), count);
      EXPECT_TRUE(AreSame(bytes, std::as_bytes(std::span(contents_[file]).subspan(offset, count))));
    }
    for (const auto& [offset, count] : {std::pair(size, std::uint64_t{1}),
                                        {0, size + 1},
                                        {size + 1, 0},
                                        {~std::uint64_t{0}, 2},
                                        {2, ~std::uint64_t{0}},
                                        {size / 2, std::uint64_t{1} << 60}}) {
      const auto mapped = reader_->MapIndex(file, offset, count);
      ASSERT_FALSE(mapped) << offset << " " << count;
      EXPECT_EQ(mapped.error().code, ErrorCode::kCorruption);
      EXPECT_NE(mapped.error().message.find(reader_->file_name(file)), std::string::npos);
    }
  }
}

TEST_P(RangeReaderConformance, AnIndexStaysAsLongAsItsOwner) {
  auto mapped = reader_->MapIndex(0, 4097, 50'000).value();
  // Read much else meanwhile; without an owner the bytes are the reader's own.
  EXPECT_TRUE(ReadsRight(4));
  if (mapped.owner != nullptr) reader_.reset();
  EXPECT_TRUE(AreSame(mapped.bytes, std::as_bytes(std::span(contents_[0]).subspan(4097, 50'000))));
}

TEST_P(RangeReaderConformance, WhatIsMappedIsTheWholeFile) {
  const ResidentFiles* const resident = reader_->resident();
  if (resident == nullptr) return;
  for (std::uint32_t file = 0; file < contents_.size(); ++file) {
    const auto mapped = resident->Mapped(file);
    if (mapped.empty()) continue;
    const auto wanted = std::as_bytes(std::span(contents_[file]));
    const ResidentFiles::Presence* const present = resident->PresenceOf(file);
    if (present == nullptr) {
      EXPECT_TRUE(AreSame(mapped, wanted));
      continue;
    }
    ASSERT_EQ(mapped.size(), wanted.size());
    EXPECT_TRUE(ReadsRight(file));
    if (!GetParam().presence_is_right) continue;
    for (std::uint64_t at = 0; at < wanted.size(); at += 1000) {
      const auto size = std::min<std::uint64_t>(1000, wanted.size() - at);
      if (present->Has(at, size)) {
        EXPECT_TRUE(AreSame(mapped.subspan(at, size), wanted.subspan(at, size))) << at;
      }
    }
  }
}

TEST_P(RangeReaderConformance, ManyThreadsReadAtOnce) {
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 4; ++i)
    threads.emplace_back([this, seed = static_cast<std::uint32_t>(random_())] {
      for (std::uint32_t turn = 0; turn < 3; ++turn) EXPECT_TRUE(ReadsRight(seed + turn));
      EXPECT_TRUE(reader_->MapIndex(0, 1000, 1000));
    });
  for (auto& thread : threads) thread.join();
}

TEST_P(RangeReaderConformance, AForkedChildReadsAndItsParentReadsOn) {
  if (!GetParam().may_be_forked) GTEST_SKIP() << "not for a forked child";
  EXPECT_TRUE(ReadsRight(1));
  const auto in_child = [this] {
    if (!ReadsRight(2)) return 1;
    const auto mapped = reader_->MapIndex(0, 10, 100);
    return mapped && AreSame(mapped.value().bytes,
                             std::as_bytes(std::span(contents_[0]).subspan(10, 100)))
               ? 0
               : 2;
  };
  EXPECT_EQ(RunInChild(in_child), 0);
  EXPECT_TRUE(ReadsRight(3));
}

inline std::string NameOfForm(const testing::TestParamInfo<RangeReaderForm>& instance) {
  return instance.param.name;
}

}  // namespace ffrecord::test
