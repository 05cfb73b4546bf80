#include "client/checkpoint/files_with_copies.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/checkpoint/aligned_part.h"
#include "libffrecord/source/file_copies.h"

namespace ffrecord::client {
namespace {

class FilesWithCopies final : public RangeReader, public FileCopies, public SizedCopies {
 public:
  FilesWithCopies(std::vector<std::unique_ptr<RangeReader>> readers,
                  std::vector<std::vector<FileCopy>> copies)
      : readers_(std::move(readers)), copies_(std::move(copies)) {}

  std::vector<std::uint64_t> SizesOf(std::uint32_t file) const override {
    std::set<std::uint64_t, std::greater<>> sizes;
    for (const FileCopy& copy : copies_[file]) sizes.insert(SizeOf(copy));
    return {sizes.begin(), sizes.end()};
  }

  void LeaveOutOtherSizes(std::uint32_t file, std::uint64_t size_bytes) override {
    auto& copies = copies_[file];
    const auto has_size = [&](const FileCopy& copy) { return SizeOf(copy) == size_bytes; };
    if (std::ranges::none_of(copies, has_size)) return;
    for (const FileCopy& copy : copies)
      if (!has_size(copy)) NotePassedOver(file, copy);
    std::erase_if(copies, std::not_fn(has_size));
  }

  std::size_t file_count() const noexcept override { return copies_.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    const FileCopy& first = copies_[file].front();
    return readers_[first.reader]->file_name(first.file);
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return SizeOf(copies_[file].front());
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

  Result<PooledBuffer> ReadFromCopies(std::uint32_t file, std::uint64_t offset_bytes,
                                      std::uint64_t size_bytes, const IsRight& is_right,
                                      Patience& patience) const override {
    const Error damaged{ErrorCode::kCorruption, "no copy of " + file_name(file) + " has it whole"};
    std::optional<Error> away;
    for (const FileCopy& copy : copies_[file]) {
      if (patience.IsOver()) return GivenUp();
      if (SizeOf(copy) < offset_bytes + size_bytes) continue;
      auto bytes = ReadCopy(copy, offset_bytes, size_bytes, is_right, patience);
      if (bytes || patience.was_over()) return bytes;
      NotePassedOver(file, copy);
      if (IsOutOfReach(bytes.error().code)) away = std::move(bytes).error();
    }
    return away.value_or(damaged);
  }
  std::vector<std::string> DamagedCopies(std::uint32_t file) const override {
    std::vector<std::string> damaged;
    for (const FileCopy& copy : copies_[file])
      if (const FileCopies* const copies = FileCopies::Of(*readers_[copy.reader]))
        std::ranges::move(copies->DamagedCopies(copy.file), std::back_inserter(damaged));
    const std::lock_guard lock(mutex_);
    for (const auto& [of, name] : passed_over_)
      if (of == file) damaged.push_back(name + ": not all of it can be read");
    return damaged;
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
  std::uint64_t SizeOf(const FileCopy& copy) const {
    return readers_[copy.reader]->file_size_bytes(copy.file);
  }

  // Bytes of one copy, or of the copies that its reader knows of it. Fails as ReadFromCopies().
  Result<PooledBuffer> ReadCopy(const FileCopy& copy, std::uint64_t offset_bytes,
                                std::uint64_t size_bytes, const IsRight& is_right,
                                Patience& patience) const {
    const RangeReader& reader = *readers_[copy.reader];
    const AlignedPart part(offset_bytes, size_bytes, reader.alignment_bytes(copy.file));
    auto buffer = FFR_TRY(reader.TakeMemory(part.read_size));
    RangeRead range{copy.file, part.begin, buffer->first(part.read_size), ErrorCode::kOk};
    FFR_TRY(reader.ReadEach(
        {&range, 1}, [](RangeRead&) {}, patience));
    const auto found = buffer->subspan(part.skipped, size_bytes);
    if (range.status == ErrorCode::kOk && is_right(found)) {
      std::copy(found.begin(), found.end(), buffer->begin());
      return buffer;
    }
    if (const FileCopies* const copies = FileCopies::Of(reader))
      return copies->ReadFromCopies(copy.file, offset_bytes, size_bytes, is_right, patience);
    const auto code = range.status == ErrorCode::kOk ? ErrorCode::kCorruption : range.status;
    return Error{code, reader.file_name(copy.file) + ": " + reader.Trouble(copy.file, code)};
  }

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

  void NotePassedOver(std::uint32_t file, const FileCopy& copy) const {
    const std::lock_guard lock(mutex_);
    passed_over_.emplace(file, readers_[copy.reader]->file_name(copy.file));
  }

  // Whether this copy has all that the range is to have of the file.
  bool HasAll(const RangeRead& range, const FileCopy& copy) const {
    const std::uint64_t end =
        std::min(range.offset_bytes + range.destination.size(), file_size_bytes(range.file));
    return end <= SizeOf(copy);
  }

  // Reads each of `wanted` at its copy number `turn`; those that have to be read at the next one.
  std::vector<std::size_t> ReadFrom(std::size_t turn, std::span<RangeRead> ranges,
                                    std::span<const std::size_t> wanted, const Arrived& arrived,
                                    Patience& patience) const {
    std::vector<std::size_t> rest;
    const auto ended = [&](std::size_t index, ErrorCode status) {
      RangeRead& range = ranges[index];
      // A copy that is out of reach may be whole: damage to another says less.
      if (status == ErrorCode::kOk || !IsOutOfReach(range.status)) range.status = status;
      if (status == ErrorCode::kOk || turn + 1 == copies_[range.file].size()) {
        arrived(range);
        return;
      }
      NotePassedOver(range.file, copies_[range.file][turn]);
      rest.push_back(index);
    };
    for (std::size_t reader = 0; reader < readers_.size(); ++reader) {
      std::vector<RangeRead> here;
      std::vector<std::size_t> indices;
      for (const std::size_t index : wanted) {
        const FileCopy& copy = copies_[ranges[index].file][turn];
        if (copy.reader != reader) continue;
        if (!HasAll(ranges[index], copy)) {
          ended(index, ErrorCode::kCorruption);
          continue;
        }
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
  std::vector<std::vector<FileCopy>> copies_;                            // The copies of each file.
  mutable std::mutex mutex_;                                             // Guards what follows.
  mutable std::set<std::pair<std::uint32_t, std::string>> passed_over_;  // Copies, by file.
};

}  // namespace

std::unique_ptr<RangeReader> OpenFilesWithCopies(std::vector<std::unique_ptr<RangeReader>> readers,
                                                 std::vector<std::vector<FileCopy>> copies) {
  return std::make_unique<FilesWithCopies>(std::move(readers), std::move(copies));
}

}  // namespace ffrecord::client
