#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libffrecord/source/range_reader.h"
#include "libffrecord/source/resident_files.h"

namespace ffrecord::test {

// A RangeReader over files in memory: no file system between a test and what it tests, and faults
// on order.
class MemoryFiles : public RangeReader, public ResidentFiles {
 public:
  explicit MemoryFiles(std::vector<std::string> contents, std::uint32_t alignment_bytes = 1)
      : contents_(std::move(contents)), alignment_bytes_(alignment_bytes) {
    for (std::size_t i = 0; i < contents_.size(); ++i)
      names_.push_back("memory-" + std::to_string(i) + ".ffr");
  }

  // The status of a read of these bytes; kOk where nothing is to go wrong.
  std::function<ErrorCode(const RangeRead&)> fault = [](const RangeRead&) {
    return ErrorCode::kOk;
  };

  std::string& content(std::size_t file) { return contents_[file]; }
  std::uint64_t read_call_count() const { return read_calls_; }
  std::uint64_t range_count() const { return ranges_; }
  std::uint64_t range_bytes() const { return range_bytes_; }
  std::uint64_t map_call_count() const { return map_calls_; }
  std::uint64_t map_bytes() const { return map_bytes_; }
  void ResetCounts() { read_calls_ = ranges_ = range_bytes_ = map_calls_ = map_bytes_ = 0; }

  std::size_t file_count() const noexcept override { return contents_.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override { return names_[file]; }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return contents_[file].size();
  }
  std::uint32_t alignment_bytes(std::uint32_t) const noexcept override { return alignment_bytes_; }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    ++read_calls_;
    for (RangeRead& range : ranges) {
      if (patience.IsOver()) return GivenUp();
      ++ranges_;
      range_bytes_ += range.destination.size();
      range.status = fault(range);
      if (range.status == ErrorCode::kOk) range.status = ReadOne(range);
      if (patience.IsOver()) return GivenUp();  // While it was read: a slow device.
      arrived(range);
    }
    return {};
  }

  bool reads_indexes() const noexcept override { return false; }

  // Whether Mapped offers the files, with these bytes instead of the real ones if there are any,
  // and what IsInMemory says.
  bool mapped = false;
  std::string mapped_content;

  const ResidentFiles* resident() const noexcept override { return this; }
  std::span<const std::byte> Mapped(std::uint32_t file) const override {
    if (!mapped) return {};
    return std::as_bytes(std::span(mapped_content.empty() ? contents_[file] : mapped_content));
  }

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override {
    ++map_calls_;
    map_bytes_ += size_bytes;
    const auto content = std::as_bytes(std::span(contents_[file]));
    return IndexBytes{nullptr, content.subspan(offset_bytes, size_bytes)};
  }

 private:
  ErrorCode ReadOne(const RangeRead& range) const {
    const std::string& content = contents_[range.file];
    const auto address = reinterpret_cast<std::uintptr_t>(range.destination.data());
    if ((range.offset_bytes | range.destination.size() | address) % alignment_bytes_ != 0)
      return ErrorCode::kInvalidArgument;
    if (PassesEnd(range)) return ErrorCode::kCorruption;
    if (range.destination.empty()) return ErrorCode::kOk;
    const auto wanted = std::string_view(content).substr(range.offset_bytes);
    wanted.copy(reinterpret_cast<char*>(range.destination.data()), range.destination.size());
    return ErrorCode::kOk;
  }

  std::vector<std::string> contents_;
  std::vector<std::string> names_;
  std::uint32_t alignment_bytes_;
  mutable std::atomic<std::uint64_t> read_calls_{0};
  mutable std::atomic<std::uint64_t> ranges_{0};
  mutable std::atomic<std::uint64_t> range_bytes_{0};
  mutable std::atomic<std::uint64_t> map_calls_{0};
  mutable std::atomic<std::uint64_t> map_bytes_{0};
};

// The content in an allocation of just its size, so that a sanitizer sees reads past its end.
inline std::shared_ptr<MemoryFiles> InMemory(std::string content,
                                             std::uint32_t alignment_bytes = 1) {
  content.shrink_to_fit();
  return std::make_shared<MemoryFiles>(std::vector<std::string>{std::move(content)},
                                       alignment_bytes);
}

}  // namespace ffrecord::test
