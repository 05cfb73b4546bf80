#include "libffrecord/source/file_window.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace ffrecord {
namespace {

constexpr std::uint64_t kWindowSizeBytes = std::uint64_t{4} << 20;

}  // namespace

Result<std::span<const std::byte>> FileWindow::View(std::uint64_t offset_bytes,
                                                    std::uint64_t size_bytes) {
  const std::uint64_t file_size_bytes = source_.file_size_bytes(file_);
  if (offset_bytes > file_size_bytes || size_bytes > file_size_bytes - offset_bytes)
    return Error{ErrorCode::kCorruption, std::to_string(size_bytes) + " bytes at " +
                                             std::to_string(offset_bytes) +
                                             " pass the end of the file"};
  if (size_bytes == 0) return std::span<const std::byte>();
  const bool there = offset_bytes >= begin_bytes_ && offset_bytes - begin_bytes_ <= size_bytes_ &&
                     size_bytes <= size_bytes_ - (offset_bytes - begin_bytes_);
  if (!there) {
    const std::uint64_t left = file_size_bytes - offset_bytes;
    auto filled = Fill(offset_bytes, std::min(std::max(size_bytes, kWindowSizeBytes), left));
    // Bytes outside the requested range may be the ones that cannot be read.
    if (!filled) filled = Fill(offset_bytes, size_bytes);
    if (!filled) return std::move(filled).error();
  }
  return std::span<const std::byte>(memory_->subspan(offset_bytes - begin_bytes_, size_bytes));
}

Result<void> FileWindow::Fill(std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  size_bytes_ = 0;
  if (!memory_ || memory_->size() < size_bytes) {
    memory_.reset();
    memory_ = FFR_TRY(BufferPool::Process().Take(std::max(size_bytes, kWindowSizeBytes)));
  }
  const std::uint64_t piece_bytes_max = source_.coalescing().piece_bytes_max;
  std::vector<RangeRead> pieces;
  for (std::uint64_t begin = 0; begin < size_bytes; begin += piece_bytes_max)
    pieces.push_back({file_, offset_bytes + begin,
                      memory_->subspan(begin, std::min(piece_bytes_max, size_bytes - begin))});
  FFR_TRY(source_.Read(pieces));
  for (const RangeRead& piece : pieces)
    if (piece.status != ErrorCode::kOk)
      return Error{piece.status, std::to_string(piece.destination.size()) + " bytes at " +
                                     std::to_string(piece.offset_bytes) + " cannot be read"};
  begin_bytes_ = offset_bytes;
  size_bytes_ = size_bytes;
  return {};
}

}  // namespace ffrecord
