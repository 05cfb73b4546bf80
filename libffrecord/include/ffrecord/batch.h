#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>
#include <ffrecord/schema.h>

namespace ffrecord {

// The records of one ReadBatch, in request order, in one block of memory that the Batch owns.
//
// `starts` and `sizes` say where in the block each record lies; the same index twice may share its
// bytes, and does unless records are small. What is read follows the order of the files, not of the
// request: neighbours are read in one piece and land where they are used. What was in memory
// already is copied back to back, in the order of the request. Starts and sizes are in bytes. The
// memory returns to a pool when the Batch dies. Movable; distinct Batches may be used by distinct
// threads.
class FFR_EXPORT Batch {
 public:
  // Owner of the block: whatever must stay alive while `data` is used.
  using Owner = std::shared_ptr<const void>;

  // Over tables that `owner` keeps alive too, of one length.
  Batch(Owner owner, std::span<const std::byte> data, std::span<const std::int64_t> starts_bytes,
        std::span<const std::int64_t> sizes_bytes, std::span<const ErrorCode> statuses,
        std::shared_ptr<const Schema> schema) noexcept;
  // Over tables of its own.
  Batch(Owner owner, std::span<const std::byte> data, std::vector<std::int64_t> starts_bytes,
        std::vector<std::int64_t> sizes_bytes, std::vector<ErrorCode> statuses,
        std::shared_ptr<const Schema> schema) noexcept;

  std::size_t size() const noexcept { return starts_bytes_.size(); }

  // The record in place `position` of the request; empty unless its status is kOk. Valid as long
  // as the Batch lives.
  std::span<const std::byte> record(std::size_t position) const noexcept;

  std::span<const std::byte> data() const noexcept { return data_; }
  std::span<const std::int64_t> starts_bytes() const noexcept { return starts_bytes_; }
  std::span<const std::int64_t> sizes_bytes() const noexcept { return sizes_bytes_; }
  // kOk, kCorruption, kIo, kUnavailable or kDeadlineExceeded for each record.
  std::span<const ErrorCode> statuses() const noexcept { return statuses_; }
  const Schema& schema() const noexcept { return *schema_; }

  // Where the values of one column lie in data(), one start and size for each record; both 0 for
  // a record whose status is not kOk. Fails with kCorruption, naming the position, if a record
  // does not fit the schema. Requires column < schema().columns().size().
  struct Field {
    std::vector<std::int64_t> starts_bytes;
    std::vector<std::int64_t> sizes_bytes;
  };
  Result<Field> field(std::size_t column) const;

  // The values of one fixed-width column, back to back: size() * width bytes; zeros for a record
  // whose status is not kOk. `destination` must have just that size, else kInvalidArgument.
  Result<void> GatherFixed(std::size_t column, std::span<std::byte> destination) const;

 private:
  Owner owner_;
  std::span<const std::byte> data_;
  std::span<const std::int64_t> starts_bytes_;
  std::span<const std::int64_t> sizes_bytes_;
  std::span<const ErrorCode> statuses_;
  std::shared_ptr<const Schema> schema_;
};

}  // namespace ffrecord
