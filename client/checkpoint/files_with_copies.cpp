#include "client/checkpoint/files_with_copies.h"

#include <algorithm>
#include <string>
#include <utility>

namespace ffrecord::client {
namespace {

class FilesWithCopies final : public RangeReader {
 public:
  FilesWithCopies(std::vector<std::unique_ptr<RangeReader>> readers,
                  std::vector<std::vector<FileCopy>> copies)
      : readers_(std::move(readers)), copies_(std::move(copies)) {}

  std::size_t file_count() const noexcept override { return copies_.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    const FileCopy& first = copies_[file].front();
    return readers_[first.reader]->file_name(first.file);
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    const FileCopy& first = copies_[file].front();
    return readers_[first.reader]->file_size_bytes(first.file);
  }
  std::uint32_t alignment_bytes(std::uint32_t file) const noexcept override {
    std::uint32_t alignment = 1;
    for (const FileCopy& copy : copies_[file])
      alignment = std::max(alignment, readers_[copy.reader]->alignment_bytes(copy.file));
    return alignment;
  }
  Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const override {
    return readers_.front()->TakeMemory(size_bytes);
  }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    if (patience.IsOver()) return GivenUp();
    std::vector<std::size_t> wanted;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      ranges[i].status = PassesEnd(ranges[i]) ? ErrorCode::kCorruption : ErrorCode::kOk;
      if (ranges[i].status == ErrorCode::kOk && !ranges[i].destination.empty())
        wanted.push_back(i);
      else
        arrived(ranges[i]);
    }
    for (std::size_t turn = 0; !wanted.empty(); ++turn)
      wanted = ReadFrom(turn, ranges, wanted, arrived, patience);
    if (patience.was_over()) return GivenUp();
    return {};
  }

  // The trouble of the first copy that reports one.
  std::string Trouble(std::uint32_t file, ErrorCode status) const override {
    std::string trouble;
    for (const FileCopy& copy : copies_[file])
      if (trouble.empty()) trouble = readers_[copy.reader]->Trouble(copy.file, status);
    return trouble;
  }
  bool reads_indexes() const noexcept override {
    return std::ranges::any_of(readers_,
                               [](const auto& reader) { return reader->reads_indexes(); });
  }
  bool HasChanged() const override {
    return std::ranges::any_of(readers_, [](const auto& reader) { return reader->HasChanged(); });
  }
  bool HasShrunk(std::uint32_t file) const override {
    return std::ranges::any_of(copies_[file], [this](const FileCopy& copy) {
      return readers_[copy.reader]->HasShrunk(copy.file);
    });
  }

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override {
    Result<IndexBytes> mapped = IndexBytes{};
    for (const FileCopy& copy : copies_[file]) {
      mapped = readers_[copy.reader]->MapIndex(copy.file, offset_bytes, size_bytes);
      if (mapped) break;
    }
    return mapped;
  }

 private:
  // The range as this copy is to read it. Where the range is aligned for another copy, it may pass
  // the end of the file farther than this one may.
  RangeRead RangeOf(const RangeRead& range, const FileCopy& copy) const {
    const RangeReader& reader = *readers_[copy.reader];
    const std::uint64_t block = reader.alignment_bytes(copy.file);
    const std::uint64_t end = (reader.file_size_bytes(copy.file) + block - 1) & ~(block - 1);
    const std::uint64_t there = end - std::min(end, range.offset_bytes);
    const auto size = std::min<std::uint64_t>(there, range.destination.size());
    return {copy.file, range.offset_bytes, range.destination.first(size), ErrorCode::kOk};
  }

  // Reads each of `wanted` at its copy number `turn`; those that have to be read at the next one.
  std::vector<std::size_t> ReadFrom(std::size_t turn, std::span<RangeRead> ranges,
                                    std::span<const std::size_t> wanted, const Arrived& arrived,
                                    Patience& patience) const {
    std::vector<std::size_t> rest;
    const auto ended = [&](std::size_t index, ErrorCode status) {
      RangeRead& range = ranges[index];
      range.status = status;
      if (IsOutOfReach(status) && turn + 1 < copies_[range.file].size())
        rest.push_back(index);
      else
        arrived(range);
    };
    for (std::size_t reader = 0; reader < readers_.size(); ++reader) {
      std::vector<RangeRead> here;
      std::vector<std::size_t> indices;
      for (const std::size_t index : wanted) {
        const FileCopy& copy = copies_[ranges[index].file][turn];
        if (copy.reader != reader) continue;
        here.push_back(RangeOf(ranges[index], copy));
        indices.push_back(index);
      }
      if (here.empty()) continue;
      std::vector<bool> has_ended(here.size());
      const auto read = readers_[reader]->ReadEach(
          here,
          [&](RangeRead& range) {
            const auto i = static_cast<std::size_t>(&range - here.data());
            has_ended[i] = true;
            ended(indices[i], range.status);
          },
          patience);
      if (patience.was_over()) return {};
      for (std::size_t i = 0; !read && i < here.size(); ++i)
        if (!has_ended[i]) ended(indices[i], read.error().code);
    }
    return rest;
  }

  const std::vector<std::unique_ptr<RangeReader>> readers_;
  const std::vector<std::vector<FileCopy>> copies_;  // The copies of each file.
};

}  // namespace

std::unique_ptr<RangeReader> OpenFilesWithCopies(std::vector<std::unique_ptr<RangeReader>> readers,
                                                 std::vector<std::vector<FileCopy>> copies) {
  return std::make_unique<FilesWithCopies>(std::move(readers), std::move(copies));
}

}  // namespace ffrecord::client
