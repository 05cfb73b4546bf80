// The byte sources that stand before others: range_reader_conformance.h says what of them is
// tested.

#include <optional>

#include "bytes.h"
#include "client/checkpoint/files_with_copies.h"
#include "client/checkpoint/packed_files.h"
#include "libffrecord/source/file_copies.h"
#include "memory_files.h"
#include "range_queue_conformance.h"
#include "range_reader_conformance.h"

namespace ffrecord::test {
namespace {

using client::FileCopy;
using Made = Result<std::shared_ptr<const RangeReader>>;
using Readers = std::vector<std::unique_ptr<RangeReader>>;

Result<Contents> PackedOf(const Contents& contents) {
  Contents packed;
  for (const std::string& content : contents) {
    const auto source = [&](std::uint64_t offset, std::uint64_t size_max) {
      return Result(std::as_bytes(std::span(content).subspan(offset).first(size_max)));
    };
    auto spool = FFR_TRY(client::PackedSpool::Fill(content.size(), source));
    std::string& bytes = packed.emplace_back();
    while (bytes.size() < spool.size_bytes()) {
      const auto next = FFR_TRY(spool.At(bytes.size(), spool.size_bytes() - bytes.size()));
      bytes.append(reinterpret_cast<const char*>(next.data()), next.size());
    }
  }
  return packed;
}

auto Packed(std::uint32_t alignment_bytes) {
  return [alignment_bytes](const Contents& contents) -> Made {
    auto packed = std::make_unique<MemoryFiles>(FFR_TRY(PackedOf(contents)), alignment_bytes);
    return Made(FFR_TRY(client::OpenPackedFiles(std::move(packed))));
  };
}

// All files at both readers; of the first, odd ones are asked at the second reader first.
std::unique_ptr<RangeReader> Copies(Readers readers, std::size_t file_count) {
  std::vector<std::vector<FileCopy>> copies;
  for (std::uint32_t file = 0; file < file_count; ++file)
    copies.push_back({{file % 2, file}, {1 - file % 2, file}});
  return client::OpenFilesWithCopies(std::move(readers), std::move(copies));
}

// What one reader cannot give for the moment is at the other.
std::unique_ptr<MemoryFiles> Flaky(const Contents& contents, std::uint32_t alignment_bytes,
                                   std::uint64_t remainder) {
  auto files = std::make_unique<MemoryFiles>(contents, alignment_bytes);
  files->fault = [=](const RangeRead& range) {
    return range.offset_bytes / 4096 % 2 == remainder ? ErrorCode::kUnavailable : ErrorCode::kOk;
  };
  return files;
}

auto TwoCopies(std::uint32_t first_alignment, std::uint32_t second_alignment) {
  return [=](const Contents& contents) {
    Readers readers;
    readers.push_back(Flaky(contents, first_alignment, 0));
    readers.push_back(Flaky(contents, second_alignment, 1));
    return Made(Copies(std::move(readers), contents.size()));
  };
}

const std::vector<RangeReaderForm> kForms{{"packed", Packed(1)},
                                          {"packed_in_blocks", Packed(4096)},
                                          {"copies", TwoCopies(1, 1)},
                                          {"copies_in_blocks", TwoCopies(4096, 512)},
                                          {"copies_of_which_one_in_blocks", TwoCopies(512, 1)}};

INSTANTIATE_TEST_SUITE_P(Forms, RangeReaderConformance, testing::ValuesIn(AndTheirQueues(kForms)),
                         NameOfForm);
INSTANTIATE_TEST_SUITE_P(Forms, RangeQueueConformance, testing::ValuesIn(kForms), NameOfForm);

// --- What they hand on ---------------------------------------------------------------------------

class RestlessFiles final : public MemoryFiles {
 public:
  using MemoryFiles::MemoryFiles;
  std::string Trouble(std::uint32_t file, ErrorCode) const override {
    return "file " + std::to_string(file) + " is in trouble";
  }
  bool HasChanged() const override { return true; }
};

TEST(FilesWithCopiesTest, WhatIsKnownOfACopyIsKnownOfTheFile) {
  const Contents contents{RandomContent(10), RandomContent(10)};
  Readers readers;
  readers.push_back(std::make_unique<MemoryFiles>(contents));
  readers.push_back(std::make_unique<RestlessFiles>(contents));
  const auto files = Copies(std::move(readers), 2);
  EXPECT_TRUE(files->HasChanged());
  EXPECT_EQ(files->Trouble(1, ErrorCode::kIo), "file 1 is in trouble");
}

TEST(FilesWithCopiesTest, ADamagedCopyIsMadeGoodByAnotherAndNamed) {
  const Contents contents{RandomContent(10)};
  auto damaged = std::make_unique<MemoryFiles>(contents);
  damaged->fault = [](const RangeRead&) { return ErrorCode::kCorruption; };
  Readers readers;
  readers.push_back(std::move(damaged));
  readers.push_back(std::make_unique<MemoryFiles>(contents));
  const auto files = Copies(std::move(readers), 1);
  RangesWanted wanted(*files, contents);
  wanted.Add(0, 0, 10);
  const auto ranges = wanted.Prepare();
  const FileCopies* const copies = FileCopies::Of(*files);
  ASSERT_NE(copies, nullptr);
  EXPECT_TRUE(copies->DamagedCopies(0).empty());
  ASSERT_TRUE(files->Read(ranges));
  EXPECT_EQ(ranges[0].status, ErrorCode::kOk);
  wanted.ExpectRight();
  EXPECT_EQ(copies->DamagedCopies(0).size(), 1U);
}

TEST(PackedFilesTest, WhatIsKnownOfThePackedFileIsKnownOfTheFile) {
  const Contents contents{RandomContent(10), RandomContent(10)};
  const auto files =
      client::OpenPackedFiles(std::make_unique<RestlessFiles>(PackedOf(contents).value())).value();
  EXPECT_TRUE(files->HasChanged());
  EXPECT_EQ(files->Trouble(1, ErrorCode::kIo), "file 1 is in trouble");
}

}  // namespace
}  // namespace ffrecord::test
