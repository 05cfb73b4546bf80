#include <ffrecord/batch.h>

#include <cstring>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"

namespace ffrecord {
namespace {

// The memory of a Batch over vectors.
struct Tables {
  Batch::Owner owner;
  std::vector<std::int64_t> starts_bytes;
  std::vector<std::int64_t> sizes_bytes;
  std::vector<ErrorCode> statuses;
};

Error At(std::size_t position, Error error) {
  error.message = "position " + std::to_string(position) + " of the batch: " + error.message;
  return error;
}

}  // namespace

Batch::Batch(Owner owner, std::span<const std::byte> data,
             std::span<const std::int64_t> starts_bytes, std::span<const std::int64_t> sizes_bytes,
             std::span<const ErrorCode> statuses, std::shared_ptr<const Schema> schema) noexcept
    : owner_(std::move(owner)),
      data_(data),
      starts_bytes_(starts_bytes),
      sizes_bytes_(sizes_bytes),
      statuses_(statuses),
      schema_(std::move(schema)) {
  FFR_ASSERT(starts_bytes_.size() == sizes_bytes_.size());
  FFR_ASSERT(starts_bytes_.size() == statuses_.size());
  FFR_ASSERT(schema_ != nullptr);
}

Batch::Batch(Owner owner, std::span<const std::byte> data, std::vector<std::int64_t> starts_bytes,
             std::vector<std::int64_t> sizes_bytes, std::vector<ErrorCode> statuses,
             std::shared_ptr<const Schema> schema) noexcept
    : Batch(nullptr, data, std::span<const std::int64_t>(starts_bytes), sizes_bytes, statuses,
            std::move(schema)) {
  // Moved, a vector keeps its elements where they are.
  owner_ = std::make_shared<Tables>(Tables{std::move(owner), std::move(starts_bytes),
                                           std::move(sizes_bytes), std::move(statuses)});
}

std::span<const std::byte> Batch::record(std::size_t position) const noexcept {
  FFR_ASSERT(position < size());
  if (statuses_[position] != ErrorCode::kOk) return {};
  return data_.subspan(static_cast<std::size_t>(starts_bytes_[position]),
                       static_cast<std::size_t>(sizes_bytes_[position]));
}

Result<Batch::Field> Batch::field(std::size_t column) const {
  FFR_ASSERT(column < schema_->columns().size());
  std::vector<std::span<const std::byte>> fields(schema_->columns().size());
  Field result{std::vector<std::int64_t>(size()), std::vector<std::int64_t>(size())};
  for (std::size_t i = 0; i < size(); ++i) {
    if (statuses_[i] != ErrorCode::kOk) continue;
    auto split = schema_->Split(record(i), fields);
    if (!split) return At(i, std::move(split).error());
    result.sizes_bytes[i] = static_cast<std::int64_t>(fields[column].size());
    // An empty batch of empty records has no block to point into.
    if (!fields[column].empty()) result.starts_bytes[i] = fields[column].data() - data_.data();
  }
  return result;
}

Result<void> Batch::GatherFixed(std::size_t column, std::span<std::byte> destination) const {
  FFR_ASSERT(column < schema_->columns().size());
  const std::uint64_t width = schema_->width_bytes(column);
  if (width == 0 || destination.size() != size() * width)
    return Error{ErrorCode::kInvalidArgument,
                 "gather column '" + schema_->columns()[column].name + "': " +
                     (width == 0 ? "its values have no fixed width"
                                 : "destination has " + std::to_string(destination.size()) +
                                       " bytes, not " + std::to_string(size() * width))};
  std::vector<std::span<std::byte>> destinations(schema_->columns().size());
  destinations[column] = destination;
  return GatherFixed(destinations);
}

Result<void> Batch::GatherFixed(std::span<const std::span<std::byte>> destinations) const {
  FFR_ASSERT(destinations.size() == schema_->columns().size());
  FFR_TRY(CheckFits());
  std::uint64_t offset = 0;  // In each record: values of fixed width come first.
  for (std::size_t column = 0; column < destinations.size(); ++column) {
    const std::uint64_t width = schema_->width_bytes(column);
    const std::span<std::byte> destination = destinations[column];
    FFR_ASSERT(destination.empty() || destination.size() == size() * width);
    if (!destination.empty()) GatherAt(offset, width, destination.data());
    offset += width;
  }
  return {};
}

// Whether each good record fits the schema.
Result<void> Batch::CheckFits() const {
  const std::size_t column_count = schema_->columns().size();
  const auto fixed_size = static_cast<std::int64_t>(schema_->fixed_size_bytes());
  bool all_fixed = true;
  for (std::size_t i = 0; i < column_count; ++i)
    all_fixed = all_fixed && schema_->width_bytes(i) != 0;
  std::vector<std::span<const std::byte>> fields(column_count);
  for (std::size_t i = 0; i < size(); ++i) {
    if (statuses_[i] != ErrorCode::kOk || (all_fixed && sizes_bytes_[i] == fixed_size)) continue;
    if (auto split = schema_->Split(record(i), fields); !split)
      return At(i, std::move(split).error());
  }
  return {};
}

// Copies `width` bytes from `offset` of each record; zeros for one that is not good.
void Batch::GatherAt(std::uint64_t offset, std::uint64_t width, std::byte* out) const {
  const auto gather = [&](auto copy) {
    for (std::size_t i = 0; i < size(); ++i, out += width) {
      if (statuses_[i] == ErrorCode::kOk)
        copy(out, data_.data() + starts_bytes_[i] + offset);
      else
        std::memset(out, 0, width);
    }
  };
  // A copy is one instruction if the compiler knows its size.
  switch (width) {
    case 1:
      return gather([](std::byte* to, const std::byte* from) { *to = *from; });
    case 2:
      return gather([](std::byte* to, const std::byte* from) { std::memcpy(to, from, 2); });
    case 4:
      return gather([](std::byte* to, const std::byte* from) { std::memcpy(to, from, 4); });
    case 8:
      return gather([](std::byte* to, const std::byte* from) { std::memcpy(to, from, 8); });
    default:
      return gather([=](std::byte* to, const std::byte* from) { std::memcpy(to, from, width); });
  }
}

}  // namespace ffrecord
