#include "client/dataset/stripe_parity.h"

#include <algorithm>

namespace ffrecord::client {

ExtentSource StripeParity::Begin(const SourcedExtent& extent, const ExtentSource& source) {
  extent_ = &extent;
  source_ = &source;
  added_bytes_ = 0;
  ++member_count_;
  return [this](std::uint64_t offset_bytes,
                std::span<std::byte> room) -> Result<std::span<const std::byte>> {
    auto bytes = (*source_)(offset_bytes, room);
    if (bytes) Add(offset_bytes - extent_->offset_bytes, bytes.value());
    return bytes;
  };
}

Result<void> StripeParity::End() {
  std::vector<std::byte> room(
      std::min<std::uint64_t>(extent_->size_bytes - added_bytes_, std::uint64_t{1} << 20));
  while (added_bytes_ < extent_->size_bytes) {
    const std::uint64_t left = extent_->size_bytes - added_bytes_;
    const auto bytes =
        FFR_TRY((*source_)(extent_->offset_bytes + added_bytes_,
                           std::span(room).first(std::min<std::uint64_t>(room.size(), left))));
    Add(added_bytes_, bytes);
  }
  return {};
}

void StripeParity::Add(std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
  if (offset_bytes > added_bytes_) return;  // It comes again: what is between is not there yet.
  const std::uint64_t known = added_bytes_ - offset_bytes;
  if (known >= bytes.size()) return;
  const auto more = bytes.subspan(known);
  for (std::size_t row = 0; row < sums_.size(); ++row)
    AddMultiple(code_.Coefficient(row, member_count_ - 1), more,
                std::span(sums_[row]).subspan(added_bytes_));
  added_bytes_ += more.size();
}

}  // namespace ffrecord::client
